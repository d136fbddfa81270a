"""A threshold that was set for a target, and what it is valid for: `calibration.json`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ..errors import CheckpointError
from .checkpoint_files import write_file
from .manifest import MadeFor, MadeForSlm, Part, ScoreQuantiles, Sha256, Share

CALIBRATION_FILE = "calibration.json"


class Target(Part):
    """What was asked for."""

    kind: Literal["recall", "share", "cost"]
    value: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """A share from 0 to 1; of cost, billions of parameters that a token activates on average."""


class Achieved(Part):
    """What the threshold comes to on some labelled tokens."""

    num_problems: int
    num_tokens: int
    num_divergent: int
    recall: Share | None
    """Of the divergent tokens; None where there are none."""
    share: Share
    """Of tokens that go to the large model."""
    cost: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Billions of parameters that a token activates on average, as R2R counts (arXiv 2505.21600, section 4.1): the
    small model's for the tokens that it writes, the large one's for the others."""


class Calibration(Part):
    """The file. It tells no date, so that the same labels and target give the same file."""

    format: Literal["allroads-calibration"] = "allroads-calibration"
    version: Literal[1] = 1
    scorer: str
    """Its name, which is that of its policy."""
    weights_sha256: Sha256
    features: tuple[str, ...]
    feature_dtype: Literal["float32"] = "float32"
    slm: MadeForSlm
    slm_dtype: str
    """In which the small model computed the features."""
    llm: MadeFor
    dataset_sha256: Sha256
    dataset_source: str
    split: str
    """Which of the dataset's problems served to calibrate, and which were held out."""
    target: Target
    threshold: Share
    score_quantiles: ScoreQuantiles
    """Of the scores on the calibration part."""
    calibration: Achieved
    held_out: Achieved
    """On problems that the threshold was not chosen on."""


def read_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        CheckpointError: the file is missing or damaged; the message names the key.
    """
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; `allroads calibrate` writes it", field="router.calibration"
        ) from error
    try:
        return Calibration.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise CheckpointError(
            f"{path} is damaged or no calibration: {key}: {problem['msg']}; make it anew with `allroads calibrate`",
            field=key,
        ) from error


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration, whole or not at all.

    Raises:
        CheckpointError: the place cannot be written to.
    """
    try:
        write_file(path, (calibration.model_dump_json(indent=2) + "\n").encode())
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}; name another place with --out", field="out"
        ) from error
