"""What these tests share: one tiny pair, which nobody changes."""

from pathlib import Path

import pytest

from .pair import write_ending_pair


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pair")
    write_ending_pair(directory)
    return directory
