"""What scores were when a threshold was set, from the file that tells: a calibration, or a router's manifest."""

from pathlib import Path

from pydantic import ValidationError

from ..errors import CheckpointError
from ..router.calibration_file import read_calibration
from ..router.checkpoint_files import MANIFEST_FILE
from .drift import CalibratedRouter


def load_calibrated(path: Path) -> CalibratedRouter:
    """Read what a calibration says, or the manifest in the directory of a router or another scorer.

    Raises:
        CheckpointError: it is missing or damaged, or tells nothing of scores at calibration.
    """
    if path.is_file():
        made = read_calibration(path)
        return CalibratedRouter(
            name=made.scorer,
            threshold=made.threshold,
            score_quantiles=made.score_quantiles,
            calibrated_share=made.calibration.share,
        )
    path /= MANIFEST_FILE
    try:
        router = CalibratedRouter.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"--router: cannot read {path}: {error.strerror}; give a router's directory") from error
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, problem["loc"])) or "the file"
        raise CheckpointError(f"--router: {path} is damaged: {key}: {problem['msg']}", field=key) from error
    if not router.score_quantiles:
        raise CheckpointError(
            f"--router: {path} has no score_quantiles, so nothing can be said of drift; calibrate the router "
            "(`allroads calibrate`), or leave --router out",
            field="score_quantiles",
        )
    return router
