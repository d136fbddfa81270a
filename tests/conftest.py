"""What all tests share."""

import pytest
import torch

# One thread a process is steadier than two where services run beside the tests.
torch.set_num_threads(1)

_LONGEST_FIRST = ("lifecycle", "evaluation", "conformance", "cli", "e2e", "mesh")
"""Folders whose files take longest. Several processes share the files, and none should be left with such a one."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; the order within a file stays."""
    ranks = {folder: rank for rank, folder in enumerate(_LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))
