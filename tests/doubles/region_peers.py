"""Starts `region_peer.py` and asks it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class RegionPeer:
    """The other end of a stream, in a process of its own. `device`: a directory, or "cuda"."""

    def __init__(self, device: str, limit_s: float) -> None:
        command = [sys.executable, "-m", "tests.doubles.region_peer", device, str(limit_s)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def ask(self, *words: str) -> object:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        answer: object = json.loads(self.process.stdout.readline())
        return answer

    def message(self, *words: str) -> bytes:
        answer = self.ask(*words)
        assert isinstance(answer, str)
        return bytes.fromhex(answer)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()
