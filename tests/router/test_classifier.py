"""The classifier against the published shapes, and against a straightforward reading of its definition."""

import math

import pytest
import torch
from allroads.errors import CheckpointError
from allroads.router.classifier import ClassifierArguments, HiddenStatesTokenLMHeadLogitsClassifier
from torch import Tensor

HIDDEN, EMBEDDING, TOP = 10, 6, 5


def make(**arguments: object) -> HiddenStatesTokenLMHeadLogitsClassifier:
    torch.manual_seed(0)
    settings = {"hidden_states_size": HIDDEN, "logits_size": TOP, "hidden_dims": (8, 8, 12), "expansion_factor": 3}
    classifier = HiddenStatesTokenLMHeadLogitsClassifier(
        ClassifierArguments.model_validate(settings | arguments), EMBEDDING
    )
    for parameter in classifier.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return classifier.eval()


def normalized(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def reference(w: dict[str, Tensor], hidden: Tensor, token: Tensor, top: Tensor, *, normalize: bool) -> Tensor:
    """Section 1 of the facts, line by line."""
    if normalize:
        hidden = normalized(hidden, w["layer_norm_hidden_states.weight"], w["layer_norm_hidden_states.bias"])
        token = normalized(token, w["layer_norm_token.weight"], w["layer_norm_token.bias"])
        top = top.exp() / top.exp().sum(-1, keepdim=True)
    top = top @ w["logits_projection.weight"].T + w["logits_projection.bias"]
    x = torch.cat([hidden, token, top], -1) @ w["combined_projection.weight"].T + w["combined_projection.bias"]
    x = x @ w["backbone.input_projection.weight"].T + w["backbone.input_projection.bias"]
    for i in range(3):
        at = f"backbone.blocks.{i}."
        y = normalized(x, w[at + "layer_norm.weight"], w[at + "layer_norm.bias"])
        y = y @ w[at + "mlp.0.weight"].T + w[at + "mlp.0.bias"]
        y = 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))
        y = y @ w[at + "mlp.3.weight"].T + w[at + "mlp.3.bias"]
        if at + "dim_change.weight" in w:
            x = x @ w[at + "dim_change.weight"].T + w[at + "dim_change.bias"]
        x = x + y
    x = normalized(x, w["backbone.output_layer.0.weight"], w["backbone.output_layer.0.bias"])
    return (x @ w["backbone.output_layer.1.weight"].T + w["backbone.output_layer.1.bias"])[:, 0]


@pytest.mark.parametrize("normalize", [False, True])
def test_equals_its_definition(normalize: bool) -> None:
    classifier = make(normalize_input=normalize)
    hidden, token, top = torch.randn(7, HIDDEN), torch.randn(7, EMBEDDING), torch.randn(7, TOP)
    wanted = reference(classifier.state_dict(), hidden, token, top, normalize=normalize)
    torch.testing.assert_close(classifier(hidden, token, top), wanted, rtol=1e-4, atol=1e-5)


def test_width_changes_only_where_widths_differ() -> None:
    names = make().state_dict()
    assert "backbone.blocks.1.dim_change.weight" in names
    assert not any("blocks.0.dim_change" in name or "blocks.2.dim_change" in name for name in names)
    assert names["backbone.blocks.2.mlp.3.weight"].shape == (12, 36)


@pytest.mark.parametrize(
    ("hidden", "count"), [(1024, 54_677_505), (1536, 56_302_081), (2048, 57_926_657), (2560, 59_551_233)]
)
def test_published_shapes_have_the_published_number_of_parameters(hidden: int, count: int) -> None:
    arguments = ClassifierArguments(hidden_states_size=hidden, hidden_dims=(1024,) * 6, dropout_rate=0.1)
    with torch.device("meta"):
        classifier = HiddenStatesTokenLMHeadLogitsClassifier(arguments, hidden)
    assert classifier.num_parameters == count
    assert len(classifier.state_dict()) == 46


def test_position_embeddings_are_refused() -> None:
    with pytest.raises(CheckpointError, match="position embeddings"):
        make(use_position_embedding=True)
