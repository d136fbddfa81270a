"""A model that is cut over two processes writes what it writes in one, and they end together."""

import random
import threading
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from allroads.config import MeshSettings, embedded_path
from allroads.engine.attention import KvShape, Row
from allroads.engine.engine import Engine
from allroads.engine.place import Place
from allroads.engine.rank_link import FRAME_NUMBERS, FollowerLink, GlooChannel, LeaderLink
from allroads.engine.rank_orders import Assign, Begin, Clear, Forward, Order, Stop, pack, unpack
from allroads.engine.sequence import Sequence
from allroads.engine.tensor_parallel import device_of, join, require_plan, split
from allroads.errors import Internal, StartupError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ..doubles.ranks import leading, led_engine, needs_ranks
from .conftest import sequence

VOCABULARY = 474
"""Two more than the tokenizer has. Even, since transformers before 5.24 cuts no odd output layer in two."""
SHAPE = {
    "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY, "max_position_embeddings": 256,
}  # fmt: skip
ORDERS: list[Order] = [
    Begin(4096),
    Assign(3, (7, 8, 9)),
    Assign(0, ()),
    Clear((1, 2)),
    Forward((Row(3, 0, 2), Row(1, 5, 9, 4)), (10, 11, 12, 13, 14, 15)),
    Stop(),
]


def _write_model(directory: Path, kind: str, **changes: Any) -> MeshSettings:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SHAPE, **changes}))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    model.save_pretrained(directory / "model")
    PreTrainedTokenizerFast.from_pretrained(embedded_path("llm")).save_pretrained(str(directory / "model"))
    return MeshSettings.model_validate(
        {
            "llm": {
                "path": directory / "model",
                "tensor_parallel": 2,
                "num_kv_tokens": 512,
                "block_size_tokens": 4,
                "max_step_tokens": 24,
                "max_running": 8,
            }
        }
    )


def _alone(settings: MeshSettings) -> Engine:
    return Engine.load(settings.llm.model_copy(update={"tensor_parallel": 1}))


class _Twins:
    """The same sequences in two engines, which must do the same with them."""

    def __init__(self, first: Engine, second: Engine, tolerance: float = 1e-4) -> None:
        self.engines = (first, second)
        self.tolerance = tolerance
        self.live: list[tuple[Sequence, Sequence]] = []

    def open(self, tokens: list[int]) -> tuple[Sequence, Sequence]:
        pair = (sequence(tokens), sequence(tokens))
        for engine, one in zip(self.engines, pair, strict=True):
            engine.open(one)
            engine.admit()
        self.live.append(pair)
        return pair

    def step(self) -> None:
        """Compare all that a step gives, and take its proposals."""
        first, second = (engine.step() for engine in self.engines)
        assert (first is None) == (second is None)
        if first is None or second is None:
            return
        index = {id(one): place for place, pair in enumerate(self.live) for one in pair}
        assert [index[id(one)] for one in first.sequences] == [index[id(one)] for one in second.sequences]
        assert first.proposals == second.proposals
        assert torch.allclose(first.logits, second.logits, atol=self.tolerance)
        assert torch.allclose(first.hidden_states, second.hidden_states, atol=self.tolerance)
        assert len(first.drafted) == len(second.drafted)
        for ours, theirs in zip(first.drafted, second.drafted, strict=True):
            assert torch.allclose(ours.logits, theirs.logits, atol=self.tolerance)
        for step in (first, second):
            for one, token_id in zip(step.sequences, step.proposals, strict=True):
                one.append([token_id])

    def truncate(self, pair: tuple[Sequence, Sequence], length: int) -> None:
        for engine, one in zip(self.engines, pair, strict=True):
            engine.truncate(one, length)

    def close(self, pair: tuple[Sequence, Sequence]) -> None:
        self.live.remove(pair)
        for engine, one in zip(self.engines, pair, strict=True):
            engine.close(one)


