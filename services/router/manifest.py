"""What a scorer of ours was made for, from what, and how well it does: `manifest.json` beside its weights."""

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..errors import CheckpointError
from ..model_identity import ModelIdentity

NUM_SCORE_QUANTILES = 19


def _check_quantiles(quantiles: tuple[float, ...]) -> tuple[float, ...]:
    if len(quantiles) not in (0, NUM_SCORE_QUANTILES) or list(quantiles) != sorted(quantiles):
        raise ValueError(f"must be {NUM_SCORE_QUANTILES} ascending numbers, or none")
    return quantiles


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ScoreQuantiles = Annotated[tuple[Share, ...], AfterValidator(_check_quantiles)]
"""The 19 inner quantiles of some scores at steps of 5 %, ascending; empty where nobody knows."""


class Part(BaseModel):
    """Base of all that a manifest holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class MadeFor(Part):
    """One model of the pair."""

    model_id: str
    num_parameters: int
    tokenizer_hash: Sha256

    def first_difference(self, other: ModelIdentity) -> str | None:
        """The first thing in which a model differs from this one; None where nothing does."""
        for name in ("model_id", "num_parameters", "tokenizer_hash"):
            mine, its = getattr(self, name), getattr(other, name)
            if mine != its:
                return f"its {name} is {its}, not {mine}"
        return None


class MadeForSlm(MadeFor):
    """The small model, whose very weights the features come from."""

    embedding_sha256: Sha256
    """Of the input embedding as it lies in the file: another training of the same shape is another model."""


class UnnamedModel(Part):
    """A model that a scorer does not name. Its id is that of none, and is compared with none."""

    model_id: Literal[""] = ""


class DataOrigin(Part):
    """Where the tokens that it learned from came from."""

    source: str
    problem_seed: int
    split_seed: int
    labels_sha256: Sha256


class TrainingDescription(Part):
    """How the weights were fitted."""

    optimizer: str
    rate: float
    weight_decay: float
    batch_size: int
    max_epochs: int
    patience: int
    seed: int
    schedule: Literal["linear", "constant"] = "linear"
    """Of the rate: down to 0 over `max_epochs`, or the same throughout."""


class Quality(Part):
    """How the rare class, the tokens for the large model, is told apart at the threshold, on one split."""

    num_tokens: int
    num_positives: int
    base_rate: Share
    recall: Share
    precision: Share
    positive_rate: Share
    """Share of tokens that would go to the large model."""
    pr_auc: Share
    """Area under the precision-recall curve (average precision)."""
    mean_probability: Share
    """Equals the base rate where probabilities are calibrated."""


class ScorerManifest(Part):
    """Everything but the weights, as far as all scorers have it. Subclasses say of which kind they are."""

    reads: ClassVar[tuple[str, ...]]
    """Features of a proposal that this kind of scorer is given."""

    format: str
    version: Literal[1] = 1
    name: str
    features: tuple[str, ...]
    feature_dtype: Literal["float32"] = "float32"
    slm: MadeForSlm
    llm: MadeFor
    weights_sha256: Sha256
    threshold: Share
    """For requests that name none; the policy of the same name says what lies on which side of it."""
    threshold_rule: str
    score_quantiles: ScoreQuantiles = ()
    """Of the scores on validation, unless `scores_on` says otherwise."""
    calibrated_share: Share | None = None
    """Share of those tokens that the threshold sends to the large model."""
    scores_on: str = ""
    """Which tokens these two were computed on, where not on validation by the training."""
    training: TrainingDescription
    validation: Quality
    test: Quality


_Manifest = TypeVar("_Manifest", bound=ScorerManifest)


def parse_manifest(text: str, where: str, kind: type[_Manifest]) -> _Manifest:
    """Read a manifest.

    Raises:
        CheckpointError: it is damaged, of another kind, or asks for features that we do not send; the
            message names the key.
    """
    try:
        manifest = kind.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise CheckpointError(f"{where} is damaged or of another kind: {key}: {problem['msg']}", field=key) from error
    if manifest.features != kind.reads:
        raise CheckpointError(
            f"{where}: features must be {list(kind.reads)}, not {list(manifest.features)}", field="features"
        )
    return manifest
