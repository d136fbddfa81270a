"""Runs that are interrupted, resumed, and refused; the command as users start it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import yaml
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.errors import CheckpointError, StartupError, TokenizerMismatch
from allroads.labelling.dataset import load_dataset, load_manifest
from allroads.labelling.run import label
from allroads.labelling.settings import LabelSettings
from allroads.labelling.shards import shard_name

from ..cli.commands import COMMAND, environment, run_fork
from ..cli.ends import TIMEOUT_S
from .pair import Silent, plan, settings_of, write_ending_pair, write_problems

NUM_PROBLEMS = 24
NUM_SHARDS = NUM_PROBLEMS // 4


@pytest.fixture(scope="session")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_problems(tmp_path_factory.mktemp("problems") / "problems.jsonl", NUM_PROBLEMS)


@pytest.fixture(scope="session")
def whole(pair: Path, problems: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset that comes of a run that nobody interrupts."""
    out = tmp_path_factory.mktemp("whole")
    label(plan(out, pair, problems), Silent())
    return out


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


class Stopped(BaseException):
    """As a KeyboardInterrupt, anywhere."""


class StopsAt(Silent):
    def __init__(self, moment: int) -> None:
        super().__init__()
        self.moments = moment

    def advance(self, count: int) -> None:
        super().advance(count)
        self.moments -= 1
        if self.moments < 0:
            raise Stopped


@pytest.mark.parametrize("moment", [0, 1, 5, 9, 17, 40, 77])
def test_interrupted_anywhere_and_resumed_gives_the_same_bytes(
    moment: int, pair: Path, problems: Path, whole: Path, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        label(plan(tmp_path, pair, problems), StopsAt(moment))
    with pytest.raises(CheckpointError, match="has not ended"):
        load_dataset(tmp_path)
    label(plan(tmp_path, pair, problems), Silent())
    assert content(tmp_path) == content(whole)


def test_a_finished_run_does_nothing_and_a_lost_shard_is_made_again(
    pair: Path, problems: Path, whole: Path, tmp_path: Path
) -> None:
    before = content(whole)
    progress = Silent()
    assert label(plan(whole, pair, problems), progress) == load_manifest(whole)
    assert (progress.seen_shards, progress.phases) == ([(NUM_SHARDS, NUM_SHARDS)], [])
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / shard_name(2)).unlink()
    progress = Silent()
    label(plan(tmp_path, pair, problems), progress)
    assert progress.seen_shards == [(NUM_SHARDS - 1, NUM_SHARDS), (NUM_SHARDS, NUM_SHARDS)]
    assert content(tmp_path) == before


def arguments(pair: Path, problems: Path, out: Path, settings: LabelSettings) -> list[str]:
    path = out.parent / f"{out.name}.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    models = [f"--{name}={pair / name}" for name in ("slm", "llm")]
    return ["label", *models, f"--problems={problems}", f"--out={out}", f"--settings={path}"]


def until(reached: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = monotonic() + TIMEOUT_S
    while not reached():
        assert monotonic() < deadline, "it did not happen"
        assert process.poll() is None, process.communicate()
        sleep(0.005)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "counts"), [(signal.SIGKILL, (2, 8)), (signal.SIGINT, (5,))])
