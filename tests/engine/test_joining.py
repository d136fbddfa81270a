"""Joined matrices hold what they held, and no memory besides."""

import pytest
import torch
from allroads.engine.joining import join_biases, join_weights
from torch import nn


@pytest.mark.parametrize("moves_all", [False, True])
def test_modules_keep_views_of_what_is_joined(moves_all: bool) -> None:
    modules = [nn.Linear(3, width) for width in (4, 2, 5)]
    rows = torch.randn(7, 3)
    expected = [module(rows) for module in modules]
    first, second = join_weights([modules[:2], modules[2:]], moves_all=moves_all)
    bias = join_biases(modules)
    assert bias is not None
    assert torch.equal(bias.split([4, 2, 5])[1], modules[1].bias)
    for module, whole, begin in zip(modules, (first, first, second), (0, 4, 0), strict=True):
        assert torch.equal(whole[begin : begin + len(module.weight)], module.weight)
        assert module.weight.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    for module, before in zip(modules, expected, strict=True):
        torch.testing.assert_close(module(rows), before)


def test_what_has_no_bias_has_none_together() -> None:
    assert join_biases([nn.Linear(3, 2, bias=False) for _ in range(2)]) is None


def test_the_matrices_of_a_layer_are_all_out_of_their_places_before_one_goes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that the places, which lie side by side, are one."""
    modules = [nn.Linear(3, width) for width in (4, 2, 5)]
    pointers = [module.weight.data_ptr() for module in modules]
    left: list[list[bool]] = []
    clone = torch.Tensor.clone

    def noted(tensor: torch.Tensor) -> torch.Tensor:
        left.append([module.weight.data_ptr() not in pointers for module in modules])
        return clone(tensor)

    monkeypatch.setattr(torch.Tensor, "clone", noted)
    join_weights([modules[:2], modules[2:]], moves_all=True)
    assert left == [[True] * 3] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_no_memory_of_a_gpu_is_lost() -> None:
    """As transformers loads a model: into one piece, by name."""
    sizes = {"down": 1024, "gate": 3072, "up": 3072, "k": 1024, "o": 1024, "q": 2048, "v": 1024}
    layer_bytes = 2 * 1024 * sum(sizes.values())
    torch.cuda.empty_cache()
    piece = torch.empty(8 * layer_bytes, dtype=torch.uint8, device="cuda")
    del piece
    layers = [
        {name: nn.Linear(1024, size, bias=False, device="cuda", dtype=torch.bfloat16) for name, size in sizes.items()}
        for _ in range(8)
    ]
    before = torch.cuda.memory_reserved()
    kept = [
        join_weights(
            [[one[name] for name in group] for group in ("qkv", ("gate", "up"), "o", ("down",))], moves_all=True
        )
        for one in layers
    ]
    torch.cuda.empty_cache()
    assert len(kept) == len(layers)
    assert torch.cuda.memory_reserved() <= before + layer_bytes
