"""What the verify family has in common at the large model: drafts laid out in rows, and judgements made of rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from ..engine.sampling import Row, draw, probabilities, sample, uniform
from ..errors import Internal
from .policy import Drafts, Judgement, RequestView

_MAX_ROWS = 64
"""Drafts laid out at once: each takes 8 bytes for every token of the vocabulary, several times over."""
_ACCEPT_SALT, _RESAMPLE_SALT = 0xA24BAED4963EE407, 0x9FB21C651E98DF25

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DraftRows:
    """n drafts, a row each."""

    requests: list[RequestView]
    rows: list[Row]
    """What `engine.sampling` must know to draw a token in the draft's place."""
    token_ids: Tensor
    """int64 [n, 1]."""
    large: Tensor
    """float [n, vocabulary], raw: the judging model's logits in the draft's place."""
    small: Tensor
    """float [n, vocabulary], raw: the small model's; [n, 0] where they did not come along."""

    def numbers(self, name: str) -> Tensor:
        """A parameter of each draft's request, float64 [n, 1]."""
        return self._column([request.number(name) for request in self.requests])

    def points(self, salt: int) -> Tensor:
        """A number in [0, 1) for each draft, fixed by seed and position, float64 [n, 1]."""
        return self._column([uniform(row.sampling.seed ^ salt, row.position) for row in self.rows])

    def _column(self, values: list[float]) -> Tensor:
        """Beside the logits, without waiting for what is worked out there."""
        return torch.tensor(values, dtype=torch.float64).unsqueeze(1).to(self.large.device, non_blocking=True)


def draft_rows(drafts: Drafts, *, with_small: bool) -> Iterator[DraftRows]:
    """The drafts of all requests in order, those of some requests at a time.

    The two models' logits are cut to one width: what either has beyond is padding.

    Raises:
        Internal: the small model's logits are wanted and are not there.
    """
    for group in _groups([len(token_ids) for token_ids in drafts.token_ids]):
        large = torch.cat([drafts.logits[index][:-1] for index in group])
        small = large[:, :0]
        if with_small:
            # Some may have come through memory of a GPU, others inline.
            parts = [_small_logits(drafts, index).to(large.device, non_blocking=True) for index in group]
            small = torch.cat(parts)
            width = min(large.shape[-1], small.shape[-1])
            large, small = large[:, :width], small[:, :width]
        token_ids = [token_id for index in group for token_id in drafts.token_ids[index]]
        yield DraftRows(
            requests=[drafts.requests[index] for index in group for _ in drafts.token_ids[index]],
            rows=[row for index in group for row in drafts.rows[index][: len(drafts.token_ids[index])]],
            token_ids=torch.tensor(token_ids, dtype=torch.int64).unsqueeze(1).to(large.device, non_blocking=True),
            large=large,
            small=small,
        )


def own_tokens(drafts: Drafts) -> list[list[int]]:
    """What the judging model writes itself in place of each draft and after all of them, k + 1 ids a request."""
    flat = sample(torch.cat(drafts.logits), [row for rows in drafts.rows for row in rows]).tolist()
    return split(flat, [len(rows) for rows in drafts.rows])


def speculate(parts: Iterator[tuple[DraftRows, Tensor, Tensor]]) -> tuple[list[bool], list[int]]:
    """Make tokens drawn from one distribution into tokens of another (arXiv 2211.17192, section 2.3).

    A token x from q stands with probability min(1, t(x) / q(x)), else one is drawn from max(0, t - q). What comes
    out is distributed as t. The numbers drawn are others than those that the drafts were drawn by.

    Args:
        parts: drafts, the distributions q that they were drawn from, and the targets t, float64 [n, vocabulary].

    Returns:
        Of all drafts in order: whether each stands, and the token that takes its place where it does not.
    """
    stands: list[bool] = []
    replacements: list[int] = []
    for part, drawn_from, target in parts:
        own, its = target.gather(1, part.token_ids), drawn_from.gather(1, part.token_ids)
        stands += (part.points(_ACCEPT_SALT) * its < own).squeeze(1).tolist()
        rest = (target - drawn_from).clamp(min=0)
        # Nothing is left where the two are one, and then no draft falls but by rounding.
        rest = torch.where(rest.sum(dim=-1, keepdim=True) > 0, rest, target)
        replacements += draw(rest, part.points(_RESAMPLE_SALT)).squeeze(1).tolist()
    return stands, replacements


def processed(part: DraftRows) -> tuple[Tensor, Tensor]:
    """The distributions that the small and the large model really draw from, float64 [n, vocabulary] each."""
    return probabilities(part.small, part.rows), probabilities(part.large, part.rows)


def judge(stands: Sequence[bool], written: Sequence[int | None]) -> Judgement:
    """Drafts stand up to the first that does not.

    Args:
        stands: of k drafts.
        written: k + 1, what takes the place of each draft, and what comes after all of them.
    """
    num_accepted = next((index for index, stand in enumerate(stands) if not stand), len(stands))
    return Judgement(num_accepted, written[num_accepted])


def judge_by_mode(
    drafts: Drafts,
    greedy: Callable[[Drafts], list[Judgement]],
    sampled: Callable[[Drafts], list[Judgement]],
) -> list[Judgement]:
    """Judge the greedy requests one way and the others another."""
    judgements: dict[int, Judgement] = {}
    for is_greedy, judged_by in ((True, greedy), (False, sampled)):
        own = [index for index, request in enumerate(drafts.requests) if request.is_greedy is is_greedy]
        if own:
            judgements.update(zip(own, judged_by(_select(drafts, own)), strict=True))
    return [judgements[index] for index in range(len(drafts.requests))]


def split(flat: Sequence[T], sizes: Sequence[int]) -> list[list[T]]:
    """Cut a list into lists of these sizes."""
    values = iter(flat)
    return [list(islice(values, size)) for size in sizes]


def _select(drafts: Drafts, indices: list[int]) -> Drafts:
    return Drafts(
        requests=[drafts.requests[index] for index in indices],
        token_ids=[drafts.token_ids[index] for index in indices],
        logits=[drafts.logits[index] for index in indices],
        rows=[drafts.rows[index] for index in indices],
        draft_logits=[drafts.draft_logits[index] for index in indices],
    )


def _groups(sizes: list[int]) -> Iterator[list[int]]:
    """Indices of lists that are not empty, together of `_MAX_ROWS` items at most where no single one has more."""
    group: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if group and total + size > _MAX_ROWS:
            yield group
            group, total = [], 0
        if size:
            group.append(index)
            total += size
    if group:
        yield group


def _small_logits(drafts: Drafts, index: int) -> Tensor:
    logits = drafts.draft_logits[index]
    if logits is None:
        raise Internal("the drafts came without the small model's logits")
    return logits
