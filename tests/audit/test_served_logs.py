"""A real mesh audits itself: the report is right about it, and what a person judges can be computed again."""

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
import torch
from allroads.audit.drift import CalibratedRouter
from allroads.audit.report import make_audit
from allroads.audit.review_labels import _read
from allroads.audit.review_pick import pick
from allroads.config import load_settings
from transformers import AutoModelForCausalLM

from ..doubles.home_client import HomeClient, request
from ..doubles.processes import MeshProcesses
from ..doubles.tiny_pair import write_tiny_pair

PROMPTS = [[Random(seed).randrange(3, 472) for _ in range(12)] for seed in range(12)]
NUM_TOKENS = 30
THRESHOLD = 0.5


async def _answer(mesh: MeshProcesses) -> None:
    async with HomeClient(mesh.settings.slm.address) as client:
        wires = [
            request(prompt, "r2r", max_tokens=NUM_TOKENS, ignore_eos=True, given={"threshold": THRESHOLD})
            for prompt in PROMPTS
        ]
        await client.answer(*wires)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_tiny_pair(directory, likeness=0.9)
    return directory


@pytest.fixture(scope="module")
def log(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("a")
    path = directory / "decisions.jsonl"
    overrides: dict[str, dict[str, object]] = {name: {"path": str(pair / name)} for name in ("slm", "llm", "router")}
    overrides["slm"] |= {
        "mode": "audit", "writer": "llm", "decisions_path": str(path), "decisions_context": 64,
        "decisions_max_bytes": 40_000,
    }  # fmt: skip
    mesh = MeshProcesses(load_settings(overrides=overrides), directory / "m")
    with mesh.running("llm", "router", "slm"):
        asyncio.run(_answer(mesh))
    return path


def test_the_report_is_what_the_lines_add_up_to(log: Path) -> None:
    files = sorted(log.parent.glob("decisions.jsonl*"))
    assert len(files) > 2
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    made = [line for line in lines if "end" not in line]
    quantiles = tuple(k / 20 for k in range(1, 20))
    router = CalibratedRouter(name="r2r", threshold=THRESHOLD, score_quantiles=quantiles)
    audit = make_audit([log], routers=[router])
    (group,) = audit.groups
    own = group.overall
    assert (group.key.mode, group.key.threshold) == ("audit", "0.5")
    assert (own.decisions, own.requests) == (len(PROMPTS) * NUM_TOKENS, len(PROMPTS))
    assert audit.num_ended_requests == len(PROMPTS)
    differing = [line for line in made if line["proposal"] != line["large"]]
    kept = [line for line in made if line["score"] < THRESHOLD]
    assert (own.agrees.hits, own.agrees.trials) == (len(made) - len(differing), len(made))
    assert (own.missed.hits, own.missed.trials) == (
        sum(line["score"] < THRESHOLD for line in differing), len(kept)
    )  # fmt: skip
    # Or the test tells nothing.
    assert 0 < own.missed.hits < own.missed.trials
    assert group.drift is not None
    assert group.drift.num_scores == len(made)


def test_the_small_model_proposes_the_same_again_to_every_whole_context(log: Path, pair: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(pair / "slm", use_safetensors=True, dtype=torch.float32).eval()
    items = pick([log], 1000)
    assert len(items) > 20
    assert all(item.is_whole for item in items)
    with torch.inference_mode():
        again = [int(_read(model, item.context)[0].argmax()) for item in items]
    assert again == [item.proposal for item in items]
    assert all(item.proposal != item.large for item in items)
