"""The four steps of R2R's labelling (arXiv 2505.21600, section 3.2) for a number of problems at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from transformers import PreTrainedTokenizerFast

from ..engine.engine import Engine
from ..training.dataset import Kind
from ..training.sentences import sentence_bounds, sentence_end_ids, text_of
from .judging import Branch, Comparison, Judge
from .problems import Prompt
from .reading import Reading, read
from .settings import LabelSettings
from .shards import NO_LABEL, Rows
from .writing import Ask, write


class Progress(Protocol):
    """Is told what is going on."""

    def begin(self, phase: str, total: int) -> None:
        """A phase begins, in which so many things are to be done."""

    def advance(self, count: int) -> None:
        """So many more of them are done."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """What became of some problems."""

    rows: Rows
    num_finished: int
    num_unfinished: int
    num_failed: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """A finished answer, and what the small model says along it."""

    prompt: Prompt
    token_ids: list[int]
    reading: Reading

    def mismatches(self) -> list[int]:
        """Places at which the small model would have written something else."""
        proposals = self.reading.proposals.tolist()
        return [place for place, token in enumerate(self.token_ids) if proposals[place] != token]


class Labeller:
    """A pair of models and a judge. Belongs to one thread."""

    def __init__(
        self, slm: Engine, llm: Engine, words: PreTrainedTokenizerFast, judge: Judge, settings: LabelSettings
    ) -> None:
        """`words`: the tokenizer of both models."""
        self._slm = slm
        self._llm = llm
        self._words = words
        self._judge = judge
        self._settings = settings
        self._final = frozenset(llm.facts.vocabulary.eos_token_ids)
        self._ends = sentence_end_ids(words) | self._final

    def label(self, prompts: Sequence[Prompt], progress: Progress) -> Labelled:
        """Label every token of the large model's finished answers.

        What comes of it depends on nothing that was labelled before, to the last bit: prefixes that are left in the
        engines are forgotten first.

        Raises:
            AllroadsError: as the judge.
        """
        for engine in (self._slm, self._llm):
            engine.pool.forget(range(engine.pool.num_blocks))
        written = self._write_answers(prompts, progress)
        finished = [i for i, answer in enumerate(written) if answer and answer[-1] in self._final]
        readings = self._read(prompts, written, finished, progress)
        answers = [
            _Answer(prompts[i], written[i] or [], reading)
            for i, reading in zip(finished, readings, strict=True)
            if reading is not None
        ]
        kinds = self._judge_mismatches(answers, progress)
        num_failed = sum(answer is None for answer in written) + len(finished) - len(answers)
        return Labelled(
            rows=_rows(answers, kinds, self._settings.num_top_logits, self._slm.facts.hidden_size),
            num_finished=len(answers),
            num_unfinished=len(prompts) - len(answers) - num_failed,
            num_failed=num_failed,
        )

    def _write_answers(self, prompts: Sequence[Prompt], progress: Progress) -> list[list[int] | None]:
        progress.begin("llm answers", len(prompts))
        limit = self._settings.max_answer_tokens
        asks = [[Ask(prompt.token_ids, limit, self._final)] for prompt in prompts]
        return [written for (written,) in write(self._llm, asks, progress.advance)]

    def _read(
        self, prompts: Sequence[Prompt], written: Sequence[list[int] | None], finished: list[int], progress: Progress
    ) -> list[Reading | None]:
        progress.begin("slm reads", len(finished))
        return read(
            self._slm,
            [prompts[i].token_ids for i in finished],
            [written[i] or [] for i in finished],
            self._settings.num_top_logits,
            progress.advance,
        )

    def _judge_mismatches(self, answers: Sequence[_Answer], progress: Progress) -> list[list[int]]:
        """The kind of every token of the answers."""
        # The longest first: its context holds those of all others of an answer.
        places = [answer.mismatches()[::-1] for answer in answers]
        tails = self._continue(answers, places, progress)
        progress.begin("judge", sum(map(len, places)))
        comparisons: list[Comparison] = []
        judged: list[tuple[int, int]] = []
        kinds: list[list[int]] = [[Kind.IDENTICAL] * len(answer.token_ids) for answer in answers]
        for number, (answer, own, own_tails) in enumerate(zip(answers, places, tails, strict=True)):
            for place, tail in zip(own, own_tails, strict=True):
                kinds[number][place] = NO_LABEL
                if tail is not None:
                    comparisons.append(self._comparison(answer, place, tail))
                    judged.append((number, place))
        progress.advance(sum(map(len, places)) - len(comparisons))
        for (number, place), same in zip(judged, self._judge.agree(comparisons, progress.advance), strict=True):
            if same is not None:
                kinds[number][place] = Kind.NEUTRAL if same else Kind.DIVERGENT
        return kinds

    def _continue(
        self, answers: Sequence[_Answer], places: Sequence[Sequence[int]], progress: Progress
    ) -> list[list[list[int] | None]]:
        """How the large model goes on from the small one's token at each of those places of each answer."""
        progress.begin("llm goes on", sum(map(len, places)))
        tails: list[list[list[int] | None]] = [[[]] * len(own) for own in places]
        groups: list[list[Ask]] = []
        asked: list[list[int]] = []
        for answer, own in zip(answers, places, strict=True):
            wanted = [(i, ask) for i, place in enumerate(own) if (ask := self._ask(answer, place)) is not None]
            asked.append([i for i, _ in wanted])
            groups.append([ask for _, ask in wanted])
            progress.advance(len(own) - len(wanted))
        for own_tails, indices, written in zip(tails, asked, write(self._llm, groups, progress.advance), strict=True):
            for i, tail in zip(indices, written, strict=True):
                own_tails[i] = tail
        return tails

    def _ask(self, answer: _Answer, place: int) -> Ask | None:
        """The continuation of the small model's token at a place; None where it ends there already."""
        proposal = int(answer.reading.proposals[place])
        context = [*answer.prompt.token_ids, *answer.token_ids[:place], proposal]
        if self._judge.reads_answers:
            left = self._settings.max_answer_tokens - place - 1
            return Ask(context, left, self._final) if left and proposal not in self._final else None
        num_stops = self._settings.num_sentences - (proposal in self._ends)
        if num_stops == 0 or proposal in self._final:
            return None
        return Ask(context, self._settings.max_sentence_tokens, self._ends, num_stops, self._final)

    def _comparison(self, answer: _Answer, place: int, tail: Sequence[int]) -> Comparison:
        token_ids = answer.token_ids
        start, end = (0, len(token_ids)) if self._judge.reads_answers else self._bounds(token_ids, place)
        ours = [*token_ids[start:place], int(answer.reading.proposals[place]), *tail]
        return Comparison(
            prompt=answer.prompt,
            context=text_of(self._words, token_ids[:start]),
            ours=self._branch(ours),
            theirs=self._branch(token_ids[start:end]),
        )

    def _bounds(self, token_ids: Sequence[int], place: int) -> tuple[int, int]:
        """From the start of the sentence that holds a place to as many ends as a continuation has."""
        start, end = sentence_bounds(token_ids, place, self._ends)
        for _ in range(self._settings.num_sentences - 1):
            end = sentence_bounds(token_ids, end, self._ends)[1] if end < len(token_ids) else end
        return start, end

    def _branch(self, token_ids: Sequence[int]) -> Branch:
        ends = bool(token_ids) and token_ids[-1] in self._final
        return Branch(text_of(self._words, token_ids[:-1] if ends else token_ids), ends)


