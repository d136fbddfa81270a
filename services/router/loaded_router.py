"""A router as it is served, whichever format it came in."""

from dataclasses import dataclass

from torch import Tensor

from .classifier import HiddenStatesTokenLMHeadLogitsClassifier
from .router_manifest import AssumedManifest, RouterManifest


@dataclass(frozen=True, slots=True)
class LoadedRouter:
    """A classifier in eval mode, the embedding it reads (float32 [rows, size]), and its manifest."""

    classifier: HiddenStatesTokenLMHeadLogitsClassifier
    embedding: Tensor
    manifest: RouterManifest | AssumedManifest
