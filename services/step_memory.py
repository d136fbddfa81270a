"""What a service takes of a GPU besides weights and KV: reckoned ahead, so that KV can have the rest.

An upper bound of what was found to be large, not a measurement. What nobody foresees (fragments, a library's own
memory, torch's gathering attention over long texts) is for the part of the GPU that `memory_share` leaves over.

    context      512 MiB a process: CUDA's context, kernels' code, cuBLAS and its workspaces
    workspace    448 MiB, unless `attention` is sdpa: flashinfer's buffers for rows that are cut into parts, one for
                 all recorded shapes and one for the others
    activations  T * (8 * W + 4 * I) * B: at most so many vectors live at once in a layer, for the T tokens of a step.
                 W: the wider of the hidden size and heads * head_dim; I: of the MLP; B: bytes of a number
    logits       T * V * B, as every position's may be wanted, and S * V * 52 for the draw of a token in each of S
                 sequences: logits in float32, sorted, their ids, and weights and sums in float64.
                 V: rows of the output layer; S = min(T, max_running)
    graphs       unless they are off: once more activations and logits of G tokens (`max_graph_tokens`), which all
                 recorded shapes use over again, the draw of 64 tokens, and 256 MiB for the graphs themselves
    router       context and 256 MiB, for up to 1024 rows of float32 and graphs of small products
"""

from collections.abc import Mapping
from typing import Any

from .config import ModelSettings
from .errors import CheckpointError
from .model_size import DTYPE_BYTES
from .vocabulary import read_json

_MIB = 1 << 20
CONTEXT_BYTES = 512 * _MIB
_WORKSPACE_BYTES = 448 * _MIB
_GRAPHS_BYTES = 256 * _MIB
_WIDE_VECTORS, _MLP_VECTORS = 8, 4
_DRAW_BYTES, _RECORDED_DRAWS = 52, 64
ROUTER_BYTES = CONTEXT_BYTES + 256 * _MIB


def model_step_bytes(settings: ModelSettings) -> int:
    """Bytes that a model's service takes of a GPU besides weights and KV, by the table above.

    On each GPU where the model is cut over several: what is not cut counts most.

    Raises:
        CheckpointError: its config.json is missing, damaged, or lacks a size.
    """
    config = read_json(settings.path / "config.json")
    vectors, logits = _bytes_per_token(config.get("text_config", config), settings)
    num_tokens, num_rows = settings.max_step_tokens, min(settings.max_step_tokens, settings.max_running)
    draw = logits // DTYPE_BYTES[settings.dtype] * _DRAW_BYTES
    total = CONTEXT_BYTES + num_tokens * (vectors + logits) + num_rows * draw
    if settings.attention != "sdpa":
        total += _WORKSPACE_BYTES
    if settings.graphs != "off":
        total += _GRAPHS_BYTES + settings.max_graph_tokens * (vectors + logits)
        total += min(num_rows, _RECORDED_DRAWS) * draw
    return total


def _bytes_per_token(config: Mapping[str, Any], settings: ModelSettings) -> tuple[int, int]:
    """Activations of one token, and its logits."""
    try:
        hidden, num_heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        width = max(hidden, num_heads * int(config.get("head_dim") or 0))
        mlp = int(config.get("intermediate_size") or 4 * hidden)
        vectors, logits = _WIDE_VECTORS * width + _MLP_VECTORS * mlp, int(config["vocab_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the config.json in {settings.path} does not tell the size of a step: {error!r}"
        ) from error
    size = DTYPE_BYTES[settings.dtype]
    return vectors * size, logits * size
