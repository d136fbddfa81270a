"""All systems in turn, round after round, so that every ratio is of one run on one machine."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from allroads.engine.loading import DTYPES

from ..mesh import Mesh
from .bound import free_memory
from .loop import ScriptedLoop
from .measure import Cell, Texts, measure, questions
from .systems import MESHES, Pair, drafted, mesh_of, prepare, routed, ways

LOOP = "research_loop"
SYSTEMS = (*MESHES, LOOP)
LLM, SLM = "llm_only", "slm_only"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared."""

    pair: Pair
    texts: Texts
    shares: tuple[float, ...]
    """Probabilities that the large model writes a token."""
    acceptances: tuple[float, ...]
    """Probabilities that a draft stands."""
    concurrencies: tuple[int, ...]
    num_rounds: int
    warm_up: Texts
    """Asked before anything is measured, by as many clients as ever."""
    systems: tuple[str, ...] = SYSTEMS
    """In the order of their turns. The first, a mesh, also serves what does not depend on a share, and others are
    compared with it."""


@dataclass(frozen=True, slots=True)
class Key:
    """A row of the tables. `share` is None for what does not depend on it."""

    system: str
    share: float | None


@dataclass
class Results:
    """All that was measured, by row and number of requests; a cell for each round."""

    cells: dict[tuple[Key, int], list[Cell]] = field(default_factory=dict)
    ways: dict[str, list[str]] = field(default_factory=dict)
    """How each mesh works, in the words of its services."""
    seconds_to_ready: dict[str, float] = field(default_factory=dict)

    def add(self, key: Key, concurrency: int, cell: Cell) -> None:
        """One measurement more."""
        self.cells.setdefault((key, concurrency), []).append(cell)

    def keys(self, share: float) -> list[Key]:
        """Rows at a share, in the order in which they were first measured, those without a share among them."""
        return list(dict.fromkeys(key for key, _ in self.cells if key.share in (share, None)))

    def tokens_per_s(self, key: Key, concurrency: int) -> float:
        """Median of the rounds."""
        return statistics.median(cell.tokens_per_s for cell in self.cells[key, concurrency])

    def last(self, key: Key, concurrency: int) -> Cell:
        """Of the last round."""
        return self.cells[key, concurrency][-1]


def drafted_name(acceptance: float) -> str:
    """The row of speculative decoding."""
    return f"speculative_{acceptance:g}"


async def compare(plan: Plan, directory: Path) -> Results:
    """Run everything; the directory must be empty."""
    prepare(directory, plan.pair, plan.texts, max(plan.concurrencies))
    free_memory()
    results = Results()
    for _ in range(plan.num_rounds):
        for name in plan.systems:
            if name == LOOP:
                # In a thread of its own for the sake of the event loop of the clients that come after.
                await asyncio.to_thread(_measure_loop, plan, directory, results)
                continue
            async with mesh_of(name, directory) as mesh:
                await _measure_mesh(name, mesh, plan, results)
    return results


async def _measure_mesh(name: str, mesh: Mesh, plan: Plan, results: Results) -> None:
    results.seconds_to_ready.setdefault(name, mesh.seconds_to_ready)
    rows = [(Key(name, share), routed(share)) for share in plan.shares]
    if name == plan.systems[0]:
        rows += [(Key(LLM, None), {"policy": "llm"}), (Key(SLM, None), {"policy": "slm"})]
        rows += [(Key(drafted_name(acceptance), None), drafted(acceptance)) for acceptance in plan.acceptances]
    for _, routing in rows:
        await measure(mesh, routing, plan.warm_up, max(plan.concurrencies))
    for concurrency in plan.concurrencies:
        for key, routing in rows:
            results.add(key, concurrency, await measure(mesh, routing, plan.texts, concurrency))
    results.ways[name] = ways(mesh.read_log())


def _measure_loop(plan: Plan, directory: Path, results: Results) -> None:
    """It takes one request at a time, so more clients change nothing but their waiting."""
    pair, texts = plan.pair, plan.texts
    torch.set_num_threads(1)
    loop = ScriptedLoop(directory, dtype=DTYPES[pair.dtype], slm_device=pair.slm_device, llm_device=pair.llm_device)
    asked = questions(texts, 1)
    for share in plan.shares:
        loop.answer(asked[0].prompt, seed=0, share=share, max_tokens=plan.warm_up.answer_tokens)
        started = time.perf_counter()
        num_large = sum(
            loop.answer(question.prompt, seed=question.seed, share=share, max_tokens=texts.answer_tokens)
            for question in asked
        )
        num_tokens = len(asked) * texts.answer_tokens
        cell = Cell(num_tokens / (time.perf_counter() - started), num_large / num_tokens, {}, {})
        for concurrency in plan.concurrencies:
            results.add(Key(LOOP, share), concurrency, cell)
    del loop
    free_memory()


def hand_off_ms(results: Results, key: Key, concurrency: int = 1) -> float | None:
    """What a token of the large model costs beyond a step of that model alone, by one request's times per token.

    With t the time of a token: (t - t_slm) / share - t_llm, all of this run. It holds messages, waking up, what the
    large model has to catch up, and the small model's pass over the token that it did not write. None where
    something of that is missing.
    """
    small, large = Key(SLM, None), Key(LLM, None)
    if any((needed, concurrency) not in results.cells for needed in (key, small, large)):
        return None
    share = results.last(key, concurrency).llm_share
    if not share:
        return None
    times = [1000 / results.tokens_per_s(needed, concurrency) for needed in (key, small, large)]
    return (times[0] - times[1]) / share - times[2]


def rows_of(results: Results, shares: Sequence[float]) -> list[Key]:
    """All rows once."""
    return list(dict.fromkeys(key for share in shares for key in results.keys(share)))