def test_a_process_that_ends_early_goes_on_where_it_was(
    number: signal.Signals, counts: tuple[int, ...], pair: Path, tmp_path: Path
) -> None:
    # Many shards, so that it has much to do yet when it is told to end.
    problems, out = write_problems(tmp_path / "problems.jsonl", 40), tmp_path / "out"
    label(plan(tmp_path / "whole", pair, problems, problems_per_shard=1), Silent())
    command = arguments(pair, problems, out, settings_of(problems_per_shard=1))
    for count in counts:
        process = subprocess.Popen(
            [*COMMAND, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        until((out / shard_name(count)).exists, process)
        process.send_signal(number)
        _, words = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == (1 if number == signal.SIGINT else -number)
        assert not (out / "dataset.json").exists()
        if number == signal.SIGINT:
            assert words.strip().splitlines()[-1].startswith("error: stopped; the same command goes on")
    done = {name: os.stat(out / name).st_mtime_ns for name in (shard_name(0), shard_name(1))}
    finished = run_fork(*command)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert done == {name: os.stat(out / name).st_mtime_ns for name in done}
    assert content(out) == content(tmp_path / "whole")
    for words in ("identical", "89%", "3.8 x", "answers finished"):
        assert words in finished.stdout


def test_another_configuration_is_refused_and_told(pair: Path, problems: Path, whole: Path, tmp_path: Path) -> None:
    def refused(**settings: Any) -> str:
        with pytest.raises(StartupError, match="holds another labelling") as refusal:
            label(plan(whole, pair, problems, **settings), Silent())
        return refusal.value.message

    before = content(whole)
    assert "settings.num_top_logits is 8 there and 9 here; name another" in refused(num_top_logits=9)
    told = refused(judge={"kind": "llm", "max_tokens": 3})
    assert "settings.judge.kind is same-continuation there and llm here" in told
    many = refused(num_sentences=2, max_answer_tokens=30, max_sentence_tokens=9, problems_per_shard=5, num_top_logits=1)
    assert "and 2 more" in many
    with pytest.raises(StartupError, match=r"slm_engine\.max_running is 256 there and 3 here"):
        label(plan(whole, pair, problems, {"max_running": 3}), Silent())
    other = write_problems(tmp_path / "other.jsonl", NUM_PROBLEMS)
    other.write_text(other.read_text().replace("Ben", "Leo"))
    with pytest.raises(StartupError, match="prompts_sha256"):
        label(plan(whole, pair, other), Silent())
    write_ending_pair(tmp_path / "pair", seed=2)
    with pytest.raises(StartupError, match="embedding_sha256"):
        label(plan(whole, tmp_path / "pair", problems), Silent())
    assert content(whole) == before


def test_restart_throws_away_ours_and_nothing_else(pair: Path, tmp_path: Path) -> None:
    problems, out = write_problems(tmp_path / "p.jsonl", 5), tmp_path / "out"
    label(plan(out, pair, problems, problems_per_shard=1), Silent())
    (out / "notes.txt").write_text("mine")
    label(plan(out, pair, problems, problems_per_shard=3), Silent(), restart=True)
    assert sorted(content(out)) == [
        "dataset.json", "notes.txt", "report.json", "rows-00000.parquet", "rows-00001.parquet", "state.json"
    ]  # fmt: skip
    assert load_dataset(out)[1].run.settings.problems_per_shard == 3


def test_shards_of_nobody_or_another_are_refused(pair: Path, problems: Path, whole: Path, tmp_path: Path) -> None:
    (tmp_path / shard_name(0)).write_bytes((whole / shard_name(0)).read_bytes())
    with pytest.raises(StartupError, match=r"labels and no state\.json"):
        label(plan(tmp_path, pair, problems), Silent())
    (tmp_path / "state.json").write_bytes((whole / "state.json").read_bytes())
    (tmp_path / shard_name(1)).write_bytes((whole / shard_name(0)).read_bytes())
    with pytest.raises(CheckpointError, match=r"rows-00001\.parquet is a file of another labelling"):
        label(plan(tmp_path, pair, problems), Silent())
    (tmp_path / shard_name(1)).write_bytes((whole / shard_name(1)).read_bytes()[:-50])
    with pytest.raises(CheckpointError, match=r"rows-00001\.parquet is missing, damaged"):
        label(plan(tmp_path, pair, problems), Silent())
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        label(plan(tmp_path, pair, problems), Silent())


def test_two_processes_in_one_directory(pair: Path, problems: Path, tmp_path: Path) -> None:
    class Nosy(Silent):
        told = ""

        def begin(self, phase: str, total: int) -> None:
            if not self.told:
                with pytest.raises(StartupError, match="another process is labelling") as refusal:
                    label(plan(tmp_path, pair, problems), Silent())
                self.told = refusal.value.message
            super().begin(phase, total)

    progress = Nosy()
    label(plan(tmp_path, pair, problems), progress)
    assert str(tmp_path) in progress.told


def test_what_cannot_be_labelled_is_refused_before_any_work(pair: Path, problems: Path, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"num_top_logits is 473, and the tokenizer has 472 tokens"):
        plan(tmp_path, pair, problems, num_top_logits=473)
    with pytest.raises(StartupError, match=r"problem 'p0' has \d+ tokens and its answer may take 2052 more"):
        label(plan(tmp_path, pair, problems, max_answer_tokens=2040), Silent())
    with pytest.raises(StartupError, match=r"have room for 64"):
        label(plan(tmp_path, pair, problems, {"num_kv_tokens": 64}), Silent(), restart=True)
    assert not list(tmp_path.glob("rows-*"))


def test_two_tokenizers_are_refused(problems: Path, tmp_path: Path) -> None:
    write_ending_pair(tmp_path)
    config = tmp_path / "llm" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("<|im_end|>", "<|im_start|>"))
    with pytest.raises(TokenizerMismatch, match="do not share a tokenizer: the eos_token"):
        plan(tmp_path / "out", tmp_path, problems)


def test_a_missing_pyarrow_says_how_to_get_it(
    pair: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StartupError, match=r"pip install 'allroads\[lifecycle\]'"):
        plan(tmp_path, pair, problems)


def test_prefixes_are_reused(pair: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Engine] = []
    load = Engine.load

    def keep(settings: ModelSettings) -> Engine:
        loaded.append(load(settings))
        return loaded[-1]

    monkeypatch.setattr(Engine, "load", keep)
    label(plan(tmp_path, pair, problems), Silent())
    slm, llm = (engine.scheduler for engine in loaded)
    # Continuations find most of their contexts, which are far longer than what is new to them.
    assert llm.num_cached_tokens > 0.5 * llm.num_prompt_tokens
    # The small model reads each prompt once, and what these have in common at most comes from the pool.
    assert slm.num_cached_tokens < 0.5 * slm.num_prompt_tokens


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--slm=/nowhere"], 2, "slm.path: no directory /nowhere"),
        (["--problems=/nowhere.jsonl"], 1, "cannot read the problems in /nowhere.jsonl"),
        (["--judge=oracle"], 2, "labelling settings: judge: "),
        (["--judge=openai"], 2, "judge.openai.url"),
        (["--settings=/nowhere.yaml"], 2, "cannot read the labelling settings /nowhere.yaml"),
        (["--out=/proc/labels"], 2, "cannot write to /proc/labels"),
        (["--num-problems=0"], 2, "--num-problems"),
    ],
)
def test_wrong_commands(options: list[str], code: int, words: str, tmp_path: Path) -> None:
    result = run_fork("label", f"--out={tmp_path / 'out'}", *options)
    assert result.returncode == code
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "out").exists()


