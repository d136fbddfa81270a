"""The forward pass of Llama-like decoders in fewer and larger operations than transformers takes.

For small models on a CPU the pass is bound by the number of operations, not by memory or arithmetic. Here
query, key and value are one product, gate and up another, residuals are added by the product before them,
and RoPE turns queries and keys together: about 20 operations a layer instead of 50. The same order of
operations as transformers, and compared with it before it is used.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel

from .attention import Plan
from .joining import join_biases, join_weights
from .projection import Projection

MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of RoPE whose angles depend on the position alone."""


def why_unsupported(model: PreTrainedModel) -> str:  # noqa: PLR0911 (one for each reason)
    """Why a model cannot be run by `FusedDecoder`; empty where it can."""
    config = model.config
    if (getattr(model, "_tp_size", None) or 1) > 1:
        return "its matrices are cut over several processes"
    if config.model_type not in MODEL_TYPES:
        return f"{config.model_type} is none of {', '.join(sorted(MODEL_TYPES))}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or ()) or (
        getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    ):
        return "it attends through a sliding window"
    if (rope := _rope_kind(config)) not in _STATIC_ROPE:
        return f"its RoPE is {rope}"
    layer = _layers(model)[0]
    if any(part.bias is not None for part in (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.down_proj)):
        return "its output or MLP projections have a bias"
    return ""


class FusedDecoder:
    """Runs a model that `why_unsupported` has nothing against."""

    def __init__(self, model: PreTrainedModel, max_context: int) -> None:
        """Join the model's parameters; the model goes on working, on views of them.

        `max_context`: positions for which RoPE's angles are worked out ahead.
        """
        inner: Any = model.model
        config = model.config
        self._embedding: Tensor = inner.embed_tokens.weight
        self._head = Projection(cast("nn.Linear", model.get_output_embeddings()).weight)
        self._norm = _Norm(inner.norm.weight, config.rms_norm_eps)
        self._layers = [_Layer.of(layer, config.rms_norm_eps) for layer in _layers(model)]
        cos, sin = inner.rotary_emb(self._embedding[:1], torch.arange(max_context, device=self._embedding.device)[None])
        half = cos.shape[-1] // 2
        # Turning a pair is x * cos + (x with halves swapped) * sin, with the sign of the swap put into sin.
        self._cos, self._sin = cos[0].clone(), torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)

    def __call__(self, token_ids: Tensor, positions: Tensor, outputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """See `runner.Forward`."""
        hidden = functional.embedding(token_ids, self._embedding)
        cos = self._cos.index_select(0, positions).unsqueeze(1)
        sin = self._sin.index_select(0, positions).unsqueeze(1)
        for index, layer in enumerate(self._layers):
            hidden = layer.forward(index, hidden, cos, sin, plan)
        chosen = self._norm(hidden if len(outputs) == len(hidden) else hidden.index_select(0, outputs))
        return self._head(chosen), chosen


class _Norm:
    """RMSNorm (arXiv 1910.07467). On the CPU in fp32 by the fewest operations, elsewhere by torch's own."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self._weight, self._epsilon = weight, epsilon
        width = weight.shape[-1]
        self._by_hand = weight.device.type == "cpu" and weight.dtype == torch.float32
        # The sum of squares stands for their mean, so the root of the width goes into the weight.
        self._scaled_weight, self._scaled_epsilon = weight * width**0.5, epsilon * width

    def __call__(self, hidden: Tensor) -> Tensor:
        if not self._by_hand:
            return functional.rms_norm(hidden, self._weight.shape[-1:], None, self._epsilon) * self._weight
        norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scaled: Tensor = hidden * norm.square_().add_(self._scaled_epsilon).rsqrt_()
        return scaled.mul_(self._scaled_weight)


@dataclass(frozen=True, slots=True)
class _Layer:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float
    input_norm: _Norm
    qkv: Projection
    """hidden to (heads + 2 * kv_heads) * head_dim"""
    qk_norm: _Norm | None
    """Of each head of query and key: weight [heads + kv_heads, head_dim]."""
    output: Projection
    mlp_norm: _Norm
    gate_up: Projection
    """hidden to 2 * intermediate"""
    down: Projection

    @classmethod
    def of(cls, layer: Any, epsilon: float) -> "_Layer":
        attention, mlp = layer.self_attn, layer.mlp
        width = attention.head_dim
        num_heads = attention.q_proj.weight.shape[0] // width
        num_kv_heads = attention.k_proj.weight.shape[0] // width
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        qkv, gate_up, output, down = join_weights(
            [projections, [mlp.gate_proj, mlp.up_proj], [attention.o_proj], [mlp.down_proj]],
            moves_all=attention.q_proj.weight.is_cuda,
        )
        qk_norm = None
        if hasattr(attention, "q_norm"):
            both = [attention.q_norm.weight.expand(num_heads, -1), attention.k_norm.weight.expand(num_kv_heads, -1)]
            qk_norm = _Norm(torch.cat(both), epsilon)
        return cls(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=width,
            scaling=attention.scaling,
            input_norm=_Norm(layer.input_layernorm.weight, epsilon),
            qkv=Projection(qkv, join_biases(projections)),
            qk_norm=qk_norm,
            output=Projection(output),
            mlp_norm=_Norm(layer.post_attention_layernorm.weight, epsilon),
            gate_up=Projection(gate_up),
            down=Projection(down),
        )

    def forward(self, index: int, hidden: Tensor, cos: Tensor, sin: Tensor, plan: Plan) -> Tensor:
        """[tokens, hidden] to the same."""
        qkv = self.qkv(self.input_norm(hidden)).view(hidden.shape[0], -1, self.head_dim)
        qk = qkv[:, : self.num_heads + self.num_kv_heads]
        normed = qk if self.qk_norm is None else self.qk_norm(qk)
        torch.addcmul(normed * cos, normed.roll(self.head_dim // 2, -1), sin, out=qk)
        attended = plan.attend(index, qkv[:, : self.num_heads], qkv[:, self.num_heads :], self.scaling)
        hidden = self.output.add_to(hidden, attended)
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        return self.down.add_to(hidden, functional.silu(gate).mul_(up))


def _layers(model: PreTrainedModel) -> list[Any]:
    inner: Any = model.model
    return list(inner.layers)


def _rope_kind(config: PretrainedConfig) -> str:
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return str(parameters.get("rope_type", parameters.get("type", "default")))
