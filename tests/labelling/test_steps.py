"""The steps on our engine equal those of plain transformers: same texts, kinds, and features."""

from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.sequence import Sequence
from allroads.engine.step import Drafted
from allroads.errors import ContextLengthExceeded
from allroads.labelling.dataset import load_dataset
from allroads.labelling.labeller import Labeller
from allroads.labelling.problems import Prompt
from allroads.labelling.reading import read
from allroads.labelling.run import label
from allroads.labelling.shards import NO_LABEL
from allroads.labelling.writing import GREEDY, Ask, write
from allroads.problem_file import FileProblem
from allroads.training.dataset import Kind
from allroads.training.generation import Prefill, continue_greedily, prefill
from allroads.training.judge import sentences_agree
from allroads.training.pretrain import prompt_ids
from allroads.training.sentences import sentence_bounds, sentence_end_ids, text_of
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from .pair import CONTEXTS, Silent, ends_of, plan, settings_of, write_problems


def load(pair: Path, name: str, **settings: Any) -> Engine:
    return Engine.load(ModelSettings(path=pair / name, **settings))


def plain(pair: Path, name: str) -> PreTrainedModel:
    transformers_logging.disable_progress_bar()
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(pair / name).eval()
    return model


def words_of(pair: Path) -> PreTrainedTokenizerFast:
    words: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(pair / "slm")
    return words


@pytest.mark.parametrize("engine", [{}, {"max_step_tokens": 3}, {"max_running": 2}, {"num_kv_tokens": 64}])
def test_writing_equals_transformers(engine: dict[str, Any], pair: Path) -> None:
    wanted = continue_greedily(plain(pair, "llm"), CONTEXTS, ends_of(pair), 20)
    done: list[int] = []
    llm = load(pair, "llm", **engine)
    written = write(llm, [[Ask(context, 20, ends_of(pair))] for context in CONTEXTS], done.append)
    assert [own for (own,) in written] == wanted
    assert sum(done) == len(CONTEXTS)
    assert len(set(map(len, wanted))) > 1
    assert llm.pool.num_used == llm.scheduler.num_running == 0


def test_the_second_of_two_ends_and_the_final_one(pair: Path) -> None:
    llm = load(pair, "llm")
    ((free,),) = write(llm, [[Ask(CONTEXTS[0], 20, frozenset())]])
    assert free is not None
    first = free[2]
    twice = [i for i, token in enumerate(free) if token in (first, free[5])]
    stops = frozenset({first, free[5]})
    ((two,),) = write(llm, [[Ask(CONTEXTS[0], 20, stops, num_stops=2)]])
    assert two == free[: twice[1] + 1]
    ((final,),) = write(llm, [[Ask(CONTEXTS[0], 20, stops, num_stops=9, final=frozenset({free[0]}))]])
    assert final == free[:1]


def test_what_begins_alike_is_computed_once(pair: Path) -> None:
    llm = load(pair, "llm")
    text = [3 + (7 * i) % 400 for i in range(160)]
    asks = [Ask(text[:length], 4, frozenset()) for length in (160, 150, 140, 130, 100)]
    (written,) = write(llm, [asks])
    scheduler = llm.scheduler
    # All whole blocks of the four that follow come from the first.
    assert scheduler.num_cached_tokens == 144 + 128 + 128 + 96
    alone = load(pair, "llm", shares_prefixes=False)
    assert write(alone, [asks])[0] == written


def test_a_context_that_never_fits_leaves_nothing_behind(pair: Path) -> None:
    llm = load(pair, "llm", num_kv_tokens=64)
    with pytest.raises(ContextLengthExceeded):
        write(llm, [[Ask([5, 6], 10, ends_of(pair))], [Ask([5] * 60, 10, ends_of(pair))]])
    assert llm.pool.num_used == llm.scheduler.num_running == llm.scheduler.num_waiting == 0


