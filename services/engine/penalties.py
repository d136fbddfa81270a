"""What a request changes in a model's logits before a token is chosen: penalties, bias, grammar, and no early end.

Each is a handful of cells in a batch of logits, which are gathered over all rows and changed at once. A
cell at -inf, such as one of padding, stays so.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from itertools import repeat

import torch
from torch import Tensor

from ..cuda.upload import upload_tensor
from .masking import mask_logits
from .sampling_params import Row

_NEVER = float("-inf")


class _Cells:
    """Cells of a batch of logits, each with a number."""

    def __init__(self, logits: Tensor) -> None:
        self._device = logits.device
        # Not lists: a tensor is made of these without a look at each number.
        self._rows = array("q")
        self._token_ids = array("q")
        self._values = array("f")

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, row: int, token_ids: Collection[int], values: Iterable[float]) -> None:
        """Cells of one row."""
        self._rows.extend(repeat(row, len(token_ids)))
        self._token_ids.extend(token_ids)
        self._values.extend(values)

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """An index into the logits: rows and token ids, int64 [number of cells] each."""
        return self._tensor(self._rows, torch.int64), self._tensor(self._token_ids, torch.int64)

    @property
    def values(self) -> Tensor:
        """Their numbers, float32 [number of cells]."""
        return self._tensor(self._values, torch.float32)

    def _tensor(self, numbers: "array[int] | array[float]", dtype: torch.dtype) -> Tensor:
        return upload_tensor(torch.frombuffer(numbers, dtype=dtype), self._device)


def adjust_logits(logits: Tensor, rows: SequenceOf[Row]) -> None:
    """Apply what the rows' parameters ask for, in place.

    A row costs time by the length of its text where it has a penalty, by the entries of its bias, by its stop
    tokens and by its grammar, and nothing where it asks for nothing. Ids for which the model has no logit are
    passed over.

    Args:
        logits: float32 [n, vocabulary].
        rows: n rows.
    """
    _penalise_repetition(logits, rows)
    _penalise_answer(logits, rows)
    _add_bias(logits, rows)
    mask_logits(logits, rows)
    _put_off_the_end(logits, rows)


def _penalise_repetition(logits: Tensor, rows: SequenceOf[Row]) -> None:
    """As in CTRL (arXiv 1909.05858, section 4.1), but for negative logits, which it would make likelier.

    These are multiplied, as transformers and vLLM do.
    """
    cells = _Cells(logits)
    for index, row in enumerate(rows):
        if (penalty := row.sampling.repetition_penalty) != 1.0:
            token_ids = set(row.tokens)
            cells.add(index, token_ids, repeat(penalty, len(token_ids)))
    if cells:
        places, penalties = cells.places, cells.values
        values = logits[places]
        logits[places] = torch.where(values > 0, values / penalties, values * penalties)


def _penalise_answer(logits: Tensor, rows: SequenceOf[Row]) -> None:
    """`frequency_penalty * count + presence_penalty` off each token of the answer, as OpenAI's API defines it."""
    cells = _Cells(logits)
    for index, row in enumerate(rows):
        params = row.sampling
        if params.frequency_penalty or params.presence_penalty:
            counts = Counter(row.tokens[row.num_prompt_tokens :])
            cells.add(index, counts, (params.frequency_penalty * n + params.presence_penalty for n in counts.values()))
    if cells:
        logits[cells.places] -= cells.values


def _add_bias(logits: Tensor, rows: SequenceOf[Row]) -> None:
    cells = _Cells(logits)
    for index, row in enumerate(rows):
        if row.sampling.logit_bias:
            known = {token_id: bias for token_id, bias in row.sampling.logit_bias if token_id < logits.shape[-1]}
            cells.add(index, known, known.values())
    if cells:
        logits[cells.places] += cells.values


def _put_off_the_end(logits: Tensor, rows: SequenceOf[Row]) -> None:
    """Mask the stop tokens of answers that are too short, unless a row has no other token left."""
    cells = _Cells(logits)
    for index, row in enumerate(rows):
        if row.position < row.sampling.min_tokens:
            known = [token_id for token_id in row.sampling.stop_token_ids if token_id < logits.shape[-1]]
            cells.add(index, known, repeat(_NEVER, len(known)))
    if cells:
        places = cells.places
        values = logits[places]
        logits[places] = _NEVER
        is_empty = logits.amax(dim=-1) == _NEVER
        logits[places] = torch.where(is_empty[places[0]], values, cells.values)
