"""KV that one tier lends and another adopts: the same tokens with less to compute, and nothing worse when it fails."""

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from allroads.config import TierSettings
from allroads.engine import kv_adoption
from allroads.engine.engine import Engine
from allroads.engine.kv_adoption import FIRST_PAUSE_S, LIMIT_S, LINGER_S, KvAdoption
from allroads.engine.kv_lending import LOAN_LIMIT_S, MAX_LOANS, KvLending
from allroads.engine.sampling_params import SamplingParams
from allroads.engine.sequence import Sequence, State
from allroads.errors import AllroadsError, ResourceExhausted, StartupError
from allroads.llm.adoption import read_offer
from allroads.llm.kv_memory import open_peer_pool
from allroads.llm.kv_shared_memory import SharedKvMemory
from allroads.llm.kv_sharing import identity_of_kv, memory_to_lend
from allroads.llm.lending import identity_of, identity_to_wire
from allroads.mesh.regions import DIRECTORY
from allroads.mesh.wire import model_pb2

from ..doubles.tiny_pair import write_tiny_pair

pytestmark = pytest.mark.skipif(not DIRECTORY.is_dir(), reason="no /dev/shm here")

BLOCK = 4
PROMPT = [5 + 7 * index % 90 for index in range(81)]
NUM_WHOLE = 20
"""Blocks before the prompt's last token."""
NUM_WRITTEN = 12
ROOM = 32


@dataclass
class Clock:
    """In seconds."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class Bench:
    """One tier's engine, and what it has computed."""

    engine: Engine
    sequences: list[Sequence] = field(default_factory=list)

    def open(self, tokens: list[int] = PROMPT) -> Sequence:
        sequence = Sequence(list(tokens), len(tokens) + ROOM, SamplingParams(temperature=0.0), len(tokens))
        self.engine.open(sequence)
        self.sequences.append(sequence)
        return sequence

    def run(self, count: int = NUM_WRITTEN) -> None:
        """Turn until no sequence writes: each `count` tokens."""
        while any(s.position < count and s.state is not State.PENDING for s in self.sequences):
            self.engine.admit()
            step = self.engine.step()
            for sequence, token in zip(step.sequences, step.proposals, strict=True) if step else ():
                sequence.append([token])
                if sequence.position == count:
                    self.engine.pend(sequence)

    def write(self, tokens: list[int] = PROMPT, count: int = NUM_WRITTEN) -> list[int]:
        """What follows these tokens; the sequence is closed then."""
        sequence = self.open(tokens)
        self.run(count)
        self.close(sequence)
        return sequence.tokens[len(tokens) :]

    def close(self, sequence: Sequence) -> None:
        self.engine.close(sequence)
        self.sequences.remove(sequence)

    def check(self) -> None:
        """Everything given back, and nothing counted wrong."""
        for sequence in list(self.sequences):
            self.close(sequence)
        self.engine.pool.check()
        assert self.engine.pool.num_used == 0


@dataclass(eq=False)
class Wire:
    """A lender as its borrower sees it, without a wire: what it answers arrives when the test says so."""

    lending: KvLending
    told: model_pb2.KvPool
    adoption: KvAdoption | None = None
    name: str = "the other"
    late: list[Callable[[], None]] = field(default_factory=list)
    num_asked: int = 0
    bench: Bench | None = None

    def ask(self, number: int, tokens: tuple[int, ...], num_known_blocks: int) -> None:
        self.num_asked += 1
        self._answer(partial(self._ask, number, tokens, num_known_blocks))

    def release(self, number: int, generation: int, loan_id: int) -> None:
        self._answer(partial(self._release, number, generation, loan_id))

    def catch_up(self) -> None:
        """What was held back arrives."""
        late, self.late = self.late, []
        for answer in late:
            answer()

    def _answer(self, answer: Callable[[], None]) -> None:
        # Never within the call that asks.
        self.late.append(answer)

    def _ask(self, number: int, tokens: tuple[int, ...], num_known: int) -> None:
        assert self.adoption is not None
        assert self.bench is not None
        request = model_pb2.MoveSequenceRequest(token_ids=tokens, num_known_blocks=num_known)
        request.kv.block_size_tokens = BLOCK
        try:
            loan = self.lending.lend(tokens, num_known)
            response = model_pb2.MoveSequenceResponse(pool=self.told)
            if loan is not None:
                response.loan_id = loan.loan_id
                response.block_ids.extend(loan.blocks)
            offer = read_offer(response, request, self.bench.engine.kv_blocks)
        except AllroadsError as error:
            self.adoption.failed(number, error.message)
            return
        if offer is None:
            self.adoption.refused(number)
        else:
            self.adoption.offered(number, offer)

    def _release(self, number: int, generation: int, loan_id: int) -> None:
        assert self.adoption is not None
        self.adoption.released(number, was_good=self.lending.release(generation, loan_id))