def test_an_empty_file_and_more_problems_than_there_are(problems: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    result = run_fork("label", f"--out={tmp_path / 'out'}", f"--problems={empty}")
    assert "holds no problem" in result.stderr
    result = run_fork("label", f"--out={tmp_path / 'out'}", f"--problems={problems}", "--num-problems=25")
    assert "has 24 problems, not 25" in result.stderr


def test_embedded_problems_through_the_command(tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = tmp_path / "label.yaml"
    settings.write_text("judge: {kind: exact-answer, against: reference}\nproblems_per_shard: 3\n")
    command = ["label", "--num-problems=6", "--seed=4", f"--out={out}", f"--settings={settings}"]
    result = run_fork(*command)
    assert (result.returncode, result.stderr) == (0, "")
    labels, manifest = load_dataset(out)
    assert (manifest.problem_seed, manifest.num_asked, manifest.counts.num_finished) == (4, 6, 6)
    assert labels.num_problems == 6
    assert labels.top_logits.shape[1] == 100
    report = json.loads((out / "report.json").read_text())
    assert [kind["kind"] for kind in report["kinds"]] == ["identical", "neutral", "divergent"]
    assert sum(kind["num_tokens"] for kind in report["kinds"]) + report["num_unlabelled"] == report["num_tokens"]
    assert report["published_entropy_ratio"] == 3.8
