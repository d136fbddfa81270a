"""One forward pass over a packed batch of rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention import AttentionBackend, Row


@dataclass(frozen=True, slots=True)
class Output:
    """What a pass gives at each row's last token."""

    logits: Tensor
    """[rows, output rows], raw, padding rows of the vocabulary at -inf."""
    hidden_states: Tensor
    """[rows, hidden], after the final norm: what the LM head multiplies."""


class ModelRunner:
    """Feeds packed tokens through a model whose attention reads and writes the backend's KV."""

    def __init__(self, model: PreTrainedModel, backend: AttentionBackend, num_tokens: int) -> None:
        """`num_tokens`: ids that the tokenizer knows; rows of the output layer beyond are padding."""
        self._model = model
        self._backend = backend
        self._num_tokens = num_tokens
        self._device = next(model.parameters()).device
        self._hidden_states = torch.empty(0)
        model.get_output_embeddings().register_forward_pre_hook(self._keep_hidden_states)

    @torch.inference_mode()
    def forward(self, rows: list[Row], token_ids: list[int]) -> Output:
        """Compute the KV of the rows' tokens, and logits and hidden state at the last token of each row.

        Args:
            rows: rows of the step.
            token_ids: the rows' new tokens, end to end.
        """
        ids = torch.tensor([token_ids], device=self._device)
        positions = torch.tensor([[p for row in rows for p in range(row.start, row.end)]], device=self._device)
        last, end = [], 0
        for row in rows:
            end += row.end - row.start
            last.append(end - 1)
        result: Any = self._model(
            input_ids=ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=torch.tensor(last, device=self._device),
            plan=self._backend.plan(rows),
        )
        logits, hidden_states = result.logits[0], self._hidden_states
        if logits.shape[-1] > self._num_tokens:
            logits[:, self._num_tokens :] = float("-inf")
        return Output(logits, hidden_states[0])

    def _keep_hidden_states(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._hidden_states = inputs[0]
