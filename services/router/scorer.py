"""Scores batches of features with a loaded router."""

import torch
from torch import Tensor

from ..errors import InvalidArgument
from .classifier import classify
from .loaded_router import LoadedRouter


class Scorer:
    """Rows are independent: NaN in one gives NaN there and changes no other."""

    def __init__(self, router: LoadedRouter, device: str = "cpu") -> None:
        self.manifest = router.manifest
        self.num_parameters = router.classifier.num_parameters
        self._weights = dict(router.classifier.to(device).state_dict())
        self._embedding = router.embedding.to(device)
        self._device = device

    def check(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> None:
        """See that a batch can be scored.

        Raises:
            InvalidArgument: a shape, dtype or token id is wrong; the message says which.
        """
        arguments = self.manifest.init_args
        rows = token_ids.shape[0] if token_ids.ndim == 1 else -1
        _require(token_ids, "token_ids", (rows,), torch.int64)
        _require(top_logits, "top_logits", (rows, arguments.logits_size), torch.float32)
        _require(hidden_states, "hidden_states", (rows, arguments.hidden_states_size), torch.float32)
        ids = token_ids.tolist()
        if ids and not 0 <= min(ids) <= max(ids) < len(self._embedding):
            raise InvalidArgument(
                f"token_ids must be ids below {len(self._embedding)}, the rows of the embedding", field="token_ids"
            )

    @torch.inference_mode()
    def score(self, top_logits: Tensor, hidden_states: Tensor, token_ids: Tensor) -> Tensor:
        """Probabilities that the proposals diverge, float32 [n] on the CPU, of a batch that was checked.

        Args:
            top_logits: float32 [n, num_top_logits], raw, largest first.
            hidden_states: float32 [n, hidden size], after the final norm.
            token_ids: int64 [n], the proposals.
        """
        embeddings = self._embedding[token_ids.to(self._device)]
        arguments, device = self.manifest.init_args, self._device
        logits = classify(self._weights, arguments, hidden_states.to(device), embeddings, top_logits.to(device))
        probabilities: Tensor = logits.sigmoid().cpu()
        return probabilities


def _require(tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise InvalidArgument(
            f"{name} must be {dtype} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}", field=name
        )
