"""Manifests of R2R's routers: ours, and what stands in for that of a published one."""

from typing import Annotated, Literal

from pydantic import Field

from .classifier import ClassifierArguments, ModelType
from .manifest import DataOrigin, MadeFor, Part, ScorerManifest, Sha256, Share, UnnamedModel

_FEATURES = ("top_logits", "hidden_states", "token_ids")


class SplitData(Part):
    """One of the splits that the labels were parted into, by problem."""

    num_problems: int
    num_tokens: int
    num_identical: int
    num_neutral: int
    num_divergent: int


class DataDescription(DataOrigin):
    """The labels."""

    train: SplitData
    validation: SplitData
    test: SplitData


class RouterManifest(ScorerManifest):
    """Of a router that was trained here. At or above its threshold a proposal goes to the large model."""

    reads = _FEATURES

    format: Literal["allroads-router"] = "allroads-router"
    name: Annotated[str, Field(min_length=1, max_length=100)] = "r2r"
    features: tuple[str, ...] = _FEATURES
    model_type: ModelType = "HiddenStatesTokenLMHeadLogitsClassifier"
    init_args: ClassifierArguments
    data: DataDescription


class AssumedManifest(Part):
    """Stands in for the manifest of a published router, whose file tells little and pins nothing."""

    name: Literal["r2r"] = "r2r"
    features: tuple[str, ...] = _FEATURES
    init_args: ClassifierArguments
    slm: MadeFor
    """The one that it is served with."""
    llm: UnnamedModel = UnnamedModel()
    weights_sha256: Sha256
    """Of its file."""
    threshold: Share
    score_quantiles: tuple[float, ...] = ()
    calibrated_share: None = None
    data: None = None
    test: None = None
    """How well it does is not told."""