@needs_ranks
@pytest.mark.parametrize(("kind", "changes"), [("llama", {}), ("qwen3", {"tie_word_embeddings": True})])
def test_two_processes_write_what_one_writes(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Prompts in pieces, drafts, roll-backs into shared blocks, sequences that come and go."""
    settings = _write_model(tmp_path, kind, **changes)
    alone = _alone(settings)
    rng = random.Random(1)
    stem = [rng.randrange(3, 400) for _ in range(40)]
    with leading(settings, tmp_path) as (member, _):
        twins = _Twins(alone, led_engine(settings, member))
        for turn in range(40):
            if len(twins.live) < 5:
                twins.open([*stem[: rng.randint(1, 40)], rng.randrange(3, 400)])
            pair = rng.choice(twins.live)
            if pair[0].num_uncomputed == 1:
                if turn % 3 == 0:
                    twins.truncate(pair, rng.randint(2, len(pair[0])))
                elif turn % 3 == 1:
                    drafts = [rng.randrange(3, 400) for _ in range(3)]
                    for one in pair:
                        one.draft(drafts)
            if turn % 8 == 7:
                twins.close(twins.live[0])
            twins.step()
        for pair in list(twins.live):
            twins.close(pair)
        for engine in twins.engines:
            assert engine.pool.num_free == engine.pool.num_blocks


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate")
@pytest.mark.parametrize("graphs", ["auto", "off"])
def test_two_gpus_write_what_one_writes(graphs: str, tmp_path: Path) -> None:
    settings = _write_model(tmp_path, "qwen3", head_dim=64)
    settings = settings.with_internal({"llm": {"device": "cuda:0", "graphs": graphs}})
    alone = _alone(settings)
    with leading(settings, tmp_path) as (member, _):
        twins = _Twins(alone, led_engine(settings, member), tolerance=1e-2)
        for length in (3, 17, 40):
            twins.open(list(range(5, 5 + length)))
        for _ in range(30):
            twins.step()


@needs_ranks
def test_nan_is_cleared_in_both_processes_and_a_death_ends_the_other(tmp_path: Path) -> None:
    settings = _write_model(tmp_path, "qwen3")
    settings = settings.with_internal({"llm": {"num_kv_tokens": 192}})
    alone = _alone(settings)
    with leading(settings, tmp_path) as (member, other):
        twins = _Twins(alone, led_engine(settings, member))
        poisoned = twins.open(list(range(5, 25)))
        twins.step()
        # In the first layer's KV of this process alone; what is added up inside the layers takes it to the other.
        kv = twins.engines[1]._backend._own.kv_blocks()  # type: ignore[attr-defined]
        kv.memory[0, :, poisoned[1].blocks] = float("nan")
        poisoned[1].draft(list(range(40, 52)))
        step = twins.engines[1].step()
        assert step is not None
        assert step.failed == [poisoned[1]]
        twins.close(poisoned)
        for length in (5, 45):
            # The first one gets the blocks that were freed, and reads as many of them as the other needs.
            twins.open(list(range(30, 30 + length)))
        for _ in range(20):
            twins.step()
        other.kill()
        assert other.wait(10) < 0
        with pytest.raises(Internal, match="another process of this model is gone"):
            twins.engines[1].step()
        assert isinstance(member.link.lost.exception(0), Internal)


def test_orders_travel_as_numbers() -> None:
    assert unpack(pack(ORDERS)) == ORDERS
    assert unpack([]) == []


@pytest.mark.parametrize(
    "values",
    [
        [1],
        [1, 1],
        [1, 2, 5],
        [9, 0],
        [2, 0],
        [3, -1],
        [4, 1, 1],
        [4, 6, 1, 0, 0, 2, 1, 5],
        [4, 5, 1, 0, 3, 2, 1],
        [5, 1, 0],
    ],
)
def test_a_message_that_is_none_is_refused(values: list[int]) -> None:
    with pytest.raises(Internal):
        unpack(values)


class _Pipe:
    """A channel whose other end reads later."""

    def __init__(self) -> None:
        self.sent: list[Tensor] = []
        self.arrived = threading.Semaphore(0)
        self.is_broken = False

    def broadcast(self, values: Tensor) -> None:
        if self.is_broken:
            raise RuntimeError("connection closed")
        self.sent.append(values.clone())
        self.arrived.release()

    def reader(self) -> FollowerLink:
        return FollowerLink(_Reading(self.sent))


class _Reading:
    def __init__(self, sent: list[Tensor]) -> None:
        self._sent = sent

    def broadcast(self, values: Tensor) -> None:
        values.copy_(self._sent.pop(0))


@pytest.mark.parametrize("num_tokens", [1, FRAME_NUMBERS - 8, FRAME_NUMBERS, 5 * FRAME_NUMBERS])
def test_a_message_of_any_length_arrives_whole(num_tokens: int) -> None:
    pipe = _Pipe()
    link = LeaderLink(pipe)
    step = Forward((Row(2, 0, num_tokens),), tuple(range(num_tokens)))
    link.queue(ORDERS[1])
    assert pipe.sent == [], "goes with what is sent next"
    link.send(step)
    assert pipe.reader().receive() == [ORDERS[1], step]
    assert pipe.sent == []


def test_orders_that_nothing_follows_do_not_pile_up() -> None:
    pipe = _Pipe()
    link = LeaderLink(pipe)
    for _ in range(200):
        link.queue(ORDERS[3])
    assert 0 < len(pipe.sent) <= 200 // 50


def test_a_silent_leader_says_that_it_lives_until_the_line_breaks() -> None:
    pipe = _Pipe()
    link = LeaderLink(pipe, heartbeat_s=0.001)
    link.start()
    assert all(pipe.arrived.acquire(timeout=10) for _ in range(3))
    assert pipe.reader().receive() == []
    pipe.is_broken = True
    with pytest.raises(Internal, match="connection closed"):
        link.lost.result(10)
    link.stop()


@needs_ranks
def test_processes_wait_long_for_each_other_until_all_are_loaded(tmp_path: Path) -> None:
    """gloo gives up after the group's own limit in all processes but the first, whatever a barrier is told."""
    with leading(_write_model(tmp_path, "llama"), tmp_path) as (member, _):
        channel = member.link._channel
        assert isinstance(channel, GlooChannel)
        groups = member._loading, channel._group
        limits = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
        assert limits == [timedelta(hours=1), timedelta(minutes=1)]


def test_heads_that_cannot_be_shared_out_are_refused_with_numbers() -> None:
    shape = KvShape(2, 8, 16, 10, 4, 32)
    assert split(shape, 4) == KvShape(2, 2, 16, 10, 4, 8)
    with pytest.raises(StartupError, match="is 3, but the model has 32 heads and 8 KV heads") as caught:
        split(shape, 3)
    assert caught.value.field == "tensor_parallel"


def test_models_that_transformers_cannot_cut_by_heads_are_refused() -> None:
    require_plan(AutoConfig.for_model("llama"))
    with pytest.raises(StartupError, match="no plan that cuts a gpt2") as caught:
        require_plan(AutoConfig.for_model("gpt2"))
    assert caught.value.field == "tensor_parallel"


def test_a_process_alone_does_not_serve_a_model_that_is_cut(tmp_path: Path) -> None:
    settings = _write_model(tmp_path, "llama")
    with pytest.raises(StartupError, match="this is one process of 1") as caught:
        Engine.load(settings.llm)
    assert caught.value.field == "tensor_parallel"
    with pytest.raises(StartupError, match="this is process 0 of 3, but tensor_parallel is 2"):
        join(Place(0, 3), settings.llm)


def test_processes_take_gpus_in_a_row() -> None:
    llm = MeshSettings().llm
    on_gpu = llm.model_copy(update={"device": "cuda:2"})
    assert [device_of(on_gpu, rank) for rank in range(2)] == ["cuda:2", "cuda:3"]
    assert device_of(llm, 1) == "cpu"
