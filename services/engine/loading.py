"""Load any Hugging Face causal LM from a directory, weights from safetensors only."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils import logging as transformers_logging

from ..errors import CheckpointError
from .attention import ATTENTION_NAME

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(directory: Path, *, dtype: str, device: str, tensor_parallel: int = 1) -> PreTrainedModel:
    """A model in eval mode, its attention ours.

    Args:
        directory: in the Hugging Face layout.
        dtype: of the weights, a key of `DTYPES`.
        device: where they go. Tensor by tensor where accelerate is there to help; else by way of main memory, which
            then must hold them all.
        tensor_parallel: processes that have joined to run it (`tensor_parallel.join`), each of which reads its part
            and gets whole logits and hidden states.

    Raises:
        CheckpointError: files are missing, damaged, or do not fit each other.
    """
    _require_files(directory)
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory,
            dtype=DTYPES[dtype],
            attn_implementation=ATTENTION_NAME,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **_placement(device, tensor_parallel),
        )
    except Exception as error:  # the library raises many kinds for a damaged file
        raise CheckpointError(f"the model in {directory} cannot be loaded: {error}") from error
    model, report = loaded
    for kind in ("missing_keys", "mismatched_keys"):
        if report.get(kind):
            raise CheckpointError(
                f"the model in {directory} does not fit its config: {kind} {sorted(report[kind])[:3]}"
            )
    placed: PreTrainedModel = model.to(device).eval()
    return placed


def _placement(device: str, tensor_parallel: int) -> dict[str, Any]:
    """What tells transformers where a model goes. It knows the device of a part from `tensor_parallel.join`."""
    if tensor_parallel > 1:
        return {"distributed_config": DistributedConfig(tp_size=tensor_parallel, tp_plan="auto")}
    is_direct = device != "cpu" and find_spec("accelerate") is not None
    return {"device_map": {"": torch.device(device)}} if is_direct else {}


def load_config(directory: Path) -> PretrainedConfig:
    """The text configuration of a model.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    _require_files(directory)
    try:
        config: Any = AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # as above
        raise CheckpointError(f"the configuration in {directory} cannot be read: {error}") from error
    text_config: PretrainedConfig = config.get_text_config()
    return text_config


def _require_files(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        raise CheckpointError(f"no config.json in {directory}: the path must be a model in the Hugging Face layout")
    if not any(directory.glob("*.safetensors")):
        raise CheckpointError(f"no *.safetensors in {directory}: convert the weights to safetensors first")
