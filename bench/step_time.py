"""Time of one decode step of each model of the pair, alone, on one thread: `python -m bench.step_time`.

In our engine at several batch sizes, and in plain transformers with its own cache, one text at a time.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from allroads.config import ModelSettings, load_settings
from allroads.engine.engine import Engine
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence
from transformers import AutoModelForCausalLM

from .report import arguments, finish, show
from .research_loop import CachedModel

BATCHES = (1, 4, 8, 16)
CONTEXT = 100


def step_ms(path: Path, batch: int, num_steps: int) -> float:
    """Median milliseconds of a decode step with `CONTEXT` tokens of context in each row."""
    engine = Engine.load(ModelSettings(path=path))
    params = SamplingParams(temperature=0.0)
    sequences = [Sequence([5] * CONTEXT, CONTEXT + num_steps + 1, params, CONTEXT) for _ in range(batch)]
    for sequence in sequences:
        engine.open(sequence)
    engine.admit()
    times = []
    for _ in range(num_steps):
        started = time.perf_counter()
        step = engine.step()
        times.append(time.perf_counter() - started)
        if step is not None:
            for sequence, token_id in zip(step.sequences, step.proposals, strict=True):
                sequence.append([token_id])
    return 1000 * statistics.median(times)


@torch.inference_mode()
def plain_step_ms(path: Path, num_steps: int) -> float:
    """The same for one text in plain transformers."""
    model = CachedModel(AutoModelForCausalLM.from_pretrained(path).eval())
    tokens = [5] * CONTEXT
    model.extend(tokens)
    times = []
    for _ in range(num_steps):
        tokens.append(5)
        started = time.perf_counter()
        model.extend(tokens)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def main() -> None:
    """Command line."""
    options = arguments(__doc__ or "").parse_args()
    settings = load_settings()
    paths = {"slm": settings.slm.path, "llm": settings.llm.path}
    torch.set_num_threads(1)
    num_steps = 60 if options.quick else 400
    steps: dict[str, dict[int, float]] = {
        name: {batch: step_ms(path, batch, num_steps) for batch in BATCHES} for name, path in paths.items()
    }
    plain = {name: plain_step_ms(path, num_steps) for name, path in paths.items()}
    ratio = {batch: steps["llm"][batch] / steps["slm"][batch] for batch in BATCHES}
    rows: list[tuple[Any, ...]] = [(name, *by.values()) for name, by in steps.items()]
    show(
        "ms a decode step", ("model", *(f"batch {batch}" for batch in BATCHES)), [*rows, ("llm / slm", *ratio.values())]
    )
    plain_ratio = plain["llm"] / plain["slm"]
    show("ms a decode step, plain transformers", ("slm", "llm", "llm / slm"), [(*plain.values(), plain_ratio)])
    result = {"step_ms": steps, "llm_over_slm": ratio, "plain_ms": plain, "plain_llm_over_slm": plain_ratio}
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()
