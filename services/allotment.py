"""How the models on one device share its memory.

A request reserves KV on every tier that it may visit, so the tier with the least bounds how many requests
run, and what another has beyond that is idle. Hence the tiers get a common number of KV tokens, the largest
that fits.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import StartupError


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """What one model takes of its device."""

    name: str
    weight_bytes: int
    kv_bytes_per_token: int
    block_size_tokens: int
    num_kv_tokens: int | None
    """None where it is to be found."""

    def kv_bytes(self, num_tokens: int) -> int:
        """Bytes of a KV pool for so many tokens, which has whole blocks only."""
        return self.whole_blocks(num_tokens) * self.kv_bytes_per_token

    def whole_blocks(self, num_tokens: int) -> int:
        """The largest number of tokens up to this one that fills whole blocks."""
        return num_tokens - num_tokens % self.block_size_tokens


def allot(device: str, budget_bytes: int, models: Sequence[ModelNeeds]) -> dict[str, int]:
    """KV tokens of those models on a device that state no number, by name, each in whole blocks of its own.

    Raises:
        StartupError: weights, stated numbers, and the largest block of the others in common do not fit; the
            message has the numbers.
    """
    weight_bytes = sum(model.weight_bytes for model in models)
    stated_bytes = sum(model.kv_bytes(model.num_kv_tokens) for model in models if model.num_kv_tokens is not None)
    open_models = [model for model in models if model.num_kv_tokens is None]
    least_tokens = max((model.block_size_tokens for model in open_models), default=0)
    least_bytes = weight_bytes + stated_bytes + _kv_bytes(open_models, least_tokens)
    if budget_bytes < least_bytes:
        raise StartupError(
            f"memory_bytes: {budget_bytes} bytes of {device} are too few: weights take {weight_bytes}, KV of a "
            f"stated number of tokens {stated_bytes} ({', '.join(map(_described, models))}); raise memory_bytes to "
            f"{least_bytes} at least, or choose smaller num_kv_tokens, a smaller dtype or another device",
            field="memory_bytes",
        )
    common = largest_common_kv_tokens(budget_bytes - weight_bytes - stated_bytes, open_models)
    return {model.name: model.whole_blocks(common) for model in open_models}


def largest_common_kv_tokens(kv_budget_bytes: int, models: Sequence[ModelNeeds]) -> int:
    """The largest number of KV tokens for which all models have room together, each in whole blocks of its own.

    0 for no models.
    """
    bytes_per_token = sum(model.kv_bytes_per_token for model in models)
    if not bytes_per_token:
        return 0
    # A pool is short of the common number by less than a block, so neither this nor anything above it fits.
    too_many = kv_budget_bytes // bytes_per_token + max(model.block_size_tokens for model in models)
    return bisect_right(range(too_many), kv_budget_bytes, key=lambda tokens: _kv_bytes(models, tokens)) - 1


def _kv_bytes(models: Sequence[ModelNeeds], num_tokens: int) -> int:
    return sum(model.kv_bytes(num_tokens) for model in models)


def _described(model: ModelNeeds) -> str:
    if model.kv_bytes_per_token == 0:
        return f"{model.name}: weights {model.weight_bytes}"
    number = "auto" if model.num_kv_tokens is None else f"{model.num_kv_tokens} tokens"
    return f"{model.name}: weights {model.weight_bytes}, KV {model.kv_bytes_per_token} a token, {number}"
