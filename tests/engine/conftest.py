"""A tiny random model and engines over it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from allroads.config import CatchUp, ModelSettings
from allroads.engine.engine import Engine
from allroads.engine.sampling import SamplingParams
from allroads.engine.sequence import Sequence
from transformers import AutoModelForCausalLM

from ..doubles.tiny_pair import write_tiny_pair

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_pair(directory)
    return directory / "slm"


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Callable[[list[int]], torch.Tensor]:
    """Logits of the next token by a fresh whole pass of plain transformers."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()

    def next_logits(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits
        return logits[0, -1]

    return next_logits


@pytest.fixture
def make_engine(model_path: Path) -> Callable[..., Engine]:
    def make(*, catch_up: CatchUp = "off", **settings: int) -> Engine:
        return Engine.load(ModelSettings.model_validate({"path": model_path, **settings}), catch_up=catch_up)

    return make


def sequence(tokens: list[int], *, room: int = 64, sampling: SamplingParams = GREEDY) -> Sequence:
    return Sequence(list(tokens), len(tokens) + room, sampling, len(tokens))
