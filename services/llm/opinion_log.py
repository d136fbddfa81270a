"""The large model's opinions as labels: what the small one wrote, and what the large one would have written.

One JSON object a line: `sequence`, the `tokens` of that sequence since its line before (its first line
begins with the prompt), and `large`, what the large model would have written in place of the last
`len(large)` of them. Where the two differ, R2R's labelling (arXiv 2505.21600, section 3) would go on to ask
whether the difference matters.
"""

import json
import logging
import os
from pathlib import Path

from ..engine.opinions import Opinion
from ..errors import StartupError
from .visitor import Visitor

logger = logging.getLogger(__name__)


class OpinionLog:
    """Appends to a file that only its owner can read: it holds what users wrote. A full disk ends the log only."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            StartupError: it cannot be written.
        """
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartupError(f"llm.opinions_path: cannot write {path}: {error}", field="llm.opinions_path") from error
        # Of this run of the service; sequences of an earlier one have another.
        self._run = os.urandom(4).hex()
        self._descriptor: int | None = descriptor

    def write(self, visitor: Visitor, opinion: Opinion) -> None:
        """Add an opinion, and the tokens that lead up to it."""
        if self._descriptor is None:
            return
        end = opinion.start + len(opinion.token_ids)
        stream_id, number = visitor.key
        line = {
            "sequence": f"{self._run}-{stream_id}-{number}",
            "tokens": visitor.sequence.tokens[visitor.num_recorded : end],
            "large": opinion.token_ids,
        }
        visitor.num_recorded = end
        try:
            os.write(self._descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        except OSError:
            logger.exception("opinions are not recorded any more")
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
