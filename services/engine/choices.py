"""Which tokens a step writes, brought from the device in one copy: the only time that a step waits for it.

Everything that the host must know is worked out on the device first: the likeliest token of each output and whether
it is sound, draws where a row's parameters want them, log-probabilities where they are asked for.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

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
        written: outputs among the wishes whose token is written, so that its log-probabilities may be asked for.
        draws: how tokens are drawn.
    """
    chosen = _choose(output, wishes, draws)
    asking = [index for index in written if wishes[index].sampling.num_logprobs is not None]
    if not asking:
        return Choices(chosen.tolist(), {})
    places = upload(asking, chosen.device)
    # A row that is not sound has no token; it gets none of this either, in the end.
    likely = likely_tokens(
        output.logits[places], [wishes[index] for index in asking], chosen.index_select(0, places).clamp(min=0)
    )
    return _fetched(chosen, asking, likely)


def _choose(output: Output, wishes: Mapping[int, Row], draws: DrawTokens) -> Tensor:
    """The chosen tokens on the device, int64 [outputs]."""
    drawn = [index for index, row in wishes.items() if not row.sampling.takes_likeliest]
    if not drawn:
        return output.greedy
    places = upload(drawn, output.greedy.device)
    token_ids = sample(output.logits[places], [wishes[index] for index in drawn], draws)
    likeliest = output.greedy[places]
    return output.greedy.index_copy(0, places, torch.where(likeliest < 0, likeliest, token_ids))


def _fetched(chosen: Tensor, asking: list[int], likely: LikelyTokens) -> Choices:
    """All of it in one copy: numbers with a fraction travel as the bits of an int64."""
    parts = [chosen, likely.token_ids.flatten(), likely.logprobs.double().view(torch.int64).flatten()]
    token_ids, ids, bits = torch.cat(parts).cpu().split([len(part) for part in parts])
    found = LikelyTokens(
        likely.counts, ids.view_as(likely.token_ids), bits.view(torch.float64).view_as(likely.logprobs)
    )
    return Choices(token_ids.tolist(), dict(zip(asking, found.entries(), strict=True)))