def _rows(answers: Sequence[_Answer], kinds: Sequence[Sequence[int]], num_top_logits: int, hidden_size: int) -> Rows:
    indices = torch.tensor([answer.prompt.index for answer in answers], dtype=torch.int64)
    lengths = torch.tensor([len(answer.token_ids) for answer in answers], dtype=torch.int64)
    readings = [answer.reading for answer in answers]
    return Rows(
        problems=indices.repeat_interleave(lengths),
        problem_ids=[answer.prompt.problem.id for answer in answers for _ in answer.token_ids],
        positions=torch.tensor([i for answer in answers for i in range(len(answer.token_ids))], dtype=torch.int32),
        token_ids=torch.tensor([token for answer in answers for token in answer.token_ids], dtype=torch.int32),
        proposals=torch.cat([torch.empty(0, dtype=torch.int64), *(one.proposals for one in readings)]).int(),
        kinds=torch.tensor([kind for own in kinds for kind in own], dtype=torch.uint8),
        entropies=torch.cat([torch.empty(0), *(one.entropies for one in readings)]),
        top_logits=torch.cat([torch.empty(0, num_top_logits), *(one.top_logits for one in readings)]),
        hidden_states=torch.cat([torch.empty(0, hidden_size), *(one.hidden_states for one in readings)]),
    )
