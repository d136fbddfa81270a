"""What a router of ours was made for, from what, and how well it does: `manifest.json` beside its weights."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import CheckpointError
from ..model_identity import ModelIdentity
from .classifier import ClassifierArguments, ModelType

FEATURES = ("top_logits", "hidden_states", "token_ids")
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())


class MadeFor(_Part):
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


class SplitData(_Part):
    """One of the splits that the labels were parted into, by problem."""

    num_problems: int
    num_tokens: int
    num_identical: int
    num_neutral: int
    num_divergent: int


class DataDescription(_Part):
    """The labels."""

    source: str
    problem_seed: int
    split_seed: int
    labels_sha256: Sha256
    train: SplitData
    validation: SplitData
    test: SplitData


class TrainingDescription(_Part):
    """How the weights were fitted to the labels."""

    optimizer: str
    rate: float
    weight_decay: float
    batch_size: int
    max_epochs: int
    patience: int
    seed: int


class Quality(_Part):
    """How the divergent class is told apart at the threshold, on one split."""

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


class RouterManifest(_Part):
    """Everything but the weights."""

    format: Literal["allroads-router"] = "allroads-router"
    version: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=100)] = "r2r"
    model_type: ModelType = "HiddenStatesTokenLMHeadLogitsClassifier"
    init_args: ClassifierArguments
    features: tuple[str, ...] = FEATURES
    feature_dtype: Literal["float32"] = "float32"
    slm: MadeForSlm
    llm: MadeFor
    weights_sha256: Sha256
    threshold: Share
    """At or above it a proposal goes to the large model: 0 sends all, 1 next to none."""
    threshold_rule: str
    data: DataDescription
    training: TrainingDescription
    validation: Quality
    test: Quality


class UnnamedModel(_Part):
    """A model that a router does not name. Its id is that of none, and is compared with none."""

    model_id: Literal[""] = ""


class AssumedManifest(_Part):
    """Stands in for the manifest of a published router, whose file tells little and pins nothing."""

    name: Literal["r2r"] = "r2r"
    init_args: ClassifierArguments
    slm: MadeFor
    """The one that it is served with."""
    llm: UnnamedModel = UnnamedModel()
    threshold: Share
    test: None = None
    """How well it does is not told."""


def parse_manifest(text: str, where: str) -> RouterManifest:
    """Read a manifest.

    Raises:
        CheckpointError: it is damaged, of another format, or asks for features that we do not send; the
            message names the key.
    """
    try:
        manifest = RouterManifest.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"]) or "the file"
        raise CheckpointError(f"{where} is damaged: {key}: {problem['msg']}", field=key) from error
    if manifest.features != FEATURES:
        raise CheckpointError(f"{where}: features must be {list(FEATURES)}, not {list(manifest.features)}")
    return manifest
