"""Time of one decode step of each model of the pair, alone, on one thread: `python -m bench.step_time`.

In our engine at several batch sizes, against what the machine allows, and in plain transformers with its own
cache, one text at a time. The bound of a step is the larger of two times: to read the weights and the KV of
all rows once, at the bandwidth measured on as many bytes; and to multiply, at the speed measured on a matrix
product with as many rows. The embedded models are so small that neither counts for much: what remains is the
cost of starting operations. `wide` is a random model of 80 million parameters, where reading them does.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from allroads.config import ModelSettings, load_settings
from allroads.engine.engine import Engine
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from .report import arguments, finish, show
from .research_loop import CachedModel

BATCHES = (1, 4, 8, 16)
CONTEXT = 100
WIDE = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12}


def write_wide_model(directory: Path, like: Path) -> None:
    """A random model in the shape of a usual one, with the tokenizer of another."""
    config = AutoConfig.from_pretrained(like)
    num_layers = WIDE["num_hidden_layers"]
    config.update({**WIDE, "num_key_value_heads": 4, "head_dim": 64, "layer_types": ["full_attention"] * num_layers})
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(like).save_pretrained(directory)


@dataclass(frozen=True)
class Machine:
    """What one thread can do."""

    def bytes_per_s(self, num_bytes: int) -> float:
        """Bandwidth of reading so many bytes again and again, in the caches where they fit."""
        data = torch.zeros(num_bytes // 4)
        return num_bytes / seconds(lambda: torch.sum(data))

    def flops_per_s(self, num_rows: int) -> float:
        """Speed of a product of so many rows with a matrix that fits the caches."""
        rows, matrix = torch.randn(num_rows, 512), torch.randn(512, 512)
        return 2 * num_rows * 512 * 512 / seconds(lambda: rows @ matrix)


def seconds(work: Callable[[], object]) -> float:
    """Median of 50 calls."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def bound_ms(path: Path, batch: int, machine: Machine) -> float:
    """The least time that a step of so many rows can take."""
    settings = ModelSettings(path=path)
    facts = Engine.load(settings).facts
    num_bytes = 4 * facts.num_parameters + batch * CONTEXT * facts.kv_bytes_per_token
    read_s = num_bytes / machine.bytes_per_s(num_bytes)
    return 1000 * max(read_s, 2 * facts.num_parameters * batch / machine.flops_per_s(batch))


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
    machine = Machine()
    with tempfile.TemporaryDirectory() as directory:
        paths["wide"] = Path(directory)
        write_wide_model(paths["wide"], like=paths["llm"])
        steps = {
            name: {batch: step_ms(path, batch, num_steps // 4 if name == "wide" else num_steps) for batch in BATCHES}
            for name, path in paths.items()
        }
        bounds = {name: {batch: bound_ms(path, batch, machine) for batch in BATCHES} for name, path in paths.items()}
        plain = {name: plain_step_ms(path, num_steps // 4) for name, path in paths.items()}
    ratio = {batch: steps["llm"][batch] / steps["slm"][batch] for batch in BATCHES}
    over_bound = {name: {batch: steps[name][batch] / bounds[name][batch] for batch in BATCHES} for name in paths}
    rows: list[tuple[Any, ...]] = [(name, *by.values()) for name, by in steps.items()]
    columns = ("model", *(f"batch {batch}" for batch in BATCHES))
    show("ms a decode step", columns, [*rows, ("llm / slm", *ratio.values())])
    show("bound, ms", columns, [(name, *by.values()) for name, by in bounds.items()])
    show("step over bound", columns, [(name, *by.values()) for name, by in over_bound.items()])
    show("ms a decode step, plain transformers", tuple(plain), [tuple(plain.values())])
    result = {
        "step_ms": steps,
        "llm_over_slm": ratio,
        "bound_ms": bounds,
        "step_over_bound": over_bound,
        "plain_ms": plain,
        "engine_over_plain": {name: steps[name][1] / plain[name] for name in paths},
    }
    finish(result, as_json=options.json)


if __name__ == "__main__":
    main()
