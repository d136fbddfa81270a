"""R2R's classifier (arXiv 2505.21600, section 3.3), with the names and shapes of the published checkpoints.

The small model's embedding is no part of it: the embedding rows of the proposed tokens come in as an input.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from ..errors import CheckpointError

ModelType = Literal["HiddenStatesTokenLMHeadLogitsClassifier"]
Size = Annotated[int, Field(gt=0, le=1 << 20)]


class ClassifierArguments(BaseModel):
    """Constructor arguments, named and defaulted as in the published `init_args`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    hidden_states_size: Size = 1536
    logits_size: Size = 100
    """How many of the largest logits it reads."""
    hidden_dims: Annotated[tuple[Size, ...], Field(min_length=1, max_length=64)] = (256, 512, 256)
    expansion_factor: Annotated[int, Field(gt=0, le=64)] = 4
    dropout_rate: Annotated[float, Field(ge=0, lt=1)] = 0.3
    use_position_embedding: bool = False
    normalize_input: bool = False
    freeze_lm_head: bool = False


def classify(
    weights: Mapping[str, Tensor],
    arguments: ClassifierArguments,
    hidden_states: Tensor,
    token_embeddings: Tensor,
    top_logits: Tensor,
    *,
    dropout: float = 0.0,
) -> Tensor:
    """One logit a row of "this proposal diverges", float32 [n]; its sigmoid is the probability.

    A function of plain tensors, since a call of a small module costs as much again as its arithmetic.

    Args:
        weights: as the published checkpoints name and shape them.
        arguments: what the weights were made with.
        hidden_states: float32 [n, hidden_states_size], after the final norm.
        token_embeddings: float32 [n, embedding size], input embeddings of the proposed tokens.
        top_logits: float32 [n, logits_size], raw, largest first.
        dropout: rate, for training.
    """
    if arguments.normalize_input:
        hidden_states = _normalized(weights, "layer_norm_hidden_states", hidden_states)
        token_embeddings = _normalized(weights, "layer_norm_token", token_embeddings)
        top_logits = top_logits.softmax(dim=-1)
    logits = _projected(weights, "logits_projection", top_logits)
    inputs = torch.cat((hidden_states, token_embeddings, logits), dim=-1)
    inputs = _projected(weights, "backbone.input_projection", _projected(weights, "combined_projection", inputs))
    for index, (size, output) in enumerate(_block_sizes(arguments.hidden_dims)):
        block = f"backbone.blocks.{index}"
        inner = _normalized(weights, f"{block}.layer_norm", inputs)
        inner = _dropped(functional.gelu(_projected(weights, f"{block}.mlp.0", inner)), dropout)
        inner = _dropped(_projected(weights, f"{block}.mlp.3", inner), dropout)
        inputs = inner + (inputs if size == output else _projected(weights, f"{block}.dim_change", inputs))
    inputs = _normalized(weights, "backbone.output_layer.0", inputs)
    return _projected(weights, "backbone.output_layer.1", inputs).squeeze(-1)


class HiddenStatesTokenLMHeadLogitsClassifier(nn.Module):
    """Holds the weights of `classify` under their published names.

    Raises:
        CheckpointError: the arguments ask for position embeddings, which the published class never finished.
    """

    def __init__(self, arguments: ClassifierArguments, embedding_size: int) -> None:
        super().__init__()
        if arguments.use_position_embedding:
            raise CheckpointError(
                "init_args.use_position_embedding is true, but the published class cannot use position embeddings: "
                "retrain this router without",
                field="init_args.use_position_embedding",
            )
        self.arguments = arguments
        hidden, dims = arguments.hidden_states_size, arguments.hidden_dims
        if arguments.normalize_input:
            self.layer_norm_hidden_states = nn.LayerNorm(hidden)
            self.layer_norm_token = nn.LayerNorm(embedding_size)
        self.logits_projection = nn.Linear(arguments.logits_size, hidden)
        self.combined_projection = nn.Linear(hidden + embedding_size + hidden, dims[0])
        self.backbone = nn.ModuleDict(
            {
                "input_projection": nn.Linear(dims[0], dims[0]),
                "blocks": nn.ModuleList(_block(*sizes, arguments.expansion_factor) for sizes in _block_sizes(dims)),
                "output_layer": nn.ModuleList((nn.LayerNorm(dims[-1]), nn.Linear(dims[-1], 1))),
            }
        )

    def forward(self, hidden_states: Tensor, token_embeddings: Tensor, top_logits: Tensor) -> Tensor:
        """As `classify`, with dropout while training."""
        dropout = self.arguments.dropout_rate if self.training else 0.0
        weights = dict(self.named_parameters())
        return classify(weights, self.arguments, hidden_states, token_embeddings, top_logits, dropout=dropout)

    @property
    def output(self) -> nn.Linear:
        """The last layer."""
        layer = self.get_submodule("backbone.output_layer.1")
        if not isinstance(layer, nn.Linear):
            raise TypeError("the last layer is no linear one")
        return layer

    @property
    def num_parameters(self) -> int:
        """Parameters, without the small model's embedding."""
        return sum(parameter.numel() for parameter in self.parameters())


def _block(size: int, output: int, expansion: int) -> nn.ModuleDict:
    """Weights of x -> R(x) + mlp(norm(x)); R is a projection where the width changes, and nothing elsewhere."""
    # The published perceptron counts its activation and dropouts: its linear layers are 0 and 3.
    mlp = nn.ModuleDict({"0": nn.Linear(size, expansion * size), "3": nn.Linear(expansion * size, output)})
    block = nn.ModuleDict({"layer_norm": nn.LayerNorm(size), "mlp": mlp})
    if size != output:
        block["dim_change"] = nn.Linear(size, output)
    return block


def _block_sizes(dims: tuple[int, ...]) -> list[tuple[int, int]]:
    """Widths that each block takes and gives; the last keeps its own."""
    return list(zip(dims, (*dims[1:], dims[-1]), strict=True))


def _projected(weights: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    return functional.linear(inputs, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _normalized(weights: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    return torch.layer_norm(inputs, inputs.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)


def _dropped(inputs: Tensor, rate: float) -> Tensor:
    return functional.dropout(inputs, rate) if rate else inputs
