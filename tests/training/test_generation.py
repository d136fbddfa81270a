"""Batched and padded equals one at a time, recomputed whole."""

from pathlib import Path

import pytest
import torch
from allroads.training import generation
from allroads.training.generation import continue_greedily, prefill
from transformers import PreTrainedModel, Qwen3ForCausalLM

from .small_pair import write_pair

CONTEXTS = [[5, 6, 7], [9], [300, 301, 302, 303, 304, 305, 17], [40, 41], [11, 12, 13, 14]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    directory = write_pair(tmp_path_factory.mktemp("pair"))
    loaded: PreTrainedModel = Qwen3ForCausalLM.from_pretrained(Path(directory) / "llm").eval()
    return loaded


@torch.inference_mode()
def slowly(model: PreTrainedModel, context: list[int], stops: frozenset[int], limit: int) -> list[int]:
    answer: list[int] = []
    while len(answer) < limit and not stops.intersection(answer):
        logits = model(torch.tensor([context + answer]), use_cache=False).logits[0, -1]
        answer.append(int(logits.argmax()))
    return answer


def test_greedy_continuations(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "BATCH_SIZE", 2)
    free = [slowly(model, context, frozenset({-1}), 6) for context in CONTEXTS]
    stops = frozenset({free[0][2], free[2][0]})
    wanted = [slowly(model, context, stops, 6) for context in CONTEXTS]
    assert continue_greedily(model, CONTEXTS, stops, 6) == wanted
    assert len({len(answer) for answer in wanted}) > 1


def test_no_contexts(model: PreTrainedModel) -> None:
    assert continue_greedily(model, [], frozenset({1}), 4) == []


@torch.inference_mode()
def test_prefill_predicts_each_answer_token_from_what_comes_before(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "BATCH_SIZE", 2)
    answers = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]
    for context, answer, seen in zip(CONTEXTS, answers, prefill(model, CONTEXTS, answers, 4), strict=True):
        for position in range(len(answer)):
            ids = torch.tensor([context + answer[:position]])
            hidden = model.base_model(ids, use_cache=False).last_hidden_state[0, -1]
            logits = model.get_output_embeddings()(hidden)
            assert seen.predictions[position] == logits.argmax()
            logprob = logits.log_softmax(-1)[answer[position]]
            torch.testing.assert_close(seen.answer_logprobs[position], logprob)
            torch.testing.assert_close(seen.top_logits[position], logits.sort(descending=True).values[:4])
            torch.testing.assert_close(seen.hidden_states[position], hidden)
