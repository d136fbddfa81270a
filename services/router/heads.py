"""The networks that score a position by the small model's hidden state alone, after the final norm.

Each gives one logit a row; its sigmoid is the score, float32.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

_CITER_DROPOUT = 0.1


class _Norm(nn.Module):
    """Batch norm that keeps its averages, and no count of batches as torch's own does."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.batch_norm(
            inputs, self.running_mean, self.running_var, self.weight, self.bias, training=self.training
        )


class CiterNetwork(nn.Module):
    """CITER's MLP (arXiv 2502.01976): d -> 2d -> d, each with batch norm, ReLU and dropout, then one logit.

    Of "the small model suffices here". In eval mode the norms use what training averaged, so rows are
    independent of the batch.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList((_layer(hidden_size, 2 * hidden_size), _layer(2 * hidden_size, hidden_size)))
        self.output = nn.Linear(hidden_size, 1)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """float32 [n, hidden size] -> float32 [n]."""
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        logits: Tensor = self.output(hidden_states)
        return logits.squeeze(-1)


def _layer(width: int, output: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, output), _Norm(output), nn.ReLU(), nn.Dropout(_CITER_DROPOUT))


class CoLlmHead(nn.Module):
    """Co-LLM's extra row of the small model's output layer (arXiv 2403.03870): "the large model writes here".

    It is kept apart from that layer, so there is no row to mask when sampling.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.row = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """float32 [n, hidden size] -> float32 [n]."""
        logits: Tensor = self.row(hidden_states)
        return logits.squeeze(-1)
