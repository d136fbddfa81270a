"""The networks over hidden states against a straightforward reading of their definitions."""

import pytest
import torch
from allroads.router.heads import CiterNetwork, CoLlmHead
from torch import Tensor, nn

HIDDEN = 6


def citer() -> CiterNetwork:
    """As after training: every norm has learned something, and has other averages than those of a batch."""
    torch.manual_seed(0)
    network = CiterNetwork(HIDDEN)
    for name, tensor in network.state_dict().items():
        if name.endswith("running_var"):
            nn.init.uniform_(tensor, 0.5, 2.0)
        else:
            nn.init.normal_(tensor, std=0.5)
    return network.eval()


def citer_by_definition(w: dict[str, Tensor], x: Tensor) -> float:
    """CITER, one row: twice Linear, BatchNorm, ReLU; then Linear and the sigmoid."""
    for layer in ("layers.0.", "layers.1."):
        x = w[layer + "0.weight"] @ x + w[layer + "0.bias"]
        x = (x - w[layer + "1.running_mean"]) / (w[layer + "1.running_var"] + 1e-5).sqrt()
        x = (x * w[layer + "1.weight"] + w[layer + "1.bias"]).clamp(min=0)
    return (1 / (1 + torch.exp(-(w["output.weight"] @ x + w["output.bias"])))).item()


def test_citer_equals_its_definition() -> None:
    network, states = citer(), torch.randn(9, HIDDEN)
    wanted = torch.tensor([citer_by_definition(network.state_dict(), row) for row in states])
    assert wanted.std() > 0.01
    torch.testing.assert_close(network(states).sigmoid(), wanted)


def test_citer_widens_twofold_and_back() -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in citer().state_dict().items()}
    assert shapes.pop("layers.0.0.weight") == (2 * HIDDEN, HIDDEN)
    assert shapes.pop("layers.1.0.weight") == (HIDDEN, 2 * HIDDEN)
    assert shapes.pop("output.weight") == (1, HIDDEN)
    assert shapes.pop("output.bias") == (1,)
    parts = ("0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    assert shapes == {f"layers.{i}.{part}": ((2 - i) * HIDDEN,) for i in (0, 1) for part in parts}


def test_citer_drops_and_normalises_by_the_batch_in_training_only() -> None:
    network, states = citer(), torch.randn(64, HIDDEN)
    served = network(states)
    before = network.state_dict()["layers.0.1.running_mean"].clone()
    assert torch.equal(network(states), served)
    network.train()
    assert not torch.equal(network(states), network(states))
    assert not torch.equal(network.state_dict()["layers.0.1.running_mean"], before)
    assert [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)] == [0.1, 0.1]


def test_co_llm_is_one_row_without_a_bias() -> None:
    head, states = CoLlmHead(HIDDEN), torch.randn(9, HIDDEN)
    assert {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()} == {"row.weight": (1, HIDDEN)}
    wanted = torch.tensor([(head.row.weight[0] * row).sum().item() for row in states])
    torch.testing.assert_close(head(states), wanted)


@pytest.mark.parametrize("network", [citer(), CoLlmHead(HIDDEN)], ids=["citer", "co-llm"])
def test_a_row_scores_the_same_in_any_company(network: nn.Module) -> None:
    states = torch.randn(9, HIDDEN)
    alone = torch.cat([network.eval()(row[None]) for row in states])
    torch.testing.assert_close(network(states), alone)
    torch.testing.assert_close(network(torch.cat((states[:1], 1000 * states[1:])))[:1], alone[:1])