@dataclass(eq=False)
class Two:
    """A lender and a borrower of the same model."""

    lender: Bench
    borrower: Bench
    lending: KvLending
    adoption: KvAdoption
    wire: Wire
    clock: Clock

    def adopt(self, tokens: list[int] = PROMPT) -> Sequence:
        """Open a sequence at the borrower, and turn until it is admitted."""
        sequence = self.borrower.open(tokens)
        while sequence.state is State.WAITING:
            self.turn()
        return sequence

    def turn(self) -> None:
        self.wire.catch_up()
        self.borrower.engine.admit()

    def check(self) -> None:
        self.wire.catch_up()
        self.borrower.engine.admit()
        self.adoption.close()
        for bench in (self.lender, self.borrower):
            bench.check()
        assert (self.lending.num_loans, self.adoption.num_under_way) == (0, 0)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    write_tiny_pair(directory)
    return directory


@pytest.fixture
def memory() -> Iterator[SharedKvMemory]:
    memory = SharedKvMemory()
    yield memory
    memory.close()


def _settings(models: Path, **others: object) -> TierSettings:
    values = {"path": models / "llm", "block_size_tokens": BLOCK, "num_kv_tokens": 100 * BLOCK, "max_running": 8}
    return TierSettings.model_validate(values | others)