@pytest.mark.parametrize("engine", [{}, {"max_step_tokens": 3}, {"max_running": 2}, {"max_step_tokens": 512}])
def test_reading_equals_transformers(engine: dict[str, Any], pair: Path) -> None:
    # Lengths around the number of drafts that are kept at a time.
    answers = [[20 + i % 9 for i in range(length)] for length in (1, 128, 129, 3, 260)]
    done: list[int] = []
    slm = load(pair, "slm", **engine)
    readings = read(slm, CONTEXTS, answers, 8, done.append)
    for seen, reading in zip(prefill(plain(pair, "slm"), CONTEXTS, answers, 472), readings, strict=True):
        assert reading is not None
        assert torch.equal(reading.proposals, seen.predictions)
        torch.testing.assert_close(reading.top_logits, seen.top_logits[:, :8], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(reading.hidden_states, seen.hidden_states, atol=1e-4, rtol=1e-4)
        logprobs = seen.top_logits.log_softmax(-1)
        torch.testing.assert_close(reading.entropies, -(logprobs.exp() * logprobs).sum(-1), atol=1e-4, rtol=1e-4)
    assert sum(done) == len(CONTEXTS)
    assert slm.pool.num_used == slm.scheduler.num_running == 0


def test_hidden_states_of_drafts_come_only_when_asked_for(pair: Path) -> None:
    slm = load(pair, "slm", max_step_tokens=2)
    found = {}
    for keeps in (False, True):
        sequence = Sequence([5, 6, 7], 32, GREEDY, 3, keeps_hidden_states=keeps)
        sequence.draft([8, 9, 10, 11])
        slm.open(sequence)
        slm.admit()
        drafted: list[Drafted] = []
        while not drafted:
            step = slm.step()
            assert step is not None
            assert keeps or not sequence.draft_hidden_states
            drafted = step.drafted
        found[keeps] = drafted[0]
        assert sequence.draft_hidden_states == []
        slm.close(sequence)
    assert found[False].hidden_states is None
    hidden_states = found[True].hidden_states
    assert hidden_states is not None
    assert hidden_states.shape == (5, 32)
    assert torch.equal(found[True].logits, found[False].logits)


def kinds_by_transformers(
    pair: Path, prompts: list[list[int]], answers: list[list[int]], seen: list[Prefill], num_sentences: int
) -> list[int]:
    """The steps after the first two, spelled out one token at a time."""
    words, llm, final = words_of(pair), plain(pair, "llm"), ends_of(pair)
    ends = sentence_end_ids(words) | final
    kinds = []
    for prompt, answer, read_along in zip(prompts, answers, seen, strict=True):
        for place, proposal in enumerate(read_along.predictions.tolist()):
            if proposal == answer[place]:
                kinds.append(int(Kind.IDENTICAL))
                continue
            ours = [proposal]
            for _ in range(num_sentences - (proposal in ends)):
                if ours[-1] in final:
                    break
                left = 12 - (len(ours) - 1)
                if left <= 0:
                    break
                (tail,) = continue_greedily(llm, [[*prompt, *answer[:place], *ours]], ends, left)
                ours += tail
            start, end = sentence_bounds(answer, place, ends)
            for _ in range(num_sentences - 1):
                end = sentence_bounds(answer, end, ends)[1] if end < len(answer) else end
            texts, closed = [], []
            for branch in ([*answer[start:place], *ours], answer[start:end]):
                closed.append(branch[-1] in ends_of(pair))
                texts.append(text_of(words, branch[:-1] if closed[-1] else branch))
            same = closed[0] == closed[1] and sentences_agree(*texts)
            kinds.append(int(Kind.NEUTRAL if same else Kind.DIVERGENT))
    return kinds


@pytest.mark.parametrize("num_sentences", [1, 2])
def test_a_dataset_equals_the_steps_of_transformers(num_sentences: int, pair: Path, tmp_path: Path) -> None:
    run = plan(tmp_path / "out", pair, write_problems(tmp_path / "p.jsonl", 10), num_sentences=num_sentences)
    progress = Silent()
    manifest = label(run, progress)
    labels, again = load_dataset(tmp_path / "out")
    assert again == manifest

    words, llm, slm, final = words_of(pair), plain(pair, "llm"), plain(pair, "slm"), ends_of(pair)
    asked = [prompt_ids(words, problem.messages[0]["content"]) for problem in run.problems.problems]
    written = continue_greedily(llm, asked, final, 20)
    finished = [i for i, answer in enumerate(written) if answer[-1] in final]
    assert 0 < len(finished) < 10
    assert (manifest.counts.num_finished, manifest.counts.num_unfinished) == (len(finished), 10 - len(finished))
    prompts, answers = [asked[i] for i in finished], [written[i] for i in finished]
    seen = prefill(slm, prompts, answers, 8)
    assert torch.equal(labels.token_ids, torch.cat([one.predictions for one in seen]))
    torch.testing.assert_close(labels.top_logits, torch.cat([one.top_logits for one in seen]), atol=1e-4, rtol=1e-4)
    hidden_states = torch.cat([one.hidden_states for one in seen])
    torch.testing.assert_close(labels.hidden_states, hidden_states, atol=1e-4, rtol=1e-4)
    assert labels.problem_ids.tolist() == [i for i, answer in enumerate(answers) for _ in answer]
    wanted = kinds_by_transformers(pair, prompts, answers, seen, num_sentences)
    assert labels.kinds.tolist() == wanted
    assert set(wanted) == set(Kind)

    assert progress.seen_shards == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert [name for name, _ in progress.phases] == ["llm answers", "slm reads", "llm goes on", "judge"] * 3
    assert progress.num_done == progress.phases[-1][1]


class Agrees:
    reads_answers = False

    def agree(self, comparisons: Any, on_done: Any = None) -> list[bool | None]:
        on_done(len(comparisons))
        return [True] * len(comparisons)


def test_a_model_that_gives_no_numbers_costs_only_the_problem(pair: Path) -> None:
    slm, llm = load(pair, "slm"), load(pair, "llm")
    words = words_of(pair)
    problems = [FileProblem(str(i), ({"role": "user", "content": "?"},)) for i in range(4)]
    prompts = [Prompt(i, problem, [30 + i, 31, 32]) for i, problem in enumerate(problems)]
    settings = settings_of(max_answer_tokens=200)
    labeller = Labeller(slm, llm, words, Agrees(), settings)
    sound = labeller.label(prompts, Silent())
    assert sound.num_failed == 0
    # From now on the large model fails at one prompt's first token.
    poison(llm, 31)
    poisoned = labeller.label([prompts[0], Prompt(1, problems[1], [40, 41])], Silent())
    assert (poisoned.num_failed, poisoned.num_finished + poisoned.num_unfinished) == (1, 1)
    assert NO_LABEL not in poisoned.rows.kinds.tolist()


def poison(engine: Engine, token_id: int) -> None:
    """Make the model's input embedding of a token NaN."""
    runner: Any = engine._runner
    forward: Any = runner._forward
    # Not in place: the output layer is the same tensor.
    forward._embedding = forward._embedding.detach().clone()
    forward._embedding[token_id] = float("nan")
