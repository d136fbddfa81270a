"""A router as it is served, whichever format it came in, and weights that are checked before they are taken."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from .classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from .manifest import AssumedManifest, RouterManifest


@dataclass(frozen=True, slots=True)
class LoadedRouter:
    """A classifier in eval mode, the embedding it reads (float32 [rows, size]), and its manifest."""

    classifier: HiddenStatesTokenLMHeadLogitsClassifier
    embedding: Tensor
    manifest: RouterManifest | AssumedManifest


def fill_classifier(
    arguments: ClassifierArguments, embedding_size: int, state: Mapping[str, Tensor], path: Path
) -> HiddenStatesTokenLMHeadLogitsClassifier:
    """A classifier in eval mode that holds the tensors of `state` themselves; `path` names their file in messages.

    Raises:
        CheckpointError: a tensor is missing, one too many, or not float32 of its shape; the message names it.
    """
    with torch.device("meta"):
        classifier = HiddenStatesTokenLMHeadLogitsClassifier(arguments, embedding_size)
    _check_tensors(state, classifier.state_dict(), path)
    classifier.load_state_dict(state, assign=True)
    return classifier.eval().requires_grad_(False)


def _check_tensors(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], path: Path) -> None:
    for name in sorted(wanted.keys() | state.keys()):
        if name not in state:
            raise CheckpointError(f"{path}: the tensor {name} is missing", field=name)
        if name not in wanted:
            raise CheckpointError(f"{path}: the tensor {name} is not part of this router", field=name)
        if state[name].shape != wanted[name].shape or state[name].dtype != torch.float32:
            found, right = list(state[name].shape), list(wanted[name].shape)
            raise CheckpointError(
                f"{path}: the tensor {name} is {state[name].dtype} {found}, not torch.float32 {right}", field=name
            )
