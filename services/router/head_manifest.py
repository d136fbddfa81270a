"""Manifests of the scorers that read nothing but the small model's hidden state: CITER's and Co-LLM's."""

from typing import Annotated, Literal

from pydantic import Field

from .manifest import DataOrigin, Part, ScorerManifest

_FEATURES = ("hidden_states",)


class ReferenceSplit(Part):
    """One of the splits that the reference texts were parted into, by problem."""

    num_problems: int
    num_tokens: int
    num_slm_right: int
    """Tokens that the small model's likeliest one equals."""
    num_llm_right: int
    """Of the others, those that the large model's equals."""
    num_neither: int
    """The rest, where the large model went on from the small one's token."""
    num_neither_suffices: int
    """Of these, those where that led to the right answer."""


class ReferenceData(DataOrigin):
    """The reference texts."""

    train: ReferenceSplit
    validation: ReferenceSplit
    test: ReferenceSplit


class HeadManifest(ScorerManifest):
    """Of a scorer over hidden states."""

    reads = _FEATURES

    features: tuple[str, ...] = _FEATURES
    hidden_states_size: Annotated[int, Field(gt=0, le=1 << 20)]
    positives: str
    """The rare class that its quality was measured on."""
    data: ReferenceData


class CiterManifest(HeadManifest):
    """Of CITER's network. Below its threshold a token is the large model's."""

    format: Literal["allroads-citer"] = "allroads-citer"
    name: Literal["citer"] = "citer"


class CoLlmManifest(HeadManifest):
    """Of Co-LLM's head. Above its threshold a token is the large model's."""

    format: Literal["allroads-co-llm"] = "allroads-co-llm"
    name: Literal["co-llm"] = "co-llm"
