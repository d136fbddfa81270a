"""`bench.gpu` in small: its checkpoints, its script, its bound, and one run through the real services."""

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from allroads.config import ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.sampling_params import SamplingParams
from allroads.model_identity import identify_model
from allroads.policies.policy import ACCEPT, Drafts, Proposals, RequestView, reject
from allroads.router.checkpoint import load_router
from transformers import AutoModelForCausalLM

from bench.gpu import made_up
from bench.gpu.__main__ import main
from bench.gpu.bound import Work, copy_bytes_per_s
from bench.gpu.comparison import LLM, LOOP, SLM, Key, Plan, compare, drafted_name, hand_off_ms
from bench.gpu.machine import why_not
from bench.gpu.measure import Texts, questions
from bench.gpu.plugin import Drafted, Routed, drawn
from bench.gpu.shapes import TINY_LLM, TINY_ROUTER, TINY_SLM, RouterShape, Shape
from bench.gpu.systems import ABLATION, SINGLE_PROCESS, Pair
from bench.gpu.tables import print_tables, summary
from bench.mesh import start_allroads

from ..doubles.forks import Fork, fork_server
from ..engine.sampling_reference import PlainRow

CPU = Pair(TINY_SLM, TINY_LLM, TINY_ROUTER, "float32", "cpu", "cpu")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    made_up.write_pair(
        directory, TINY_SLM, TINY_LLM, TINY_ROUTER, dtype=torch.float32, slm_device="cpu", llm_device="cpu"
    )
    return directory


def test_the_large_model_takes_no_disk_and_says_what_it_is(written: Path) -> None:
    file = written / "llm" / "model.safetensors"
    told = file.stat()
    assert told.st_size > 4 * TINY_LLM.num_parameters
    assert 512 * told.st_blocks < told.st_size / 10
    assert identify_model(written / "llm").num_parameters == TINY_LLM.num_parameters


def test_the_large_model_is_made_up_where_it_is_loaded(written: Path) -> None:
    made_up.install()
    engine = Engine.load(ModelSettings(path=written / "llm", num_kv_tokens=256))
    assert engine.facts.num_parameters == TINY_LLM.num_parameters
    model = AutoModelForCausalLM.from_pretrained(written / "llm", dtype=torch.float32)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    assert all(0.01 < matrix.std() < 0.03 for matrix in matrices)


def test_what_cannot_be_made_up_is_refused(written: Path) -> None:
    made_up.install()
    with pytest.raises(ValueError, match="distributed_config: not with weights that are made up"):
        AutoModelForCausalLM.from_pretrained(written / "llm", dtype=torch.float32, distributed_config=None)


def test_the_router_is_a_published_one_by_its_format(written: Path) -> None:
    router = load_router(written / made_up.ROUTER_FILE, written / "slm")
    assert router.classifier.num_parameters == TINY_ROUTER.num_parameters(TINY_SLM)
    assert router.embedding.shape == (TINY_SLM.vocab_size, TINY_SLM.hidden_size)


def test_the_script_routes_the_share_that_it_is_told_and_the_same_each_time() -> None:
    views = [
        RequestView(seed=7, parameters={"share": (0.35,)}, max_tokens=4000, position=position)
        for position in range(4000)
    ]
    verdicts = Routed().route(Proposals(views, [0] * len(views), scores=[0.0] * len(views)))
    large = [verdict == reject(1) for verdict in verdicts]
    assert sum(large) / len(large) == pytest.approx(0.35, abs=0.03)
    assert all(verdict in (ACCEPT, reject(1)) for verdict in verdicts)
    assert large == [drawn(7, position, 0.35) for position in range(4000)]


def test_the_script_says_which_drafts_stand() -> None:
    params = SamplingParams(temperature=0.0, seed=3)
    rows = [PlainRow(params, skipped=position) for position in range(10, 15)]
    view = RequestView(seed=3, parameters={"acceptance": (0.5,)}, max_tokens=100)
    logits = torch.eye(5, 8)
    (judgement,) = Drafted().verify(Drafts([view], [[9, 9, 9, 9]], [logits], [rows], [None]))
    stands = [drawn(3, position, 0.5) for position in range(10, 14)]
    expected = stands.index(False) if False in stands else 4
    assert judgement.num_accepted == expected
    assert judgement.token_id == expected  # the large model's own: row j of the logits is largest at j


