"""Matrices laid end to end, so that one product does for several, in the memory that the model has anyway."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def join_weights(groups: Sequence[Sequence[nn.Linear]], *, moves_all: bool) -> list[Tensor]:
    """The weights of each group end to end, [sum of out, in]; each module keeps a view of its part.

    For a GPU transformers reads a model into one large piece of memory, of which torch gives nothing back while any
    of it is in use. Were matrices merely joined, their old places would be too small for the next ones, and lost: a
    tenth of the model and more. So all matrices of a layer, which lie side by side, move out and then back: there is
    just room for them.

    Args:
        groups: of modules whose weights have one width.
        moves_all: whether they move so. The groups are all large matrices of a layer then, some of one module.
    """
    parts = [[module.weight for module in group] for group in groups]
    wholes = [_join(group, copies_one=moves_all) for group in parts]
    if moves_all:
        wholes = [_replace(group, whole.clone()) for group, whole in zip(parts, wholes, strict=True)]
    return wholes


def join_biases(group: Sequence[nn.Linear]) -> Tensor | None:
    """The same for biases, [sum of out]; None where there are none."""
    return None if group[0].bias is None else _join([module.bias for module in group])


def _join(parts: list[Tensor], *, copies_one: bool = False) -> Tensor:
    if len(parts) == 1 and not copies_one:
        return parts[0].data
    return _replace(parts, torch.cat([part.data for part in parts]))


def _replace(parts: list[Tensor], whole: Tensor) -> Tensor:
    """Let parameters be views of a tensor that holds all of them, end to end."""
    for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = view
    return whole
