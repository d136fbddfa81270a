"""One forward pass over a packed batch of rows."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..cuda.launch_counts import LaunchCounts
from ..cuda.upload import upload
from .attention import AttentionBackend, Plan, Row


@dataclass(frozen=True, slots=True)
class Output:
    """What a pass gives at the positions that were asked for, row after row."""

    logits: Tensor
    """[outputs, output rows], raw, padding rows of the vocabulary at -inf."""
    hidden_states: Tensor
    """[outputs, hidden], after the final norm: what the LM head multiplies."""
    greedy: Tensor
    """int64 [outputs]: the likeliest token of each, of equals the lowest id."""
    highest: Tensor
    """[outputs]: its logit. Where that is not finite no token can be told: there is NaN in the row, something is
    infinitely likely, or nothing is possible."""

    @classmethod
    def of(cls, logits: Tensor, hidden_states: Tensor) -> "Output":
        """With what is read off the logits, without waiting for the device."""
        highest, greedy = logits.max(dim=-1)
        return cls(logits, hidden_states, greedy, highest)


class Runner(Protocol):
    """Runs the steps of one model."""

    counts: LaunchCounts
    """How often a step was replayed as a recording, and how often it was not."""

    def forward(self, rows: list[Row], token_ids: list[int]) -> Output:
        """Compute the KV of the rows' tokens, and logits and hidden state at the last `num_outputs` of each row.

        What it gives is the caller's own.

        Args:
            rows: rows of the step.
            token_ids: the rows' new tokens, end to end.
        """
        ...


class Forward(Protocol):
    """A model's pass over packed tokens."""

    def __call__(self, token_ids: Tensor, positions: Tensor, outputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """Logits [outputs, output rows] and post-norm hidden states [outputs, hidden].

        Args:
            token_ids: int64 [tokens].
            positions: int64 [tokens], of each token in its own sequence.
            outputs: int64 [outputs], indices into the tokens.
            plan: what attention needs.
        """
        ...


class TransformersForward:
    """The whole `forward` of any causal model of transformers, unmodified but for its attention."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._hidden_states = torch.empty(0)
        # The head's input, and not a call of the inner model and the head by ourselves: some models scale or
        # cap their logits after the head.
        model.get_output_embeddings().register_forward_pre_hook(self._keep_hidden_states)

    def __call__(self, token_ids: Tensor, positions: Tensor, outputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        """See `Forward`."""
        result: Any = self._model(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=outputs,
            plan=plan,
        )
        return result.logits[0], self._hidden_states[0]

    def _keep_hidden_states(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._hidden_states = inputs[0]


class ModelRunner:
    """Feeds packed tokens through a model whose attention reads and writes the backend's KV."""

    def __init__(self, forward: Forward, backend: AttentionBackend, num_tokens: int, device: torch.device) -> None:
        """`num_tokens`: ids that the tokenizer knows; rows of the output layer beyond are padding."""
        self.counts = LaunchCounts()
        self._forward = forward
        self._backend = backend
        self._num_tokens = num_tokens
        self._device = device

    @torch.inference_mode()
    def forward(self, rows: list[Row], token_ids: list[int]) -> Output:
        """See `Runner.forward`."""
        self.counts.num_eager["not recorded"] += 1
        positions: list[int] = []
        outputs: list[int] = []
        for row in rows:
            positions += range(row.start, row.end)
            outputs += range(len(positions) - row.num_outputs, len(positions))
        # One copy for all three.
        numbers, end = upload(token_ids + positions + outputs, self._device), len(token_ids)
        logits, hidden_states = self._forward(
            numbers[:end], numbers[end : 2 * end], numbers[2 * end :], self._backend.plan(rows)
        )
        if logits.shape[-1] > self._num_tokens:
            logits[:, self._num_tokens :] = float("-inf")
        return Output.of(logits, hidden_states)
