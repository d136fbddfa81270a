"""One measurement: a closed system of clients that ask for answers of a fixed length, and what the mesh tells of it."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from ..mesh import MODEL, Mesh

_FIRST_ID, _END_ID = 8, 400
"""Of prompts: ordinary tokens of the embedded pair's tokenizer, which the models are given."""
_COUNTED = tuple(f"allroads_{name}_total" for name in ("hand_offs", "drafts", "scored_tokens", "launches", "steps"))


@dataclass(frozen=True, slots=True)
class Texts:
    """What every request is like."""

    prompt_tokens: int
    answer_tokens: int
    per_client: int
    """Answers that each client asks for, one after the other."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a measurement."""

    tokens_per_s: float
    llm_share: float
    step_ms: dict[str, float]
    """Mean time of a step of late, by tier."""
    counts: dict[str, float]
    """Growth of counters, by name and labels."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt and the seed that says which of its tokens the large model writes."""

    prompt: list[int]
    seed: int


def questions(texts: Texts, concurrency: int) -> list[Question]:
    """The same for every system; no two begin alike."""
    made = []
    for index in range(concurrency * texts.per_client):
        seed = 1000 * concurrency + index
        draw = random.Random(seed)
        made.append(Question([draw.randrange(_FIRST_ID, _END_ID) for _ in range(texts.prompt_tokens)], seed))
    return made


async def measure(mesh: Mesh, routing: dict[str, Any], texts: Texts, concurrency: int) -> Cell:
    """So many clients, each of which asks as soon as it is answered.

    Raises:
        RuntimeError: an answer is shorter than asked for, or was finished without a tier.
    """
    waiting = iter(questions(texts, concurrency))
    before = await _scrape(mesh)
    started = time.perf_counter()
    counts = await asyncio.gather(*(_client(mesh, routing, texts, waiting) for _ in range(concurrency)))
    seconds = time.perf_counter() - started
    after = await _scrape(mesh)
    num_large = sum(large for large, _ in counts)
    num_tokens = sum(total for _, total in counts)
    return Cell(
        tokens_per_s=num_tokens / seconds,
        llm_share=num_large / num_tokens,
        step_ms={
            labels["tier"]: 1000 * value
            for (name, _), (value, labels) in after.items()
            if name == "allroads_step_seconds"
        },
        counts={
            f"{name}{written}": value - before.get((name, written), (0.0, {}))[0]
            for (name, written), (value, _) in after.items()
            if name in _COUNTED
        },
    )


async def _client(mesh: Mesh, routing: dict[str, Any], texts: Texts, waiting: Iterator[Question]) -> tuple[int, int]:
    """Tokens of all its answers: those of the large model, and all."""
    num_large = num_tokens = 0
    for question in waiting:
        body = {
            "model": MODEL,
            "prompt": question.prompt,
            "seed": question.seed,
            "temperature": 0,
            "max_tokens": texts.answer_tokens,
            "ignore_eos": True,
            "routing": routing,
        }
        reply = await mesh.client.post("/v1/completions", json=body)
        reply.raise_for_status()
        told = reply.json()["routing"]
        written = sum(told["tokens"].values())
        if written != texts.answer_tokens or told.get("degraded"):
            raise RuntimeError(f"an answer is not what was asked for, so nothing was measured: {told}")
        num_large += told["tokens"].get("llm", 0)
        num_tokens += written
    return num_large, num_tokens


async def _scrape(mesh: Mesh) -> dict[tuple[str, str], tuple[float, dict[str, str]]]:
    """Values with their labels, by name and by the labels in writing."""
    text = (await mesh.client.get("/metrics")).text
    return {
        (sample.name, "".join(f" {key}={value}" for key, value in sorted(sample.labels.items()))): (
            sample.value,
            sample.labels,
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
