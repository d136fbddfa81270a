"""Decision logs that are made, so that what is true of them is known."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

Line = dict[str, Any]
SMALL, LARGE = 40, 41
"""Tokens of the two models; where they agree both are `SMALL`."""


def decision(request: int = 1, position: int = 0, **changes: Any) -> Line:
    """A decision in an audit in which the large model writes the small one's token, and the policy keeps that."""
    return {
        "v": 1,
        "t": 1767000000.5,
        "run": "3fa9c1d2",
        "request": request,
        "mode": "audit",
        "policy": "r2r",
        "threshold": 0.4,
        "position": position,
        "proposal": SMALL,
        "score": 0.1,
        "entropy": None,
        "routed": False,
        "acted": False,
        "written": SMALL,
        "tier": 1,
        "large": SMALL,
        **changes,
    }


def end(request: int = 1, num_tokens: int = 1, **changes: Any) -> Line:
    return {
        "v": 1,
        "t": 1767000001,
        "run": "3fa9c1d2",
        "request": request,
        "end": "stop",
        "mode": "audit",
        "policy": "r2r",
        "num_tokens": [0, num_tokens],
        "num_prompt": 10,
        **changes,
    }


def missed(request: int = 1, position: int = 0, **changes: Any) -> Line:
    return decision(request, position, **{"written": LARGE, "large": LARGE, **changes})


def caught(request: int = 1, position: int = 0, **changes: Any) -> Line:
    return missed(request, position, **{"routed": True, "score": 0.7, **changes})


def needless(request: int = 1, position: int = 0, **changes: Any) -> Line:
    return decision(request, position, **{"routed": True, "score": 0.7, **changes})


def write(path: Path, lines: Iterable[Line]) -> Path:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


@dataclass(frozen=True)
class World:
    """A router and the answers that it sees. `spread`: how much answers differ from each other, on the logit."""

    differs: float = 0.1
    caught: float = 0.8
    needless: float = 0.05
    num_tokens: int = 40
    spread: float = 0.0

    def lines(self, num_requests: int, seed: int, **changes: Any) -> Iterator[Line]:
        """An audit."""
        chance = Random(seed)
        for request in range(num_requests):
            differs = _shifted(self.differs, self.spread * chance.gauss(0, 1))
            for position in range(self.num_tokens):
                makes: Any = decision
                if chance.random() < differs:
                    makes = caught if chance.random() < self.caught else missed
                elif chance.random() < self.needless:
                    makes = needless
                yield makes(request, position, **changes)
            yield end(request, self.num_tokens)


def _shifted(share: float, by: float) -> float:
    return 1 / (1 + math.exp(-(math.log(share / (1 - share)) + by)))
