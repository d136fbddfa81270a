"""Sizes of the models of the published pairs, as their config.json on the Hugging Face hub states them.

Parameters and KV follow from these; the tests compare them with what the model cards count and with what
transformers builds.
"""

from dataclasses import dataclass
from typing import Any

from allroads.allotment import ModelNeeds

_BFLOAT16 = 2
_FLOAT32 = 4
_CONTEXT = 40_960
_ROUTER_WIDTHS = (1024,) * 6
_ROUTER_LOGITS = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2 or Qwen3 model."""

    model_type: str
    """As transformers names it."""
    hidden_size: int
    intermediate_size: int
    """Of the MLP; of one expert where there are some."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int = 151_936
    head_dim: int = 128
    is_tied: bool = False
    """Whether the output layer is the input embedding."""
    num_experts: int = 0
    num_active_experts: int = 0
    max_context: int = _CONTEXT

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All of them; a tied output layer counts once."""
        return self._count(self.num_experts or 1)

    @property
    def num_read(self) -> int:
        """Parameters that a step of one token reads: all but an input embedding of its own and idle experts."""
        return self._count(self.num_active_experts or 1) - (0 if self.is_tied else self.embedding)

    @property
    def kv_bytes_per_token(self) -> int:
        """In bfloat16."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _BFLOAT16

    @property
    def weight_bytes(self) -> int:
        """In bfloat16."""
        return self.num_parameters * _BFLOAT16

    def needs(self, name: str) -> ModelNeeds:
        """What it takes of its GPU, with as many KV tokens as fit."""
        return ModelNeeds(name, self.weight_bytes, self.kv_bytes_per_token, 16, None)

    def config(self) -> dict[str, Any]:
        """For transformers. No experts: those are in tables only."""
        return {
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "tie_word_embeddings": self.is_tied,
            "max_position_embeddings": self.max_context,
        }

    def _count(self, num_experts: int) -> int:
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = 2 * self.hidden_size * heads + 2 * self.hidden_size * kv_heads
        # Qwen2 has biases on query, key and value, Qwen3 a norm of each head's query and key.
        attention += heads + 2 * kv_heads if self.model_type == "qwen2" else 2 * self.head_dim
        mlp = 3 * self.hidden_size * self.intermediate_size * num_experts + self.num_experts * self.hidden_size
        layer = attention + mlp + 2 * self.hidden_size
        return self.num_layers * layer + self.hidden_size + self.embedding * (1 if self.is_tied else 2)


SHAPES = {
    "Qwen3-0.6B": Shape("qwen3", 1024, 3072, 28, 16, 8, is_tied=True),
    "Qwen3-1.7B": Shape("qwen3", 2048, 6144, 28, 16, 8, is_tied=True),
    "Qwen3-4B": Shape("qwen3", 2560, 9728, 36, 32, 8, is_tied=True),
    "Qwen3-8B": Shape("qwen3", 4096, 12_288, 36, 32, 8),
    "Qwen3-14B": Shape("qwen3", 5120, 17_408, 40, 40, 8),
    "Qwen3-32B": Shape("qwen3", 5120, 25_600, 64, 64, 8),
    "Qwen3-30B-A3B": Shape("qwen3_moe", 2048, 768, 48, 32, 4, num_experts=128, num_active_experts=8),
    "DeepSeek-R1-Distill-Qwen-1.5B": Shape("qwen2", 1536, 8960, 28, 12, 2, max_context=131_072),
    "DeepSeek-R1-Distill-Qwen-32B": Shape(
        "qwen2", 5120, 27_648, 64, 40, 8, vocab_size=152_064, max_context=131_072
    ),
}  # fmt: skip
"""By their names on the hub: Qwen/NAME and deepseek-ai/NAME."""

TINY_SLM = Shape("qwen3", 64, 192, 2, 4, 2, vocab_size=512, head_dim=64, is_tied=True, max_context=2048)
TINY_LLM = Shape("qwen3", 128, 384, 8, 4, 2, vocab_size=512, head_dim=64, max_context=2048)
"""A pair with which everything can be run anywhere; its heads are as wide as attention on GPUs wants them."""


@dataclass(frozen=True, slots=True)
class RouterShape:
    """R2R's classifier with the sizes of the published checkpoints (arXiv 2505.21600)."""

    logits_size: int = _ROUTER_LOGITS
    hidden_dims: tuple[int, ...] = _ROUTER_WIDTHS

    def num_parameters(self, slm: Shape) -> int:
        """Without the small model's embedding, for blocks of one width that are four times as wide within."""
        width, hidden = self.hidden_dims[0], slm.hidden_size
        inputs = (self.logits_size + 1) * hidden + 3 * hidden * width + width + (width + 1) * width
        block = 2 * width + (width + 1) * 4 * width + (4 * width + 1) * width
        return inputs + len(self.hidden_dims) * block + 2 * width + width + 1

    def weight_bytes(self, slm: Shape) -> int:
        """With its copy of the small model's embedding, all in float32."""
        return (self.num_parameters(slm) + slm.embedding) * _FLOAT32

    def needs(self, slm: Shape) -> ModelNeeds:
        """What it takes of its GPU."""
        return ModelNeeds("router", self.weight_bytes(slm), 0, 1, 0)


ROUTER = RouterShape()
TINY_ROUTER = RouterShape(8, (32, 32))

PAIRS = {
    "qwen3-0.6b-8b": ("Qwen3-0.6B", "Qwen3-8B"),
    "qwen3-0.6b-30b-a3b": ("Qwen3-0.6B", "Qwen3-30B-A3B"),
    "qwen3-0.6b-32b": ("Qwen3-0.6B", "Qwen3-32B"),
    "qwen3-1.7b-8b": ("Qwen3-1.7B", "Qwen3-8B"),
    "qwen3-4b-8b": ("Qwen3-4B", "Qwen3-8B"),
    "r1-distill-qwen-1.5b-32b": ("DeepSeek-R1-Distill-Qwen-1.5B", "DeepSeek-R1-Distill-Qwen-32B"),
}
"""Pairs with a published router, by their file in `configs`."""