@pytest.fixture
def two(models: Path, memory: SharedKvMemory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    # So that copies take several turns.
    monkeypatch.setattr("allroads.llm.kv_shared_memory._BYTES_PER_TURN", 1)
    lender = Bench(Engine.load(_settings(models), allocate=memory.allocate))
    borrower = Bench(Engine.load(_settings(models, num_kv_tokens=70 * BLOCK)))
    clock = Clock()
    lending = KvLending(lender.engine, settle=memory.settle, clock=clock)
    lender.engine.share_kv(lending=lending)
    told = model_pb2.KvPool(
        generation=lending.generation, num_blocks=lender.engine.kv_blocks.num_blocks, region=memory.describe()
    )
    wire = Wire(lending, told, bench=borrower)
    adoption = KvAdoption(borrower.engine, wire, clock=clock)
    wire.adoption = adoption
    borrower.engine.share_kv(adoption=adoption)
    yield Two(lender, borrower, lending, adoption, wire, clock)
    adoption.close()


def _kv(engine: Engine, blocks: list[int]) -> torch.Tensor:
    kv = engine.kv_blocks
    return kv.memory.index_select(kv.dim, torch.tensor(blocks))


def test_adopted_kv_is_the_same_and_is_not_computed(two: Two) -> None:
    written = two.lender.write()
    sequence = two.adopt()
    assert (sequence.num_cached, two.adoption.num_adopted_tokens) == (NUM_WHOLE * BLOCK,) * 2
    assert torch.equal(
        _kv(two.borrower.engine, sequence.blocks[:NUM_WHOLE]),
        _kv(two.lender.engine, two.lender.engine.pool.match(PROMPT)),
    )
    two.borrower.run()
    assert sequence.tokens[len(PROMPT) :] == written
    assert sequence.num_positions == 1 + NUM_WRITTEN - 1
    assert two.lending.num_lent_tokens == NUM_WHOLE * BLOCK
    two.check()


def test_what_a_sequence_wrote_moves_with_it(two: Two) -> None:
    whole = two.lender.write(count=24)
    half = PROMPT + whole[:NUM_WRITTEN]
    sequence = two.adopt(half)
    assert sequence.num_cached == (len(half) - 1) // BLOCK * BLOCK
    two.borrower.run()
    assert sequence.tokens[len(half) :] == whole[NUM_WRITTEN:]
    two.check()


def test_a_sequence_that_goes_on_there_lends_its_prompt(two: Two) -> None:
    running = two.lender.open()
    two.lender.run(3)
    sequence = two.adopt()
    assert sequence.num_cached == NUM_WHOLE * BLOCK
    two.lender.engine.resume(running)
    two.lender.run()
    two.borrower.run()
    assert sequence.tokens == running.tokens
    two.check()


def test_only_what_is_missing_is_lent(two: Two) -> None:
    two.lender.write()
    two.borrower.write(PROMPT[: 2 * BLOCK + 1], count=1)
    sequence = two.adopt()
    assert two.lending.num_lent_tokens == (NUM_WHOLE - 2) * BLOCK
    assert sequence.num_cached == NUM_WHOLE * BLOCK
    two.check()


def test_a_second_one_finds_it_here(two: Two) -> None:
    two.lender.write()
    two.borrower.close(two.adopt())
    assert two.adopt().num_cached == NUM_WHOLE * BLOCK
    assert two.wire.num_asked == 1
    two.check()


def test_short_prompts_and_unknown_ones(two: Two) -> None:
    two.lender.write()
    assert not two.borrower.open(PROMPT[:60]).is_held
    other = [9, *PROMPT]
    assert two.adopt(other).num_cached == 0
    assert (two.wire.num_asked, two.adoption.num_failed) == (1, 0)
    two.check()


def test_neighbours_go_on_while_a_sequence_is_held_back(two: Two) -> None:
    two.lender.write()
    held, neighbour = two.borrower.open(), two.borrower.open([3, 4, 5])
    two.borrower.engine.admit()
    assert (held.state, neighbour.state) == (State.WAITING, State.RUNNING)
    two.turn()
    # A block a turn, as the fixture has it.
    assert two.borrower.engine.held_s == 0
    num_turns = 0
    while held.state is State.WAITING:
        two.turn()
        step = two.borrower.engine.step()
        if step is not None:
            neighbour.append(step.proposals)
        num_turns += 1
    assert num_turns >= NUM_WHOLE
    assert neighbour.position >= NUM_WHOLE
    two.check()


@pytest.mark.parametrize("stage", ["asked", "copying", "releasing"])
def test_who_leaves_while_held_back_leaves_nothing(two: Two, stage: str) -> None:
    two.lender.write()
    sequence = two.borrower.open()
    if stage != "asked":
        two.turn()
    while stage == "releasing" and not two.wire.late:
        two.borrower.engine.admit()
    two.borrower.close(sequence)
    two.turn()
    assert two.adoption.num_under_way == 0
    assert two.adoption.num_failed == 0
    two.check()


def test_a_lender_that_does_not_answer_costs_a_moment(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    written = two.lender.write()
    sequence = two.borrower.open()
    two.borrower.engine.admit()
    assert sequence.state is State.WAITING
    two.clock.now += LIMIT_S
    with caplog.at_level(logging.WARNING):
        two.borrower.engine.admit()
    assert (sequence.state, sequence.num_cached) == (State.RUNNING, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "KV is not adopted from the other: it took longer than 0.25 s; it is computed here"
    ]
    two.wire.catch_up()
    assert two.lending.num_loans == 1, "lent too late"
    two.wire.catch_up()
    assert two.lending.num_loans == 0, "and given back"
    two.borrower.run()
    assert sequence.tokens[len(PROMPT) :] == written
    two.check()


def test_what_was_copied_in_time_counts(two: Two) -> None:
    two.lender.write()
    sequence = two.borrower.open()
    two.turn()
    for _ in range(4):
        two.borrower.engine.admit()
    two.clock.now += 0.9 * LIMIT_S
    while sequence.state is State.WAITING:
        two.turn()
    assert sequence.num_cached == 5 * BLOCK
    two.check()


def test_after_a_failure_it_is_left_alone_for_longer_and_longer(two: Two) -> None:
    two.lender.write()
    told = model_pb2.KvPool()
    told.CopyFrom(two.wire.told)
    two.wire.told.region.probe = b"wrong"
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S):
        num_asked = two.wire.num_asked
        two.adopt()
        assert not two.borrower.open().is_held
        two.clock.now += pause_s - 0.01
        assert not two.borrower.open().is_held
        assert two.wire.num_asked == num_asked + 1
        two.clock.now += 0.01
        for sequence in list(two.borrower.sequences):
            two.borrower.close(sequence)
    two.wire.told = told
    assert two.adopt().num_cached == NUM_WHOLE * BLOCK
    assert two.adoption.num_failed == 2
    two.check()


def _until_released(two: Two) -> Sequence:
    """A sequence whose copies are made, and whose loan is about to be given back."""
    sequence = two.borrower.open()
    two.turn()
    while not two.wire.late:
        two.borrower.engine.admit()
    return sequence


def _is_computed_here(two: Two, sequence: Sequence, written: list[int], blocks: list[int]) -> None:
    """The copies are gone, their blocks are clean, and the answer is as it should be."""
    two.wire.catch_up()
    assert two.adoption.num_failed == 1
    assert not _kv(two.borrower.engine, blocks).any()
    two.borrower.run()
    assert (sequence.num_cached, two.adoption.num_adopted_tokens) == (0, 0)
    assert sequence.tokens[len(PROMPT) :] == written
    two.check()


def test_a_loan_that_ran_out_is_worth_nothing(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    written = two.lender.write()
    sequence = _until_released(two)
    blocks = list(range(NUM_WHOLE))
    assert _kv(two.borrower.engine, blocks).any()
    # The lender's time, not the borrower's.
    two.clock.now += LOAN_LIMIT_S
    two.lender.engine.admit()
    two.clock.now -= LOAN_LIMIT_S
    assert (two.lending.num_loans, two.lending.num_broken) == (0, 1)
    assert "1 loan(s) of KV were not given back within 2 s: over" in caplog.text
    _is_computed_here(two, sequence, written, blocks)


def test_a_loan_ends_where_its_blocks_are_written_again(two: Two) -> None:
    written = two.lender.write()
    owner = two.lender.open()
    two.lender.run(2)
    sequence = _until_released(two)
    # Nothing else is free there, and still it need not wait.
    pool = two.lender.engine.pool
    taken = pool.allocate(pool.num_free)
    two.lender.engine.truncate(owner, 8)
    assert two.lending.num_broken == 1
    pool.free(taken)
    _is_computed_here(two, sequence, written, list(range(NUM_WHOLE)))


def test_kv_that_turned_out_bad_meanwhile_is_not_used(two: Two) -> None:
    written = two.lender.write()
    owner = two.lender.open()
    two.lender.run(2)
    sequence = _until_released(two)
    bad = owner.blocks[3]
    two.lender.engine.pool.forget([bad])
    _is_computed_here(two, sequence, written, list(range(NUM_WHOLE)))


def test_nan_of_a_block_that_was_lent_reaches_nobody(two: Two) -> None:
    """Its owner is gone before the loan is over, so that the loan is the last to hold it."""
    two.lender.write()
    owner = two.lender.open()
    two.lender.run(2)
    loan = two.lending.lend(PROMPT)
    assert loan is not None
    kv = two.lender.engine.kv_blocks
    kv.memory.select(kv.dim, loan.blocks[-1]).fill_(float("nan"))
    two.lender.engine._disown(owner)
    two.lender.close(owner)
    assert _kv(two.lender.engine, [loan.blocks[-1]]).isnan().all(), "it is still lent"
    assert not two.lending.release(two.lending.generation, loan.loan_id)
    assert not _kv(two.lender.engine, list(loan.blocks)).isnan().any()
    two.check()


def test_a_lender_that_was_started_again_is_another(two: Two) -> None:
    two.lender.write()
    held = two.borrower.open()
    two.turn()
    other = two.borrower.open([*PROMPT[:-1], 4, 4])
    two.wire.told.generation += 1
    two.turn()
    assert two.adoption.num_failed == 1
    assert held.state is State.RUNNING
    two.borrower.close(other)
    two.wire.catch_up()
    assert not two.lending.release(two.lending.generation + 1, 1)
    assert two.lending.num_loans == 1, "given back to another life of the lender"
    two.clock.now += LOAN_LIMIT_S
    two.lender.engine.admit()
    two.check()


def test_its_memory_is_let_go_when_nobody_needs_it(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    two.lender.write()
    two.adopt()
    num_open = len(os.listdir("/proc/self/fd"))
    two.clock.now += LINGER_S
    with caplog.at_level(logging.INFO):
        two.borrower.engine.admit()
    assert len(os.listdir("/proc/self/fd")) == num_open - 1
    assert caplog.messages == ["KV of 80 tokens was adopted from the other, 0 sequence(s) went without"]
    two.borrower.close(two.borrower.sequences[0])
    two.borrower.engine.pool.allocate(70)
    two.borrower.engine.pool.free(list(range(70)))
    assert two.adopt().num_cached == NUM_WHOLE * BLOCK
    two.check()


def test_a_pool_without_room_adopts_what_fits(two: Two) -> None:
    two.lender.write()
    pool = two.borrower.engine.pool
    taken = pool.allocate(pool.num_blocks - 3)
    sequence = two.borrower.open()
    for _ in range(8):
        two.turn()
    assert not sequence.is_held
    assert two.adoption.num_adopted_tokens == 3 * BLOCK
    pool.free(taken)
    two.turn()
    assert sequence.num_cached == 3 * BLOCK
    two.check()


def test_no_more_at_once_than_is_reasonable(two: Two) -> None:
    two.lender.write()
    held = [two.borrower.open([*PROMPT, index]) for index in range(kv_adoption.MAX_ADOPTIONS + 1)]
    assert [sequence.is_held for sequence in held] == [True] * kv_adoption.MAX_ADOPTIONS + [False]
    while any(sequence.is_held for sequence in held):
        two.turn()
    for _ in range(MAX_LOANS):
        assert two.lending.lend(PROMPT) is not None
    with pytest.raises(ResourceExhausted):
        two.lending.lend(PROMPT)
    two.clock.now += LOAN_LIMIT_S
    two.lender.engine.admit()
    assert two.lending.num_broken == MAX_LOANS
    two.check()


def test_a_lender_that_shrinks_its_memory_ends_nobody(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    written = two.lender.write()
    sequence = two.borrower.open()
    two.turn()
    path = DIRECTORY / two.wire.told.region.shared_memory.name
    # Of a file of its own: the lender here would be ended by a bus error.
    content = path.read_bytes()
    two.adoption.close()
    copy = SharedKvMemory()
    copy.allocate((len(content) - 4096,), torch.uint8, torch.device("cpu"))
    two.adoption._pool = open_peer_pool(
        model_pb2.KvPool(num_blocks=two.wire.told.num_blocks, region=copy.describe()), two.borrower.engine.kv_blocks
    )
    os.truncate(DIRECTORY / copy.describe().shared_memory.name, 4096)
    two.turn()
    assert "the shared-memory region is not valid" in caplog.text
    copy.close()
    two.borrower.run()
    assert sequence.tokens[len(PROMPT) :] == written
    two.check()


def test_the_identity_names_what_differs(two: Two, models: Path) -> None:
    settings = _settings(models)
    mine = identity_of_kv(two.lender.engine, settings)
    assert mine.difference(identity_of(identity_to_wire(mine))) == ""
    assert mine == identity_of_kv(two.borrower.engine, settings)
    assert (mine.attention, mine.dtype, mine.block_size_tokens) == ("sdpa", "float32", BLOCK)
    other = identity_of_kv(Engine.load(_settings(models, dtype="bfloat16")), settings)
    assert mine.difference(other) == "dtype is 'float32' here and 'bfloat16' there"
    small = identity_of_kv(Engine.load(_settings(models, path=models / "slm")), _settings(models, path=models / "slm"))
    assert mine.difference(small).startswith("model_id is 'qwen3-3x48")


def test_weights_of_one_shape_are_told_apart(two: Two, models: Path, tmp_path: Path) -> None:
    write_tiny_pair(tmp_path, seed=1)
    mine = identity_of_kv(two.lender.engine, _settings(models))
    its = identity_of_kv(two.lender.engine, _settings(models, path=tmp_path / "llm"))
    assert mine.difference(its).startswith("weights_hash is ")


@pytest.mark.parametrize(
    ("others", "key"),
    [
        ({"lends_kv": True, "shares_prefixes": False}, "lends_kv"),
        ({"adopts_from": "localhost:1", "shares_prefixes": False}, "adopts_from"),
        ({"lends_kv": True, "tensor_parallel": 2}, "lends_kv"),
        ({"adopts_from": "localhost:1", "address": "localhost:1"}, "adopts_from"),
    ],
)
def test_settings_that_cannot_be_kept_are_refused(models: Path, others: dict[str, object], key: str) -> None:
    with pytest.raises(StartupError) as refused:
        memory_to_lend(_settings(models, **others))
    assert refused.value.field == key


def test_by_default_nothing_is_shared(models: Path) -> None:
    assert memory_to_lend(_settings(models)) is None
    assert memory_to_lend(_settings(models, adopts_from="localhost:1")) is None


def test_shared_memory_that_is_too_small_is_told_at_start(models: Path) -> None:
    names = set(os.listdir(DIRECTORY))
    with pytest.raises(StartupError, match="enlarge /dev/shm"):
        SharedKvMemory().allocate((1 << 46,), torch.uint8, torch.device("cpu"))
    assert set(os.listdir(DIRECTORY)) <= names
