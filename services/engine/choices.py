"""Which tokens a step writes, brought from the device in one copy: the only time that a step waits for it.

Everything that the host must know is worked out on the device first: the likeliest token of each output, draws where
a row's parameters want them, log-probabilities where they are asked for.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from ..cuda.download import download
from ..cuda.upload import upload
from .logprobs import LikelyTokens, TokenLogprobs, likely_tokens
from .runner import Output
from .sampling import DrawTokens, draw_tokens, sample
from .sampling_params import Row


@dataclass(frozen=True, slots=True)
class Choices:
    """What was chosen at each output of a step."""

    token_ids: list[int]
    """One for each output; -1 where the row is not sound."""
    logprobs: dict[int, TokenLogprobs]
    """By output, of those that asked."""


def choose(
    output: Output, wishes: Mapping[int, Row], written: Collection[int], draws: DrawTokens = draw_tokens
) -> Choices:
    """Choose a token at each output, and wait for the device.

    Args:
        output: of the step.
        wishes: by output, the row by whose parameters its token is chosen; elsewhere it is the likeliest.
        written: outputs whose token is written, so that log-probabilities may be asked for.
        draws: how tokens are drawn.
    """
    drawn = [index for index, row in wishes.items() if not row.sampling.takes_likeliest]
    asking = [i for i in written if i in wishes and wishes[i].sampling.num_logprobs is not None]
    parts = [output.greedy, output.highest]
    if drawn:
        parts.append(sample(_rows(output.logits, drawn), [wishes[index] for index in drawn], draws))
    likely = None
    if asking:
        ids = parts[0] if not drawn else parts[0].index_copy(0, upload(drawn, parts[0].device), parts[2])
        likely = likely_tokens(_rows(output.logits, asking), [wishes[index] for index in asking], _rows(ids, asking))
        parts += [likely.token_ids, likely.logprobs]
    greedy, highest, *others = download(parts)
    token_ids: list[int] = greedy.tolist()
    if drawn:
        for index, token_id in zip(drawn, others.pop(0).tolist(), strict=True):
            token_ids[index] = token_id
    for index, logit in enumerate(highest.tolist()):
        if not math.isfinite(logit):
            token_ids[index] = -1
    if likely is None:
        return Choices(token_ids, {})
    entries = LikelyTokens(likely.counts, *others).entries()
    return Choices(token_ids, dict(zip(asking, entries, strict=True)))


def _rows(numbers: Tensor, places: list[int]) -> Tensor:
    """These rows, which most often are all of them in order."""
    if places == list(range(len(numbers))):
        return numbers
    return numbers[upload(places, numbers.device)]
