"""Whether two processes have the same weights, told by their files."""

import hashlib
from pathlib import Path

from .errors import CheckpointError

_PIECE_BYTES = 4096
_MAX_PIECES = 4096
"""Of a file. A smaller one is read whole, of a larger one as many pieces at even distances: 16 MiB."""


def weights_hash(directory: Path) -> str:
    """Hash over the weights of a model in the Hugging Face layout, and over what says how they are used.

    Any training changes whole matrices, which pieces at even distances cannot miss, so large files are sampled. Two
    files that differ in a few rows alone may go for one.

    Raises:
        CheckpointError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        for path in (directory / "config.json", *sorted(directory.glob("*.safetensors"))):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb", buffering=0) as file:
                for offset in _offsets(size):
                    file.seek(offset)
                    digest.update(file.read(_PIECE_BYTES))
    except OSError as error:
        raise CheckpointError(f"the weights in {directory} cannot be read: {error}") from error
    return digest.hexdigest()


def _offsets(size: int) -> list[int]:
    """Where the pieces of a file begin, the first at its start, the last at its end."""
    num_pieces = -(-size // _PIECE_BYTES)
    if num_pieces <= _MAX_PIECES:
        return [index * _PIECE_BYTES for index in range(num_pieces)]
    return [(size - _PIECE_BYTES) * index // (_MAX_PIECES - 1) for index in range(_MAX_PIECES)]
