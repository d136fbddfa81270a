"""What the judge is shown, and what becomes of its verdicts, on answers that are written out."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from allroads.engine.engine import Engine
from allroads.labelling import labeller as labeller_module
from allroads.labelling.judging import Comparison, Judge, SentenceJudge
from allroads.labelling.labeller import Labelled, Labeller
from allroads.labelling.problems import Prompt
from allroads.labelling.reading import Reading
from allroads.labelling.settings import LabelSettings
from allroads.labelling.shards import NO_LABEL
from allroads.labelling.writing import Ask, nobody
from allroads.problem_file import FileProblem
from allroads.training.dataset import Kind
from transformers import PreTrainedTokenizerFast

from ..training.small_pair import tokenizer
from .pair import Silent

FIRST = "Now Aya has 95 apples. The answer is 95."
SECOND = "Then, Ben gets 2 more pens, so 1 + 2 = 3."


class Script:
    """Stands for both models: what the large one answers to each prompt, and where the small one differs."""

    def __init__(self, answers: Sequence[str | None]) -> None:
        self.words: PreTrainedTokenizerFast = tokenizer()
        self.eos = int(self.words.eos_token_id)
        self.answers = [None if text is None else [*self.words.encode(text), self.eos] for text in answers]
        self.slips: dict[tuple[int, int], int] = {}
        self.broken: set[tuple[int, int]] = set()
        """Places from which the large model cannot go on."""
        self.tails: list[tuple[int, int]] = []
        """Places from which it did."""
        self.prompts = [
            Prompt(i, FileProblem(f"p{i}", ({"role": "user", "content": f"question {i}"},)), [400 + i])
            for i in range(len(answers))
        ]

    def place(self, number: int, token: str, nth: int = 0) -> tuple[int, int]:
        tokens = self.words.convert_ids_to_tokens(self.answers[number] or [])
        return number, [at for at, name in enumerate(tokens) if name == token][nth]

    def slip(self, place: tuple[int, int], token: str) -> None:
        self.slips[place] = self.words.get_vocab()[token]

    def write(self, engine: object, groups: Sequence[Sequence[Ask]], on_done: Any) -> list[list[list[int] | None]]:
        on_done(sum(map(len, groups)))
        return [[self._go_on(ask) for ask in group] for group in groups]

    def _go_on(self, ask: Ask) -> list[int] | None:
        number, place = ask.token_ids[0] - 400, len(ask.token_ids) - 2
        if place >= 0:
            self.tails.append((number, place))
        if (number, place) in self.broken:
            return None
        answer = self.answers[number]
        if answer is None:
            return [20] * ask.max_new_tokens
        rest: list[int] = []
        num_stops = 0
        for token in answer[place + 1 :]:
            rest.append(token)
            num_stops += token in ask.stops
            if num_stops == ask.num_stops or token in ask.final:
                break
        return rest[: ask.max_new_tokens]

    def read(
        self, engine: object, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], k: int, on_done: Any
    ) -> list[Reading]:
        on_done(len(prompts))
        readings = []
        for prompt, answer in zip(prompts, answers, strict=True):
            proposals = torch.tensor([self.slips.get((prompt[0] - 400, i), token) for i, token in enumerate(answer)])
            logits = proposals.float()[:, None] - torch.arange(k)
            readings.append(Reading(proposals, logits, torch.stack([proposals.float()] * 3, dim=1), proposals / 100))
        return readings


class Recorder:
    """A judge that says what the test says, and keeps what it was shown."""

    def __init__(self, opinions: Callable[[Comparison], bool | None], *, reads_answers: bool = False) -> None:
        self.reads_answers = reads_answers
        self.opinions = opinions
        self.shown: list[Comparison] = []

    def agree(self, comparisons: Sequence[Comparison], on_done: Callable[[int], None] = nobody) -> list[bool | None]:
        on_done(len(comparisons))
        self.shown += comparisons
        return [self.opinions(one) for one in comparisons]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Labelled]:
    def run_script(script: Script, judge: Judge, **settings: Any) -> Labelled:
        monkeypatch.setattr(labeller_module, "write", script.write)
        monkeypatch.setattr(labeller_module, "read", script.read)
        engine = Facts(script.eos)
        values = LabelSettings.model_validate({"num_top_logits": 3, **settings})
        return Labeller(
            cast("Engine", engine), cast("Engine", engine), script.words, judge, values
        ).label(script.prompts, Silent())  # fmt: skip

    return run_script


class Facts:
    """As much of an engine as labelling looks at."""

    def __init__(self, eos: int) -> None:
        self.facts = self.vocabulary = self.pool = self
        self.eos_token_ids, self.hidden_size, self.num_blocks = (eos,), 3, 4

    def forget(self, blocks: object) -> None: ...


def test_kinds_are_as_scripted(run: Callable[..., Labelled]) -> None:
    script = Script([FIRST, None, SECOND])
    answers = [answer or [] for answer in script.answers]
    end = (0, len(answers[0]) - 1)
    # "Now Aya has 96 apples."
    script.slip(script.place(0, "5"), "6")
    # An end of the text where the large model has more to say.
    script.slips[script.place(0, ".")] = script.eos
    # Words after the end: the large model has nothing more to say than that they are there.
    script.slip(end, "7")
    # "so 1 + 2" -> "and 1 + 2", mere wording.
    script.slip(script.place(2, "Ġso"), "Ġand")
    labelled = run(script, SentenceJudge())
    rows = labelled.rows
    assert (labelled.num_finished, labelled.num_unfinished, labelled.num_failed) == (2, 1, 0)
    assert rows.problems.tolist() == [0] * len(answers[0]) + [2] * len(answers[2])
    assert rows.problem_ids == ["p0"] * len(answers[0]) + ["p2"] * len(answers[2])
    assert rows.token_ids.tolist() == answers[0] + answers[2]
    assert rows.positions.tolist() == [*range(len(answers[0])), *range(len(answers[2]))]
    kinds = {(number, i): Kind.IDENTICAL for number in (0, 2) for i in range(len(answers[number]))}
    for place in (script.place(0, "5"), script.place(0, "."), end):
        kinds[place] = Kind.DIVERGENT
    kinds[script.place(2, "Ġso")] = Kind.NEUTRAL
    assert rows.kinds.tolist() == list(kinds.values())
    # Nothing is asked after a proposal that ends the text.
    assert script.place(0, ".") not in script.tails
    assert torch.equal(rows.top_logits[:, 0], rows.proposals.float())
    assert rows.hidden_states.shape == (len(kinds), 3)


def test_no_opinion_and_a_model_that_fails_give_no_label(run: Callable[..., Labelled]) -> None:
    script = Script([FIRST])
    five, is_ = script.place(0, "5"), script.place(0, "Ġis")
    script.slip(five, "6")
    script.slip(is_, "Ġand")
    script.slip(script.place(0, "Ġapples"), "Ġpens")
    script.broken = {is_}
    judge = Recorder(lambda one: None if "96" in one.ours.text else True)
    rows = run(script, judge).rows
    kinds = {i: kind for i, kind in enumerate(rows.kinds.tolist()) if kind != Kind.IDENTICAL}
    assert kinds == {five[1]: NO_LABEL, is_[1]: NO_LABEL, script.place(0, "Ġapples")[1]: Kind.NEUTRAL}
    assert len(judge.shown) == 2


@pytest.mark.parametrize(("num_sentences", "tail"), [(1, ""), (2, " The answer is 95.")])
def test_branches_are_sentences_with_what_came_before(
    num_sentences: int, tail: str, run: Callable[..., Labelled]
) -> None:
    script = Script([FIRST])
    script.slip(script.place(0, "5"), "6")
    script.slip(script.place(0, "5", 1), "7")
    judge = Recorder(lambda one: True)
    run(script, judge, num_sentences=num_sentences)
    last, first = judge.shown
    assert (first.context, first.ours.text, first.theirs.text) == (
        "", f"Now Aya has 96 apples.{tail}", f"Now Aya has 95 apples.{tail}"
    )  # fmt: skip
    assert (last.context, last.ours.text) == ("Now Aya has 95 apples.", " The answer is 97.")
    assert last.theirs.text == " The answer is 95."
    # The text ends after the last sentence, and so it is the second end.
    assert last.ours.ends == last.theirs.ends == (num_sentences == 2)
    assert not first.ours.ends


def test_branches_are_whole_answers_for_a_judge_that_reads_them(run: Callable[..., Labelled]) -> None:
    script = Script([FIRST])
    script.slip(script.place(0, "5"), "6")
    script.slips[script.place(0, ".")] = script.eos
    judge = Recorder(lambda one: False, reads_answers=True)
    run(script, judge)
    cut, whole = judge.shown
    assert (whole.context, whole.ours.text, whole.theirs.text) == ("", FIRST.replace("95", "96", 1), FIRST)
    assert (cut.ours.text, cut.theirs.text) == ("Now Aya has 95 apples", FIRST)
    assert all(branch.ends for one in judge.shown for branch in (one.ours, one.theirs))
    # An answer that would become too long is not finished.
    judge.shown.clear()
    run(script, judge, max_answer_tokens=len(script.answers[0] or []))
    assert [one.ours.ends for one in judge.shown] == [True, True]
