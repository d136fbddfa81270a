"""The scorers that a mesh is configured for."""

import logging

from ..config import MeshSettings
from ..errors import CheckpointError
from .checkpoint import load_router
from .head_checkpoint import load_head
from .head_scorer import HeadScorer
from .r2r_scorer import R2RScorer
from .scorer import Scorer

logger = logging.getLogger(__name__)


def load_scorers(settings: MeshSettings) -> dict[str, Scorer]:
    """All of them by name, R2R's router first.

    Raises:
        CheckpointError: a checkpoint is missing, damaged, of another kind than its name says, or made for another
            small model; the message names the setting.
    """
    router = R2RScorer(load_router(settings.router.path, settings.slm.path), settings.router.device)
    scorers: dict[str, Scorer] = {router.facts.name: router}
    for name in settings.router.scorers:
        scorers[name] = _load_head(name, settings)
    for scorer in scorers.values():
        logger.info(
            "router %s: %d parameters, threshold %.4f, made for %s and %s",
            scorer.facts.name,
            scorer.facts.num_parameters,
            scorer.facts.threshold,
            scorer.facts.slm.model_id,
            scorer.facts.llm.model_id or "a large model that it does not name",
        )
    return scorers


def _load_head(name: str, settings: MeshSettings) -> Scorer:
    key = f"router.scorers.{name}"
    try:
        head = load_head(name, settings.router.scorers[name], settings.slm.path)
    except CheckpointError as error:
        raise CheckpointError(f"{key}: {error.message}", field=key) from error
    return HeadScorer(head, settings.router.device)