def test_the_bound_is_what_must_be_read_over_the_bandwidth() -> None:
    shape = Shape("qwen3", 64, 128, 1, 1, 1, vocab_size=1000, head_dim=32, is_tied=True)
    work = Work(shape, shape, RouterShape(8, (32,)), context=10, bytes_per_weight=2, has_two_devices=False)
    read = shape.num_read * 2 / 4 + 10 * 2 * 32 * 2
    router = 4 * work.router.num_parameters(shape) / 4
    assert work.seconds_per_token(0.5, 4, 1.0) == pytest.approx(read + router + 0.5 * read)
    assert work.seconds_per_token(1.0, 4, 2.0, slm=False) == pytest.approx(read / 2)


def test_a_copy_has_a_bandwidth() -> None:
    assert copy_bytes_per_s("cpu") > 1e7


def test_no_two_questions_begin_alike_and_all_systems_get_the_same() -> None:
    texts = Texts(16, 8, 2)
    asked = questions(texts, 4)
    assert len({tuple(question.prompt) for question in asked}) == len({q.seed for q in asked}) == 8
    assert asked == questions(texts, 4)


def test_each_row_of_the_ablation_lacks_what_those_before_it_lack() -> None:
    rows = list(ABLATION.values())
    assert rows[0] == {}
    assert all(less.items() < more.items() for less, more in pairwise(rows))


async def run_in_small(pair: Pair, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All services in one process, and the loop."""
    plan = Plan(
        pair=pair,
        texts=Texts(8, 12, 1),
        shares=(0.35,),
        acceptances=(0.75,),
        concurrencies=(1, 2),
        num_rounds=1,
        warm_up=Texts(8, 4, 1),
        systems=(SINGLE_PROCESS, LOOP),
    )
    results = await compare(plan, directory)
    mesh, loop = Key(SINGLE_PROCESS, 0.35), Key(LOOP, 0.35)
    alone = [Key(LLM, None), Key(SLM, None), Key(drafted_name(0.75), None)]
    assert results.keys(0.35) == [mesh, *alone, loop]
    # The same script everywhere: with one client, the same tokens are the large model's.
    (asked,) = questions(plan.texts, 1)
    share = sum(drawn(asked.seed, position, 0.35) for position in range(12)) / 12
    assert results.last(mesh, 1).llm_share == results.last(loop, 1).llm_share == share
    assert results.last(Key(LLM, None), 2).llm_share == 1.0
    assert results.last(mesh, 1).counts["allroads_scored_tokens_total"] > 0
    assert any(name.startswith("allroads_drafts_total") and n for name, n in results.last(alone[2], 2).counts.items())
    assert hand_off_ms(results, mesh) is not None
    assert any("tensors to router go through" in line for line in results.ways[SINGLE_PROCESS])
    work = Work(pair.slm, pair.llm, pair.router, context=14, bytes_per_weight=4, has_two_devices=False)
    figures = summary(plan, results, work, 1e10)
    print_tables(plan, results, figures)
    printed = capsys.readouterr().out
    assert "token/s, the large model writes 35%" in printed
    assert all(system in printed for system in ("single_process", "llm_only", "speculative_0.75", "research_loop"))
    assert json.loads(json.dumps(figures))["over_first"]["0.35"]["single_process"] == {"1": 1.0, "2": 1.0}


def forked(arguments: list[str], environment: dict[str, str], log: BinaryIO) -> "Fork | subprocess.Popen[bytes]":
    """The command `allroads` without the seconds of its imports, where that can be."""
    server = fork_server()
    if server is None:
        return start_allroads(arguments, environment, log)
    return server.start("allroads", arguments, environment, stdout=log, stderr=log)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
async def test_all_of_it_runs_through_the_real_services(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.mesh.start_allroads", forked)
    await run_in_small(CPU, tmp_path, capsys)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
async def test_all_of_it_runs_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await run_in_small(Pair(TINY_SLM, TINY_LLM, TINY_ROUTER, "bfloat16", "cuda:0", "cuda:0"), tmp_path, capsys)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not(["cpu"]) == ""
    monkeypatch.setattr("sys.argv", ["bench.gpu", "--large", "8b"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert "this machine has no GPU that torch can use" in told
    assert "--device cpu --shapes tiny" in told
