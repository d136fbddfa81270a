"""Recorded steps give what direct ones do, whatever was in the recording's memory before."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.config import ModelSettings
from allroads.cuda.graphed_function import BATCH_SIZES, GraphedFunction
from allroads.cuda.graphs import Recorder, first_line, recorder_on
from allroads.engine.attention import ATTENTION_NAME, KvShape, Plan, Row
from allroads.engine.buckets import Buckets
from allroads.engine.decoder import FusedDecoder
from allroads.engine.device import CpuDevice
from allroads.engine.engine import Engine
from allroads.engine.flashinfer_attention import FlashInferBackend
from allroads.engine.graph_runner import GraphRunner
from allroads.engine.runner import Forward, ModelRunner, Output, Runner, TransformersForward
from allroads.engine.sampling import SamplingParams, draw_tokens, recorded_draw, sample
from allroads.engine.sequence import Sequence
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from ..doubles import recordable_flashinfer
from ..doubles.aten_recorder import AtenRecorder
from ..doubles.gather_attention import GatherBackend
from .conftest import sequence
from .sampling_reference import PlainRow

VOCABULARY, NUM_TOKENS = 120, 112
NUM_SLOTS, MAX_KEYS = 6, 64
SMALL = {
    "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 256,
}  # fmt: skip
CPU = torch.device("cpu")


def random_model(
    kind: str, *, device: torch.device = CPU, dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """A small one, the same each time."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL, **changes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, attn_implementation=ATTENTION_NAME, dtype=torch.float32
    ).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    torch.nn.Module.to(model, device, dtype)
    return model


def fused(model: PreTrainedModel) -> Forward:
    """The pass of our own."""
    return FusedDecoder(model, MAX_KEYS)


