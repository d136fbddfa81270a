"""Where answers are in their grammars: which tokens may come next.

A mask is a function of grammar and answer alone, so every tier has the same one at a place. What a matcher keeps
between two questions only saves work: it goes back to what the two answers share and on from there. So proposals,
roll-backs, drafts and hand-offs need not tell it anything.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from ..errors import AllroadsError, Internal, InvalidArgument
from .grammar import FIELD, Grammar, build, first_problem, reason

logger = logging.getLogger(__name__)

_PATIENCE_S = 0.002
"""How long the decode loop waits for a new grammar, which most do not take. The others are built beside it."""
_MAX_GRAMMARS = 64
"""Built grammars that are kept, those last used."""
_MAX_MASKS = 20
"""Masks of an answer that are kept: those of a run of drafts, which are asked for more than once."""


@dataclass(frozen=True, slots=True)
class Built:
    """A grammar that can be followed."""

    start: LLMatcher
    """At the beginning of an answer; only copies of it move."""
    end_token_id: int
    """The token that the library takes for the end."""
    num_bytes: int
    """Of a mask."""

    @property
    def is_spent(self) -> bool:
        """Whether it has grown to its limit: copies share what the library works out of a grammar as they go."""
        return first_problem(self.start) is not None


class Matcher:
    """Follows one sequence's answer. Belongs to the engine's thread."""

    def __init__(self, built: "Future[Built]", end_token_ids: frozenset[int]) -> None:
        self.error: AllroadsError | None = None
        """Why the answer cannot be followed any more."""
        self._built = built
        self._ends = end_token_ids
        self._matcher: LLMatcher | None = None
        self._taken: list[int] = []
        """Tokens that the library has been told; never an end."""
        self._masks: OrderedDict[int, bytes] = OrderedDict()
        """By length of the answer, for answers that begin with `_taken` or are a part of it."""

    @property
    def is_ready(self) -> bool:
        """Whether its grammar is built, or found wrong."""
        return self._built.done()

    def mask(self, answer: list[int]) -> bytes | None:
        """Which tokens may follow an answer, a bit each, lowest first; None, with an `error`, where that is unknown.

        Waits for the grammar where it is not ready.
        """
        if self.error is not None:
            return None
        try:
            return self._mask(answer)
        except AllroadsError as error:
            self.error = error
            return None

    def allows(self, answer: list[int], token_id: int) -> bool:
        """Whether a token may follow an answer."""
        mask = self.mask(answer)
        return mask is not None and token_id < 8 * len(mask) and bool(mask[token_id // 8] >> token_id % 8 & 1)

    def _mask(self, answer: list[int]) -> bytes:
        built = self._built.result()
        if answer == self._taken[: len(answer)] and (known := self._masks.get(len(answer))) is not None:
            return known
        matcher = self._matcher = self._matcher or built.start.deep_copy()
        if not self._follow(matcher, answer):
            return _with_ends(bytes(built.num_bytes), self._ends, may_end=True)
        plain = matcher.compute_bitmask()
        if matcher.is_error():
            raise InvalidArgument(f"the grammar is too complex to go on here: {reason(matcher)}", field=FIELD)
        may_end = bool(plain[built.end_token_id // 8] >> built.end_token_id % 8 & 1)
        mask = _with_ends(plain, {built.end_token_id, *self._ends}, may_end=False)
        if may_end:
            mask = _with_ends(mask, self._ends, may_end=True)
        self._masks[len(answer)] = mask
        if len(self._masks) > _MAX_MASKS:
            self._masks.popitem(last=False)
        return mask

    def _follow(self, matcher: LLMatcher, answer: list[int]) -> bool:
        """Bring the library to an answer. Whether that goes on: an end is for us alone to know."""
        taken = self._taken
        length = len(taken)
        if answer[:length] != taken:
            length = next(
                (i for i, (mine, its) in enumerate(zip(taken, answer, strict=False)) if mine != its), len(answer)
            )
            if not matcher.rollback(len(taken) - length):
                raise Internal(f"the grammar cannot go back {len(taken) - length} tokens: {reason(matcher)}")
            del taken[length:]
            for beyond in [known for known in self._masks if known > length]:
                del self._masks[beyond]
        for token_id in answer[length:]:
            if token_id in self._ends:
                return False
            if not matcher.try_consume_tokens([token_id]):
                why = f": {reason(matcher)}" if matcher.is_error() else ""
                raise Internal(f"token {token_id} of the answer does not fit its grammar{why}")
            taken.append(token_id)
        return True


class GrammarBuilder:
    """Builds grammars for one model's tokens, each once. Belongs to the engine's thread."""

    def __init__(self, directory: Path, end_token_ids: SequenceOf[int]) -> None:
        """`directory`: of the model; `end_token_ids`: where its texts end. Nothing is read before the first grammar."""
        self._path = directory / "tokenizer.json"
        self._end_token_ids = list(end_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._built: OrderedDict[tuple[str, str], Future[Built]] = OrderedDict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher for a new answer, perhaps not ready yet.

        Raises:
            InvalidArgument: the grammar is wrong, where that shows at once; else the matcher will have the error.
        """
        future = self._built.get(grammar.key)
        if future is None or _is_spent(future):
            future = self._built[grammar.key] = self._worker.submit(self._build, grammar)
            if len(self._built) > _MAX_GRAMMARS:
                self._built.popitem(last=False)
        self._built.move_to_end(grammar.key)
        wait_for([future], timeout=_PATIENCE_S)
        if future.done() and (error := future.exception()) is not None:
            raise error
        return Matcher(future, grammar.end_token_ids)

    def _build(self, grammar: Grammar) -> Built:
        """In the worker: what happens here holds up nobody but those with new grammars."""
        try:
            if self._tokenizer is None:
                self._tokenizer = LLTokenizer(self._path.read_text(), eos_token=self._end_token_ids)
            tokenizer = self._tokenizer
            start = build(grammar, tokenizer)
        except AllroadsError:
            raise
        except Exception as error:  # whatever the library raises, it fails this grammar only
            logger.exception("a grammar could not be built")
            raise Internal(f"the grammar could not be built: {error}") from error
        return Built(start, tokenizer.eos_token, (tokenizer.vocab_size + 31) // 32 * 4)


def _is_spent(future: "Future[Built]") -> bool:
    return future.done() and future.exception() is None and future.result().is_spent


def _with_ends(mask: bytes, token_ids: Iterable[int], *, may_end: bool) -> bytes:
    """A mask in which these tokens are allowed, or not; as long as it must be for them."""
    changed = bytearray(mask)
    for token_id in token_ids:
        place, bit = token_id // 8, 1 << token_id % 8
        changed += bytes(max(0, place + 1 - len(changed)))
        changed[place] = changed[place] | bit if may_end else changed[place] & ~bit
    return bytes(changed)
