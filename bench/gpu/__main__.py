"""Serving at the shapes of real pairs on GPUs, all systems in one run: `python -m bench.gpu`.

Qwen3-0.6B with Qwen3-32B (or --large 14b, 8b), random weights, bfloat16. A script says which tokens the large model
writes; the router computes its scores all the same, and they are waited for. Rows: the mesh; the mesh with its means
taken away one after the other, as in the ablation of the TokenRouter paper; each model alone; speculative decoding
with the same small model, whose drafts stand with a given probability; all services in one process; a loop of plain
transformers. Systems take turns, round after round; printed are medians. Each starts anew, with weights of its own: a
whole run takes hours, and --quick, with one round of one share, minutes.

--device cpu --shapes tiny runs everything in small where there is no GPU: a test of the bench, whose figures mean
nothing. --memory prints what the published pairs take of a GPU and measures nothing.
"""

import argparse
import asyncio
import logging
import tempfile
from dataclasses import asdict
from pathlib import Path

from allroads.engine.loading import DTYPES

from ..report import arguments, finish
from .bound import Work, copy_bytes_per_s
from .comparison import LOOP, SYSTEMS, Plan, compare
from .machine import machine, why_not
from .measure import Texts
from .memory_table import memory_rows, show_memory
from .shapes import ROUTER, SHAPES, TINY_LLM, TINY_ROUTER, TINY_SLM
from .systems import Pair
from .tables import print_tables, summary

_SMALL = "Qwen3-0.6B"
_LARGE = {"8b": "Qwen3-8B", "14b": "Qwen3-14B", "32b": "Qwen3-32B"}
_SHARES = (0.05, 0.15, 0.35)
_ACCEPTANCES = (0.75, 0.89)
"""0.89: share of tokens that R1-Distill-1.5B and 32B have in common (arXiv 2505.21600). 0.75: a pair farther apart."""
_CONCURRENCIES = (1, 4, 8, 16)


def plan_of(options: argparse.Namespace) -> Plan:
    """What the options ask for."""
    llm_device = options.llm_device or options.device
    if options.shapes == "tiny":
        pair = Pair(TINY_SLM, TINY_LLM, TINY_ROUTER, options.dtype or "float32", options.device, llm_device)
        texts = Texts(16, 24, 1) if options.quick else Texts(32, 64, 1)
    else:
        large = SHAPES[_LARGE[options.large]]
        pair = Pair(SHAPES[_SMALL], large, ROUTER, options.dtype or "bfloat16", options.device, llm_device)
        texts = Texts(128, 128, 1) if options.quick else Texts(128, 256, 2)
    return Plan(
        pair=pair,
        texts=texts,
        shares=_SHARES[1:2] if options.quick else _SHARES,
        acceptances=_ACCEPTANCES[:1] if options.quick else _ACCEPTANCES,
        concurrencies=(1, 8) if options.quick else _CONCURRENCIES,
        num_rounds=options.rounds or (1 if options.quick or options.shapes == "tiny" else 3),
        warm_up=Texts(texts.prompt_tokens, texts.answer_tokens, 1),
        systems=tuple(options.only or SYSTEMS),
    )


def main() -> None:
    """Command line."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--memory", action="store_true", help="print what the published pairs take, and end")
    parser.add_argument("--device", default="cuda:0", help="of the small model and the router; cpu with --shapes tiny")
    parser.add_argument("--llm-device", help="of the large model, where it is another: cuda:1")
    parser.add_argument("--shapes", choices=("qwen3", "tiny"), default="qwen3")
    parser.add_argument("--large", choices=tuple(_LARGE), default="32b", help="of the shapes of qwen3")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="bfloat16, and float32 for tiny shapes")
    parser.add_argument("--rounds", type=int, help="3; 1 with --quick or tiny shapes")
    parser.add_argument(
        "--only", nargs="+", choices=SYSTEMS, metavar="SYSTEM", help=f"some of {', '.join(SYSTEMS)}; a mesh first"
    )
    options = parser.parse_args()
    if options.memory:
        show_memory()
        finish({"memory": [asdict(row) for row in memory_rows()]}, as_json=options.json)
        return
    plan = plan_of(options)
    if plan.systems[0] == LOOP:
        parser.error("--only: the first must be a mesh, with which others are compared")
    devices = list(dict.fromkeys((plan.pair.slm_device, plan.pair.llm_device)))
    if reason := why_not(devices):
        parser.error(reason)
    logging.getLogger("allroads").setLevel(logging.ERROR)  # the router's file says nothing of what it was made for
    told = machine(devices)
    bytes_per_s = copy_bytes_per_s(plan.pair.llm_device)
    with tempfile.TemporaryDirectory(prefix="allroads-bench-") as directory:
        results = asyncio.run(compare(plan, Path(directory)))
    work = Work(
        slm=plan.pair.slm,
        llm=plan.pair.llm,
        router=plan.pair.router,
        context=plan.texts.prompt_tokens + plan.texts.answer_tokens // 2,
        bytes_per_weight=DTYPES[plan.pair.dtype].itemsize,
        has_two_devices=len(devices) > 1,
    )
    figures = summary(plan, results, work, bytes_per_s)
    print_tables(plan, results, figures)
    means_something = "cpu" not in devices and options.shapes != "tiny"
    if not means_something:
        print("On a CPU, or with tiny shapes, these figures mean nothing: they show that everything runs.")
    finish({"environment": told, "means_something": means_something, **figures}, as_json=options.json)


if __name__ == "__main__":
    main()
