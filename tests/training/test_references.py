"""What both models make of reference texts comes out as scripted, rollouts included."""

import logging
from pathlib import Path

import pytest
import torch
from allroads.errors import CheckpointError
from allroads.training import references as references_module
from allroads.training.dataset import load_labels
from allroads.training.problems import Problem, problems
from allroads.training.reference_set import ReferenceDescription, ReferenceSet
from allroads.training.references import make_references, read_references
from torch import Tensor

from .scripted_pair import VOCABULARY, Script, position_of, token_id
from .small_pair import write_pair

SOLUTION = "Now Aya has 95 apples. So the answer is 95."


def test_each_kind_of_place() -> None:
    script = Script({"one?": SOLUTION}, {})
    aya, five, apples, so, the = (
        position_of(script, "one?", token) for token in ("ĠAya", "5", "Ġapples", "ĠSo", "Ġthe")
    )
    seven, pens = token_id(script, "7"), token_id(script, "Ġpens")
    # Only the large model is right; neither, to a wrong end; neither, to a right one; neither, and the text ends there.
    slips = {five: seven, apples: pens, so: pens, the: script.words.eos_token_id}
    script.slips = {("one?", position): token for position, token in slips.items()}
    script.large_slips = {("one?", position): seven for position in (aya, apples, so, the)}
    script.tails = {("one?", apples + 1): ". The answer is 7.", ("one?", so + 1): ". The answer is 95."}
    length = len(script.answers["one?"])
    problem = Problem("one?", SOLUTION, 95)
    found = read_references(script.pair(), [problem, problem])
    assert found.problem_ids.tolist() == [0] * length + [1] * length

    def places(chosen: Tensor) -> set[int]:
        assert torch.equal(chosen[:length], chosen[length:])
        return set(chosen[:length].nonzero()[:, 0].tolist())

    everywhere = set(range(length))
    assert places(found.slm_right) == everywhere - {five, apples, so, the}
    assert places(found.llm_right) == everywhere - {aya, apples, so, the}
    assert places(found.defers) == {five}
    assert places(found.rollout_right) == {so}
    assert places(~found.suffices) == {five, apples, the}
    assert found.describe().model_dump() == {
        "num_problems": 2, "num_tokens": 2 * length, "num_slm_right": 2 * (length - 4), "num_llm_right": 2,
        "num_neither": 6, "num_neither_suffices": 2,
    }  # fmt: skip
    # Logits are 5 for what is proposed, and 0 elsewhere.
    high = torch.tensor([5.0, *[0.0] * (VOCABULARY - 1)]).log_softmax(0)[0]
    for right, logprobs in ((found.slm_right, found.slm_logprobs), (found.llm_right, found.llm_logprobs)):
        torch.testing.assert_close(logprobs, torch.where(right, high, high - 5))
    assert found.hidden_states[five].argmax() == seven


def test_references_are_repeatable_by_seed_and_read_as_such_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    models = write_pair(tmp_path / "models")

    def make(seed: int) -> str:
        asked = [problem for problem, _ in zip(problems("train", seed), range(4), strict=False)]
        script = Script({p.question: p.solution for p in asked}, {(p.question, 7): 30 for p in asked})
        monkeypatch.setattr(references_module, "load_pair", lambda _: script.pair())
        return make_references(models, tmp_path / "out", num_problems=4, seed=seed).labels_sha256

    first = make(1)
    assert "0 rollouts" in caplog.text
    references, description = load_labels(tmp_path / "out", ReferenceSet, ReferenceDescription)
    assert (references.num_problems, description.num_asked, description.problem_seed) == (4, 4, 1)
    assert int(references.defers.sum()) == 4
    assert make(1) == first
    assert make(2) != first
    path = tmp_path / "out" / "labels.json"
    path.write_text(path.read_text().replace("allroads-references", "allroads-labels"))
    with pytest.raises(CheckpointError, match="format"):
        load_labels(tmp_path / "out", ReferenceSet, ReferenceDescription)
