"""What is in a published router checkpoint, a `.pt` file of `torch.save`.

The format is that of thu-nics/R2R at 560f5ec, in which the routers of arXiv 2505.21600 were published: a dict with
`model_type`, `init_args` (only the constructor arguments that were given), `common_args`, `model_specific_args` and
`state_dict`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from ..errors import CheckpointError
from .classifier import ClassifierArguments, ModelType
from .manifest import Share
from .weights_only import load_weights_only

_KEYS = ("model_type", "init_args", "common_args", "model_specific_args", "state_dict")
_INPUTS = {"logits", "hidden_states", "token"}
_WITHOUT_EFFECT = {"dtype", "pretrained_model_name", "max_position_embeddings", "topk"}
"""Constructor arguments that change no score: how the embedding was once loaded, and what is never read."""
_EMBEDDING = "token_embeddings.weight"
_OUTPUT = "backbone.output_layer.1.weight"

_Arguments = TypeVar("_Arguments", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class OfficialFile:
    """The contents of a published checkpoint, checked as far as they can be without the small model."""

    path: Path
    arguments: ClassifierArguments
    threshold: float | None
    """None where the training chose none."""
    state: dict[str, Tensor]
    """float32, on the CPU, under the published names; without the embedding."""
    embedding_shape: tuple[int, ...] | None
    """[rows, size] of the small model's embedding where the file holds a copy, which is left there."""


class _CommonArguments(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    threshold: Share | None
    input_type: list[str]


def read_official(path: Path) -> OfficialFile:
    """Read a published checkpoint.

    Raises:
        CheckpointError: the file is missing, damaged, holds more than weights and settings, or is of a router that
            is not served here; the message names the key or the tensor.
    """
    content = _require_format(load_weights_only(path), path)
    arguments = _parse(ClassifierArguments, "init_args", _with_effect(content["init_args"]), path)
    common = _parse(_CommonArguments, "common_args", content["common_args"], path)
    if set(common.input_type) != _INPUTS:
        raise CheckpointError(
            f"{path}: common_args.input_type is {common.input_type}, not {sorted(_INPUTS)}, which this class reads",
            field="common_args.input_type",
        )
    state = _floats(content["state_dict"], path)
    embedding = state.pop(_EMBEDDING, None)
    _require_one_output(state, path)
    return OfficialFile(
        path=path,
        arguments=arguments,
        threshold=common.threshold,
        state={name: tensor.float() for name, tensor in state.items()},
        embedding_shape=None if embedding is None else tuple(embedding.shape),
    )


def _require_format(content: object, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is no published router: it holds no dict; take the published file")
    missing = [key for key in _KEYS if key not in content]
    if missing:
        raise CheckpointError(
            f"{path} is no published router: it lacks {', '.join(missing)}. A file that training writes after an epoch "
            "is none either; take the one that it writes at its end (default_router.pt)",
            field=missing[0],
        )
    if content["model_type"] not in get_args(ModelType):
        raise CheckpointError(
            f"{path}: model_type is {content['model_type']!r}; only {get_args(ModelType)[0]} is served, the class of "
            "every published router",
            field="model_type",
        )
    return content


def _with_effect(arguments: object) -> object:
    """Constructor arguments as ours are typed, without those that change no score."""
    if not isinstance(arguments, dict):
        return arguments
    kept = {name: value for name, value in arguments.items() if name not in _WITHOUT_EFFECT}
    if isinstance(kept.get("hidden_dims"), list):
        kept["hidden_dims"] = tuple(kept["hidden_dims"])
    return kept


def _parse(kind: type[_Arguments], key: str, content: object, path: Path) -> _Arguments:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join((key, *map(str, problem["loc"])))
        raise CheckpointError(f"{path}: {name}: {problem['msg']}", field=name) from error


def _floats(state: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path}: state_dict holds no tensors by name", field="state_dict")
    for name, tensor in state.items():
        if not isinstance(name, str) or not _is_plain_float(tensor):
            raise CheckpointError(f"{path}: {name} in state_dict is no plain tensor of floats", field="state_dict")
    return {name: tensor.detach() for name, tensor in state.items()}


def _is_plain_float(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout is torch.strided
        and value.device.type == "cpu"
    )


def _require_one_output(state: Mapping[str, Tensor], path: Path) -> None:
    """One logit's sigmoid is the probability. With three, class 2 of a softmax would be; none was published."""
    output = state.get(_OUTPUT)
    if output is not None and output.ndim == 2 and len(output) != 1:
        raise CheckpointError(
            f"{path}: {_OUTPUT} has {len(output)} outputs; only routers with one are served, as all published ones "
            "are: train one with a binary output",
            field=_OUTPUT,
        )
