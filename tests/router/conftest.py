"""A tiny pair with its scorers, made once: tests that damage a file work on a copy."""

import shutil
from pathlib import Path

import pytest

from ..doubles.tiny_pair import write_random_heads
from ..training.small_pair import write_pair, write_router


@pytest.fixture(scope="session")
def _pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_pair(tmp_path_factory.mktemp("pair"))
    write_router(directory, directory / "router")
    write_random_heads(directory, slm=directory / "slm", llm=directory / "llm")
    return directory


@pytest.fixture
def models(_pristine: Path, tmp_path: Path) -> Path:
    """Directory with `slm`, `llm`, `router`, `citer` and `co-llm`."""
    return Path(shutil.copytree(_pristine, tmp_path / "models"))