def gather_backend(model: PreTrainedModel) -> GatherBackend:
    config = model.config
    num_blocks = NUM_SLOTS * MAX_KEYS // 4
    shape = KvShape(
        config.num_hidden_layers, config.num_key_value_heads, config.head_dim, num_blocks, 4, config.num_attention_heads
    )
    backend = GatherBackend(
        shape, num_slots=NUM_SLOTS, max_blocks=MAX_KEYS // 4, dtype=model.dtype, device=model.device
    )
    for slot in range(NUM_SLOTS):
        backend.assign(slot, list(range(slot * MAX_KEYS // 4, (slot + 1) * MAX_KEYS // 4)))
    return backend


@dataclass
class BothWays:
    """The same steps by recordings and directly, each over KV of its own."""

    model: PreTrainedModel
    make_forward: Callable[[PreTrainedModel], Forward]
    recorder: Recorder = field(default_factory=AtenRecorder)
    max_tokens: int = 16

    def __post_init__(self) -> None:
        forward, device = self.make_forward(self.model), self.model.device
        self.backend, self.plain_backend = gather_backend(self.model), gather_backend(self.model)
        self.plain = ModelRunner(forward, self.plain_backend, NUM_TOKENS, device)
        self.runner = GraphRunner(
            forward,
            self.backend,
            ModelRunner(forward, self.backend, NUM_TOKENS, device),
            Buckets.up_to(NUM_SLOTS, self.max_tokens),
            self.recorder,
            num_tokens=NUM_TOKENS,
            device=device,
        )

    def forward(self, rows: list[Row], token_ids: list[int]) -> tuple[Output, Output]:
        # Whoever reads what padding stored finds it out.
        self.backend.keys[:, self.backend.spare] = float("nan")
        return self.runner.forward(rows, token_ids), self.plain.forward(rows, token_ids)


def assert_equal(found: Output, wanted: Output, *, is_exact: bool = True) -> None:
    tolerance = 1e-4 if is_exact else 0.05 * float(wanted.logits[wanted.logits.isfinite()].abs().max())
    torch.testing.assert_close(found.logits, wanted.logits, atol=tolerance, rtol=0)
    torch.testing.assert_close(found.hidden_states, wanted.hidden_states, atol=tolerance, rtol=0)
    if is_exact:
        assert found.greedy.tolist() == wanted.greedy.tolist()


def steps(seed: int, count: int) -> Iterator[tuple[list[Row], list[int]]]:
    """Steps of prefills, extends, single tokens and roll-backs, of any rows, wanting any number of last outputs."""
    rng = random.Random(seed)
    lengths = [0] * NUM_SLOTS
    for _ in range(count):
        rows: list[Row] = []
        kind = rng.choice(["decode", "mixed", "mixed", "long"])
        for slot in rng.sample(range(NUM_SLOTS), rng.randint(1, NUM_SLOTS)):
            start = rng.randint(max(0, lengths[slot] - 5), lengths[slot]) if rng.random() < 0.3 else lengths[slot]
            start = 0 if start > MAX_KEYS - 24 else start
            length = 1 if kind == "decode" or rng.random() < 0.4 else rng.randint(1, 20 if kind == "long" else 4)
            rows.append(Row(slot, start, start + length, rng.choice([1, 1, length, rng.randint(1, length)])))
            lengths[slot] = start + length
        yield rows, [rng.randrange(NUM_TOKENS) for row in rows for _ in range(row.length)]


@pytest.mark.parametrize("make_forward", [fused, TransformersForward])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_any_schedule_gives_what_direct_steps_give(
    kind: str, make_forward: Callable[[PreTrainedModel], Forward]
) -> None:
    both = BothWays(random_model(kind), make_forward)
    num_steps = 60
    for rows, token_ids in steps(1, num_steps):
        found, wanted = both.forward(rows, token_ids)
        assert_equal(found, wanted)
        assert not found.logits.isnan().any()
        assert found.logits[:, NUM_TOKENS:].isneginf().all()
    counts = both.runner.counts
    assert counts.num_replayed + counts.num_eager.total() == num_steps
    assert counts.num_replayed > num_steps // 2
    assert set(counts.num_eager) == {"shape"}


def test_what_a_step_gave_is_the_callers_own() -> None:
    both = BothWays(random_model("llama"), fused)
    kept = [(*both.forward(rows, token_ids), rows) for rows, token_ids in steps(2, 20)]
    for found, wanted, _ in kept:
        assert_equal(found, wanted)


def test_only_what_is_recorded_is_replayed_and_the_rest_is_counted() -> None:
    both = BothWays(random_model("llama"), fused, max_tokens=8)
    assert both.runner.num_recorded == len(list(Buckets.up_to(NUM_SLOTS, 8).largest_first()))
    for length in (8, 9):
        assert_equal(*both.forward([Row(0, 0, length)], [5] * length))
    assert both.runner.counts.num_replayed == 1
    assert both.runner.counts.num_eager == Counter(shape=1)


def test_nan_stays_in_its_row() -> None:
    both = BothWays(random_model("qwen3"), fused)
    prompt = [Row(slot, 0, 2) for slot in range(4)]
    both.forward(prompt, [7, 8] * 4)
    bad = both.backend.places(2, 1)[0]
    both.backend.keys[:, bad] = both.plain_backend.keys[:, bad] = float("nan")
    for rows in ([Row(slot, 2, 3) for slot in range(4)], [Row(slot, 3, 4 + slot % 2) for slot in range(4)]):
        token_ids = [9] * sum(row.length for row in rows)
        found, wanted = both.forward(rows, token_ids)
        assert found.highest[2].isnan()
        assert wanted.highest[2].isnan()
        sound = [0, 1, 3]
        torch.testing.assert_close(found.logits[sound], wanted.logits[sound], atol=1e-4, rtol=0)
        assert found.greedy[sound].tolist() == wanted.greedy[sound].tolist()


def _over_flashinfer(model: PreTrainedModel, *, batch_invariant: bool) -> FlashInferBackend:
    shape = gather_backend(model).shape
    backend = FlashInferBackend(
        shape,
        num_slots=NUM_SLOTS,
        max_blocks=MAX_KEYS // 4,
        dtype=torch.float32,
        device=CPU,
        batch_invariant=batch_invariant,
        kinds=recordable_flashinfer,
    )
    for slot in range(NUM_SLOTS):
        backend.assign(slot, list(range(slot * MAX_KEYS // 4, (slot + 1) * MAX_KEYS // 4)))
    return backend


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_plans_of_flashinfer_can_be_recorded(batch_invariant: bool) -> None:
    """Its wrappers are dense here; page tables, buffers and padding are the real ones."""
    model = random_model("qwen3")
    forward, backend = fused(model), _over_flashinfer(model, batch_invariant=batch_invariant)
    direct = ModelRunner(forward, backend, NUM_TOKENS, CPU)
    plain = ModelRunner(forward, gather_backend(model), NUM_TOKENS, CPU)
    buckets = Buckets.up_to(NUM_SLOTS, 16)
    runner = GraphRunner(forward, backend, direct, buckets, AtenRecorder(), num_tokens=NUM_TOKENS, device=CPU)
    for rows, token_ids in steps(6, 40):
        backend.kv[:, backend.shape.num_blocks] = float("nan")
        assert_equal(runner.forward(rows, token_ids), plain.forward(rows, token_ids))
    assert runner.counts.num_replayed > 20
    assert runner.counts.num_eager.total() > 3


class _Peeking:
    """A pass that asks the host for something."""

    def __init__(self, forward: Forward, peek: Callable[[Tensor], object]) -> None:
        self._forward = forward
        self._peek = peek

    def __call__(self, token_ids: Tensor, positions: Tensor, outputs: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        self._peek(positions)
        return self._forward(token_ids, positions, outputs, plan)


@pytest.mark.parametrize(
    "peek",
    [
        lambda numbers: numbers.max().item(),
        lambda numbers: numbers.tolist(),
        lambda numbers: bool((numbers > 3).any()),
        lambda numbers: numbers.nonzero(),
        lambda numbers: numbers[numbers > 3],
        lambda numbers: numbers + torch.tensor([1]),
        lambda numbers: numbers.cpu(),
    ],
)
def test_a_pass_that_cannot_be_recorded_runs_directly_and_a_line_says_why(
    peek: Callable[[Tensor], object], caplog: pytest.LogCaptureFixture
) -> None:
    both = BothWays(random_model("llama"), lambda model: _Peeking(fused(model), peek))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("steps cannot be recorded as graphs and run directly: operation not permitted")
    assert "advice" not in line
    assert both.runner.num_recorded == 0
    for rows, token_ids in steps(3, 4):
        assert_equal(*both.forward(rows, token_ids))
    assert both.runner.counts.num_eager == Counter({"not recorded": 4})


def test_rope_that_looks_at_the_positions_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """A real case: transformers asks for the largest position."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    both = BothWays(random_model("llama", rope_parameters=rope), TransformersForward)
    assert "run directly" in caplog.text
    assert_equal(*both.forward([Row(0, 0, 3)], [1, 2, 3]))


def test_numbers_that_bypass_the_tensors_that_stay_are_noticed() -> None:
    """The double is worth something: a pass that counts in Python is repeated with the number it had."""
    count = 0

    def counting(values: Tensor) -> tuple[Tensor, ...]:
        nonlocal count
        count += 1
        return (values + count,)

    function = GraphedFunction("counting", counting, (torch.zeros(1, 2),), AtenRecorder(), 4)
    first, second = function(torch.zeros(3, 2)), function(torch.zeros(3, 2))
    assert torch.equal(first[0], second[0])
    assert function.counts.num_replayed == 2


def test_shapes_are_recorded_from_the_largest_to_the_smallest(caplog: pytest.LogCaptureFixture) -> None:
    sizes: list[int] = []

    def noting(model: PreTrainedModel) -> Forward:
        return _Peeking(fused(model), lambda numbers: sizes.append(len(numbers)))

    with caplog.at_level(logging.INFO):
        BothWays(random_model("llama"), noting)
    assert sizes == sorted(sizes, reverse=True)
    assert "recorded 4 decodes of up to 6 rows and 7 extends of up to 16 tokens as graphs" in caplog.text


@dataclass
class _RecordedCpu(CpuDevice):
    """A CPU whose engines replay."""

    runners: list[GraphRunner] = field(default_factory=list)

    def attention(self, shape: KvShape, *, num_slots: int, max_blocks: int, dtype: torch.dtype, **_: Any) -> Any:
        return GatherBackend(shape, num_slots=num_slots, max_blocks=max_blocks, dtype=dtype)

    def runner(self, forward: Forward, backend: Any, num_tokens: int) -> Runner:  # type: ignore[override]
        direct = super().runner(forward, backend, num_tokens)
        buckets = Buckets.up_to(5, 24)
        runner = GraphRunner(forward, backend, direct, buckets, AtenRecorder(), num_tokens=num_tokens, device=CPU)
        self.runners.append(runner)
        return runner


def _answers(engine: Engine) -> list[list[int]]:
    """Some sequences of all kinds, which come and go, are handed tokens and rolled back."""
    rng = random.Random(4)
    found: list[list[int]] = []
    live: list[Sequence] = []
    for step_number in range(70):
        if step_number % 9 == 0 and len(live) < 5:
            sampling = SamplingParams(
                temperature=rng.choice([0.0, 0.8, 1.3]), top_p=rng.choice([1.0, 0.9]), seed=step_number,
                frequency_penalty=rng.choice([0.0, 0.5]), num_logprobs=rng.choice([None, 2]),
            )  # fmt: skip
            one = sequence([rng.randrange(3, 400) for _ in range(rng.randint(1, 40))], room=20, sampling=sampling)
            engine.open(one)
            live.append(one)
        engine.admit()
        step = engine.step()
        for one, proposal, told in zip(step.sequences, step.proposals, step.logprobs, strict=True) if step else ():
            if len(one) < one.max_length:
                one.append([proposal])
                found.append([proposal, *(told.top_token_ids if told else ())])
            if one.position > 4 and rng.random() < 0.2:
                engine.truncate(one, len(one) - rng.randint(1, 3))
                one.append([rng.randrange(3, 400) for _ in range(min(3, one.max_length - len(one)))])
                one.opinions_from = len(one) - 1
        found += [opinion.token_ids for opinion in step.opinions] if step else []
        for one in [one for one in live if len(one) == one.max_length]:
            live.remove(one)
            found.append(one.tokens)
            engine.close(one)
    return found


def test_an_engine_that_replays_writes_what_one_does_that_does_not(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ModelSettings(path=model_path, num_kv_tokens=512, max_running=5, max_step_tokens=48)
    wanted = _answers(Engine.load(settings))
    device = _RecordedCpu()
    monkeypatch.setattr("allroads.engine.execution.pick_device", lambda _: device)
    assert _answers(Engine.load(settings)) == wanted
    counts = device.runners[-1].counts
    assert counts.num_replayed > 3 * counts.num_eager.total() > 0


@pytest.mark.parametrize("recorder", [None, AtenRecorder()])
def test_draws_are_the_same_as_recordings(recorder: Recorder | None) -> None:
    """Bit for bit, for batches of any size; no row minds what the batch before left."""
    draws = recorded_draw(500, CPU, recorder, 20)
    generator = torch.Generator().manual_seed(0)
    for count in (3, 20, 24, 1, 25, 7):
        rows = [
            PlainRow(
                SamplingParams(
                    temperature=0.0 if seed % 4 == 0 else 0.3 + seed % 3,
                    top_k=seed % 5, top_p=1.0 - seed % 3 / 10, min_p=seed % 2 / 50, seed=seed,
                )
            )
            for seed in range(1, 1 + count)
        ]  # fmt: skip
        logits = 3 * torch.randn(count, 500, generator=generator)
        logits[count // 2, 3] = float("nan")
        assert sample(logits, rows, draws).tolist() == sample(logits, rows).tolist()
    if isinstance(draws, GraphedFunction):
        # The greedy quarter of them is not drawn.
        assert draws.counts.num_replayed == 6
        assert draws(logits.expand(7, -1), torch.ones(7, 5, dtype=torch.float64))[0].shape == (7,)
    else:
        assert draws is draw_tokens


def test_a_function_outside_of_its_sizes_or_off_runs_directly() -> None:
    def doubled(values: Tensor) -> tuple[Tensor, ...]:
        return (2 * values,)

    for recorder, reason in ((AtenRecorder(), "rows"), (None, "not recorded")):
        function = GraphedFunction("doubling", doubled, (torch.zeros(1, 2),), recorder, 4)
        for count in (5, 0):
            values = torch.ones(count, 2)
            assert torch.equal(function(values)[0], 2 * values)
        assert function.counts.num_eager == Counter({reason: 2})
        assert function.counts.num_replayed == 0


def test_inputs_are_brought_to_the_type_of_the_examples() -> None:
    for recorder in (None, AtenRecorder()):
        function = GraphedFunction("same", lambda values: (values,), (torch.zeros(1, 2),), recorder)
        (found,) = function(torch.ones(3, 2, dtype=torch.float64))
        assert found.dtype == torch.float32
        assert torch.equal(found, torch.ones(3, 2))


def test_a_function_that_cannot_be_recorded_runs_directly(caplog: pytest.LogCaptureFixture) -> None:
    function = GraphedFunction(
        "peeking", lambda values: (values * values.sum().item(),), (torch.ones(1),), AtenRecorder()
    )
    assert "peeking cannot be recorded and runs directly: operation not permitted" in caplog.text
    assert function(torch.tensor([2.0, 3.0]))[0].tolist() == [10.0, 15.0]
    assert function.counts.num_eager == Counter({"not recorded": 1})


def test_of_an_error_that_raised_another_the_first_is_told() -> None:
    first, last = RuntimeError("out of memory\nSome advice."), RuntimeError("failed due to a previous error")
    last.__context__ = first
    assert first_line(last) == "out of memory"
    assert first_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(("device", "graphs"), [("cpu", "auto"), ("cpu", "off"), ("cuda", "off")])
def test_nothing_is_recorded_on_a_cpu_or_when_it_is_off(device: str, graphs: Any) -> None:
    assert recorder_on(torch.device(device), graphs, "normal") is None
    assert BATCH_SIZES[-1] == 64
