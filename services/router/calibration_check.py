"""Puts a calibrated threshold into force where what it was made for is what is served (C47)."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from ..config import MeshSettings
from ..errors import CheckpointError
from ..model_identity import identify_model
from .calibration_file import Calibration, read_calibration
from .embedding import embedding_hash, load_embedding
from .manifest import MadeFor
from .scorer import Scorer, ScorerFacts

logger = logging.getLogger(__name__)

_KEY = "router.calibration"


def apply_calibration(path: Path, scorers: Mapping[str, Scorer], settings: MeshSettings) -> None:
    """Let the scorer that a calibration is for tell its threshold.

    Raises:
        CheckpointError: the file is missing or damaged, or no scorer has the name that it is for; or it was made for
            something else than what is served, and `router.ignore_calibration_mismatch` is not set.
    """
    calibration = read_calibration(path)
    scorer = scorers.get(calibration.scorer)
    if scorer is None:
        raise CheckpointError(
            f"{_KEY}: {path} is for the scorer {calibration.scorer!r}, but there are only {', '.join(sorted(scorers))}",
            field=_KEY,
        )
    differences = "; ".join(_differences(calibration, scorer.facts, settings))
    if differences and not settings.router.ignore_calibration_mismatch:
        raise CheckpointError(
            f"{_KEY}: {path} was made for something else than what is served: {differences}. Its threshold would mean "
            "nothing here: calibrate again with `allroads calibrate`, or set router.ignore_calibration_mismatch to "
            "serve it all the same",
            field=_KEY,
        )
    if differences:
        logger.warning(
            "%s was made for something else than what is served, and is used all the same: %s", path, differences
        )
    scorer.serve_at(
        calibration.threshold, share=calibration.calibration.share, score_quantiles=calibration.score_quantiles
    )


def _differences(calibration: Calibration, facts: ScorerFacts, settings: MeshSettings) -> Iterator[str]:
    """All in which what is served differs from what was calibrated."""
    slm, llm = settings.slm.path, settings.llm.path
    yield from _of_model("slm", calibration.slm, MadeFor(**asdict(identify_model(slm))))
    embedding = embedding_hash(load_embedding(slm))
    if embedding != calibration.slm.embedding_sha256:
        yield f"the slm's embedding_sha256 is {embedding}, not {calibration.slm.embedding_sha256}"
    if calibration.slm_dtype != settings.slm.dtype:
        yield f"the slm's dtype is {settings.slm.dtype}, not {calibration.slm_dtype}"
    # On a host of its own the router may not have the large model's files; the home compares the ids then.
    if llm.is_dir():
        yield from _of_model("llm", calibration.llm, MadeFor(**asdict(identify_model(llm))))
    for what, its, right in (
        ("weights_sha256", facts.weights_sha256, calibration.weights_sha256),
        ("features", list(facts.features), list(calibration.features)),
    ):
        if its != right:
            yield f"the scorer's {what} is {its}, not {right}"


def _of_model(name: str, right: MadeFor, its: MadeFor) -> Iterator[str]:
    for key in MadeFor.model_fields:
        if getattr(its, key) != getattr(right, key):
            yield f"the {name}'s {key} is {getattr(its, key)}, not {getattr(right, key)}"
