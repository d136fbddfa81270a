"""The scorers that a mesh is configured for."""

import logging
from pathlib import Path

import torch

from ..config import MeshSettings
from ..cuda.graphs import Recorder, recorder_on
from ..errors import CheckpointError
from .calibration_check import apply_calibration
from .checkpoint import load_router
from .head_checkpoint import holds_head, load_head, name_of_head
from .head_scorer import HeadScorer
from .r2r_scorer import R2RScorer
from .scorer import Scorer

logger = logging.getLogger(__name__)


def load_scorers(settings: MeshSettings) -> dict[str, Scorer]:
    """All of them by name, R2R's router first.

    Raises:
        CheckpointError: a checkpoint is missing, damaged, of another kind than its name says, or made for another
            small model; or the calibration does not fit. The message names the setting.
    """
    own = settings.router
    # One for all of them, since one thread runs them all.
    recorder = recorder_on(torch.device(own.device), own.graphs, own.stream_priority)
    router = R2RScorer(load_router(own.path, settings.slm.path), own.device, recorder)
    scorers: dict[str, Scorer] = {router.facts.name: router}
    for name in own.scorers:
        scorers[name] = _load_head(name, settings, recorder)
    if own.calibration is not None:
        apply_calibration(own.calibration, scorers, settings)
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


def load_scorer(path: Path, slm_directory: Path, device: str = "cpu") -> Scorer:
    """The one scorer of a checkpoint, of whichever kind that is.

    Raises:
        CheckpointError: it is missing or damaged, or was made for another small model.
    """
    if holds_head(path):
        return HeadScorer(load_head(name_of_head(path), path, slm_directory), device)
    return R2RScorer(load_router(path, slm_directory), device)


def _load_head(name: str, settings: MeshSettings, recorder: Recorder | None) -> Scorer:
    key = f"router.scorers.{name}"
    try:
        head = load_head(name, settings.router.scorers[name], settings.slm.path)
    except CheckpointError as error:
        raise CheckpointError(f"{key}: {error.message}", field=key) from error
    return HeadScorer(head, settings.router.device, recorder)
