"""From logits to token ids.

A draw depends on (seed, position) alone: neither on the batch nor on which model draws. So a request's
tokens do not change with its neighbours, and a schedule of draws can be known ahead.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch
from torch import Tensor

from ..cuda.graphed_function import GraphedFunction
from ..cuda.graphs import Recorder
from ..cuda.upload import upload
from .penalties import adjust_logits
from .sampling_params import Row, SamplingParams

__all__ = [
    "DrawTokens",
    "Row",
    "SamplingParams",
    "draw",
    "draw_tokens",
    "probabilities",
    "recorded_draw",
    "sample",
    "uniform",
]

_MASK = (1 << 64) - 1
_NUM_LIMITS = 5

DrawTokens = Callable[[Tensor, Tensor], tuple[Tensor, ...]]
"""`draw_tokens`, or a recording of it."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) fixed by its two arguments (SplitMix64, Steele et al. 2014, on their mix)."""
    state = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + 0x8CB92BA72F3D8DD7) & _MASK
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        state = ((state ^ (state >> 30)) * multiplier) & _MASK
    return ((state ^ (state >> 31)) >> 11) * 2.0**-53


def draw_tokens(logits: Tensor, limits: Tensor) -> tuple[Tensor, ...]:
    """The first token of each row, likeliest first, at which the cumulative probability passes the row's own number.

    Can be recorded: nothing waits for the device.

    Args:
        logits: float32 [n, vocabulary], adjusted.
        limits: float64 [n, 5]: temperature, top_k, top_p, min_p, and the row's own number.

    Returns:
        int64 [n], in a tuple as of all functions that are recorded.
    """
    weights, order = _kept_weights(logits, limits)
    return (order.gather(1, draw(weights, limits[:, -1:])).squeeze(1),)


def recorded_draw(num_output_rows: int, device: torch.device, recorder: Recorder | None, max_rows: int) -> DrawTokens:
    """`draw_tokens` for batches of up to `max_rows`, recorded where there is a recorder.

    `num_output_rows`: of the output layer.
    """
    if recorder is None:
        return draw_tokens
    examples = (
        torch.zeros((1, num_output_rows), device=device),
        torch.ones((1, _NUM_LIMITS), dtype=torch.float64, device=device),
    )
    return GraphedFunction("sampling", draw_tokens, examples, recorder, max_rows)


def sample(logits: Tensor, rows: SequenceOf[Row], draws: DrawTokens = draw_tokens) -> Tensor:
    """One token id for each row, the same whatever the other rows are.

    A row that is not sound gets some id, and does not disturb the others. One for which `min_tokens` leaves
    no token at all may end: it gets a stop token.

    Args:
        logits: float [n, vocabulary], raw; rows of padding already -inf. Not changed.
        rows: n rows.
        draws: how tokens are drawn, for rows that are not greedy.

    Returns:
        int64 [n].
    """
    drawn = [index for index, row in enumerate(rows) if not row.sampling.is_greedy]
    if len(drawn) == len(rows):
        return _drawn(logits, rows, draws)
    token_ids = logits.argmax(dim=-1)
    if drawn:
        places = upload(drawn, logits.device)
        found = _drawn(logits.index_select(0, places), [rows[index] for index in drawn], draws)
        token_ids.index_copy_(0, places, found)
    greedy = [index for index, row in enumerate(rows) if row.sampling.is_greedy and row.sampling.adjusts_logits]
    if greedy:
        places = upload(greedy, logits.device)
        found = _adjusted(logits.index_select(0, places), [rows[index] for index in greedy]).argmax(dim=-1)
        token_ids.index_copy_(0, places, found)
    return token_ids


def probabilities(logits: Tensor, rows: SequenceOf[Row]) -> Tensor:
    """The distributions from which `sample` draws, after all that the rows' parameters ask for.

    Args:
        logits: float [n, vocabulary], raw; rows of padding already -inf. Not changed.
        rows: n rows, none of them greedy.

    Returns:
        float64 [n, vocabulary]; each sums to 1.
    """
    limits = _limits(rows, logits)
    weights, order = _kept_weights(_adjusted(logits, rows), limits)
    return torch.zeros_like(weights).scatter_(1, order, weights / weights.sum(dim=-1, keepdim=True))


def draw(weights: Tensor, points: Tensor) -> Tensor:
    """The first index of each row at which the cumulative weight passes the row's own number.

    Args:
        weights: float64 [n, m], none negative; a row of zeros gives index 0.
        points: float64 [n, 1], in [0, 1).

    Returns:
        int64 [n, 1].
    """
    cumulative = weights.cumsum(dim=-1)
    index = torch.searchsorted(cumulative, points * cumulative[:, -1:], right=True)
    # Where rounding leads past the end: the last that has a weight.
    last = ((weights > 0) * torch.arange(1, weights.shape[-1] + 1, device=weights.device)).argmax(dim=-1, keepdim=True)
    return torch.minimum(index, last)


def _drawn(logits: Tensor, rows: SequenceOf[Row], draws: DrawTokens) -> Tensor:
    """A token of each row, none of which is greedy, int64 [n]."""
    (found,) = draws(_adjusted(logits, rows), _limits(rows, logits))
    return found


def _adjusted(logits: Tensor, rows: SequenceOf[Row]) -> Tensor:
    """Logits in float32 as the rows' parameters want them: a copy, or those given where nothing is wanted."""
    own = logits.float()
    if any(row.sampling.adjusts_logits for row in rows):
        own = own.clone() if own is logits else own
        adjust_logits(own, rows)
    return own


def _kept_weights(logits: Tensor, limits: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of the tokens, likeliest first, those that are cut at 0; and their ids.

    Args:
        logits: float32 [n, vocabulary], adjusted.
        limits: float64 [n, 5], as `draw_tokens` takes them.

    Returns:
        float64 and int64 [n, vocabulary].
    """
    temperature, top_k, top_p, min_p, _ = limits.split(1, dim=1)
    scaled, order = (logits / temperature.float()).sort(dim=-1, descending=True, stable=True)
    # In float64: how a sum is cut depends on the batch's shape on some devices, and must not change a draw.
    weights = (scaled - scaled[:, :1]).double().exp()
    before = weights.cumsum(dim=-1) - weights
    total = before[:, -1:] + weights[:, -1:]
    rank = torch.arange(logits.shape[-1], device=logits.device)
    # The likeliest token has weight 1 and nothing before it: it always stands.
    kept = (rank < top_k) & (before < top_p * total) & (weights >= min_p)
    return weights * kept, order


def _limits(rows: SequenceOf[Row], logits: Tensor) -> Tensor:
    """What draws go by: float64 [n, 5], as `draw_tokens` takes it."""
    num_tokens = logits.shape[-1]
    numbers = []
    for row in rows:
        params = row.sampling
        point = uniform(params.seed, row.position)
        numbers.append((params.temperature, params.top_k or num_tokens, params.top_p, params.min_p, point))
    return upload(numbers, logits.device, torch.float64)
