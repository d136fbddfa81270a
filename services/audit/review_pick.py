"""Which decisions are worth a person's look: first those that went wrong, as far as anybody knows, then close calls.

In this order, and within each by how near the score was to the threshold: missed (the small model's token was kept,
the large one writes another), sent on with another token of the large model, and those where its token is not known.
Where both models write the same there is nothing to ask, and of one pair of tokens not more than a few are asked while
there are others: models differ in the same words again and again. The same log gives the same choice.
"""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ..errors import StartupError
from .decision_file import DecisionLine, DecisionLog, EndLine, RequestKey
from .review_queue import Item

_POOL = 20
"""Candidates that are kept for each decision that is wanted."""
_MAX_ALIKE = 3
"""Decisions on the same two tokens."""
_Rank = tuple[int, float, str, int, int]


def pick(logs: Sequence[Path], num_items: int, *, known: Collection[str] = ()) -> list[Item]:
    """Choose decisions from logs, at most `num_items`, none of them `known` (ids of items).

    Raises:
        StartupError: a log is missing or damaged, or has no context to show.
    """
    with DecisionLog(logs) as log:
        candidates = _Candidates(log)
        fresh = (one for one in candidates if item_id(one) not in known)
        chosen = _varied(heapq.nsmallest(_POOL * num_items, fresh, key=_rank), num_items)
        if not candidates.have_context:
            raise StartupError(
                "the log has no context to show a person: set slm.decisions_context to a number of tokens, such as "
                "512, and serve again; it records what users write, so tell them first",
                field="slm.decisions_context",
            )
        keys = {line.key for line in chosen}
        prompts: dict[RequestKey, int] = {
            line.key: line.num_prompt for line in log.lines() if isinstance(line, EndLine) and line.key in keys
        }
    return [_item(line, prompts.get(line.key)) for line in chosen]


def item_id(line: DecisionLine) -> str:
    """Names a decision for good."""
    return f"{line.run}/{line.request}/{line.position}"


class _Candidates:
    """Decisions that a person can judge: with a context, and not known to be the same for both models."""

    def __init__(self, log: DecisionLog) -> None:
        self.have_context = False
        self._log = log

    def __iter__(self) -> Iterator[DecisionLine]:
        for line in self._log.lines():
            if isinstance(line, DecisionLine) and line.context:
                self.have_context = True
                if line.large is None or line.differs:
                    yield line


def _varied(ranked: Sequence[DecisionLine], num_items: int) -> list[DecisionLine]:
    """The first so many, of which few are alike as long as there are others; in the same order."""
    seen: Counter[tuple[int, int | None]] = Counter()
    first: list[int] = []
    later: list[int] = []
    for place, line in enumerate(ranked):
        pair = line.proposal, line.large
        seen[pair] += 1
        (first if seen[pair] <= _MAX_ALIKE else later).append(place)
    return [ranked[place] for place in sorted((first + later)[:num_items])]


def _rank(line: DecisionLine) -> _Rank:
    kind = 2 if line.large is None else int(line.routed)
    distance = math.inf if line.score is None or line.threshold is None else abs(line.score - line.threshold)
    return kind, distance, line.run, line.request, line.position


def _item(line: DecisionLine, num_prompt: int | None) -> Item:
    return Item(
        id=item_id(line),
        policy=line.policy,
        threshold=line.threshold,
        score=line.score,
        routed=line.routed,
        proposal=line.proposal,
        large=line.large,
        context=line.context,
        is_whole=num_prompt is not None and len(line.context) == num_prompt + line.position,
    )
