"""The labelling pipeline: identical, neutral and divergent come out as scripted, and the same each time."""

import logging
import pickle
from pathlib import Path

import pytest
import torch
from allroads.errors import CheckpointError
from allroads.training import labels as labels_module
from allroads.training.dataset import Kind, LabelDescription, LabelSet, load_labels, split_by_problem
from allroads.training.labels import label_questions, make_labels
from allroads.training.pair import load_pair
from allroads.training.problems import problems

from ..router.test_checkpoint import Touch
from .scripted_pair import Script
from .small_pair import write_pair

FIRST = "Now Aya has 95 apples. The answer is 95."
SECOND = "Then, Ben gets 2 more pens, so 1 + 2 = 3."


def position_of(script: Script, question: str, token: str, nth: int = 0) -> int:
    tokens = script.words.convert_ids_to_tokens(script.answers[question])
    return [at for at, name in enumerate(tokens) if name == token][nth]


def token_id(script: Script, token: str) -> int:
    return script.words.get_vocab()[token]


@pytest.fixture
def script() -> Script:
    script = Script({"one?": FIRST, "endless?": "", "two?": SECOND}, {})
    eos = script.words.eos_token_id
    end = len(script.answers["one?"]) - 1
    script.slips = {
        # "Now Aya has 96 apples."
        ("one?", position_of(script, "one?", "5")): token_id(script, "6"),
        # An end of the text where the large model has more to say.
        ("one?", position_of(script, "one?", ".")): eos,
        # Words after the end: the large model has nothing more to say than that they are there.
        ("one?", end): token_id(script, "7"),
        # "so 1 + 2" -> "and 1 + 2", mere wording.
        ("two?", position_of(script, "two?", "Ġso")): token_id(script, "Ġand"),
    }
    return script


def test_kinds_are_as_scripted(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    labels = label_questions(script.pair(), ["one?", "endless?", "two?"], num_top_logits=3)
    assert "2 of 3 answers are finished" in caplog.text
    lengths = [len(script.answers[question]) for question in ("one?", "two?")]
    assert labels.problem_ids.tolist() == [0] * lengths[0] + [1] * lengths[1]
    kinds = dict.fromkeys(range(sum(lengths)), Kind.IDENTICAL)
    five, stop = position_of(script, "one?", "5"), position_of(script, "one?", ".")
    so = lengths[0] + position_of(script, "two?", "Ġso")
    kinds |= {five: Kind.DIVERGENT, stop: Kind.DIVERGENT, lengths[0] - 1: Kind.DIVERGENT, so: Kind.NEUTRAL}
    assert labels.kinds.tolist() == list(kinds.values())
    assert labels.divergent.sum() == labels.count(Kind.DIVERGENT) == 3
    assert labels.token_ids[five] == token_id(script, "6")
    assert labels.top_logits.shape == (sum(lengths), 3)
    assert labels.top_logits[:, 0].tolist() == [5.0] * sum(lengths)
    assert torch.equal(labels.hidden_states.argmax(-1), labels.token_ids)


def test_labels_are_repeatable_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = write_pair(tmp_path / "models")

    def make(seed: int) -> str:
        asked = [problem for problem, _ in zip(problems("train", seed), range(4), strict=False)]
        script = Script({p.question: p.solution for p in asked}, {(p.question, 7): 30 for p in asked})
        monkeypatch.setattr(labels_module, "load_pair", lambda _: script.pair())
        return make_labels(models, tmp_path / "out", num_problems=4, seed=seed, num_top_logits=4).labels_sha256

    first = make(1)
    labels, description = load_labels(tmp_path / "out", LabelSet, LabelDescription)
    assert (labels.num_problems, description.num_asked, description.problem_seed) == (4, 4, 1)
    assert make(1) == first
    assert make(2) != first


def test_two_tokenizers_are_refused(tmp_path: Path) -> None:
    models = write_pair(tmp_path)
    config = models / "llm" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<|im_end|>", "<|im_start|>"))
    with pytest.raises(CheckpointError, match="do not share a tokenizer"):
        load_pair(models)


def test_a_pickle_in_place_of_labels_is_refused_and_runs_nothing(script: Script, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "labels.json").write_text("{}")
    (tmp_path / "labels.safetensors").write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(CheckpointError, match="missing or damaged"):
        load_labels(tmp_path, LabelSet, LabelDescription)
    assert not marker.exists()


def test_splits_share_no_problem(script: Script) -> None:
    labels = label_questions(script.pair(), ["one?", "two?"] * 20, num_top_logits=3)
    splits = split_by_problem(labels, seed=3)
    parts = [set(part.problem_ids.tolist()) for part in (splits.train, splits.validation, splits.test)]
    assert [len(part) for part in parts] == [28, 6, 6]
    assert len(set.union(*parts)) == 40
    again = split_by_problem(labels, seed=3)
    assert torch.equal(again.test.problem_ids, splits.test.problem_ids)
    assert not torch.equal(split_by_problem(labels, seed=4).test.problem_ids, splits.test.problem_ids)
