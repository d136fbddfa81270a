"""Reads a file of `torch.save` without running anything in it: a pickle may ask for any call when it is read."""

import re
from pathlib import Path
from pickle import UnpicklingError
from zipfile import is_zipfile

import torch

from ..errors import CheckpointError


def load_weights_only(path: Path) -> object:
    """What `torch.save` wrote, tensors on the CPU: containers, strings, numbers and tensors, and nothing else.

    Raises:
        CheckpointError: the file is missing, damaged, or holds other objects.
    """
    _require_archive(path)
    try:
        content: object = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise CheckpointError(_why_refused(path, str(error))) from error
    except Exception as error:  # what torch raises depends on the byte that is wrong
        raise CheckpointError(f"{path} is damaged: torch cannot read it; fetch it again") from error
    return content


def _require_archive(path: Path) -> None:
    try:
        with path.open("rb") as file:
            is_archive = is_zipfile(file)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; router.path must be a published router's .pt file, or a directory "
            "with a router of ours"
        ) from error
    if not is_archive:
        raise CheckpointError(f"{path} is damaged or was not written by torch.save; fetch it again")


def _why_refused(path: Path, reason: str) -> str:
    found = re.search(r"GLOBAL (\S+)", reason)
    if found is None:
        return f"{path} is damaged, or holds more than weights and settings; take the published file"
    name = found[1]
    if name.startswith("numpy."):
        return (
            f"{path} is a training file: beside weights it holds what an epoch measured ({name}), which only full "
            "unpickling would read, and that may run any code; take the router that the training writes at its end "
            "(default_router.pt)"
        )
    return (
        f"{path} holds more than weights and settings ({name}); reading that may run any code, so it is refused: "
        "take the published file"
    )
