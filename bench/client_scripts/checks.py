"""Runs a client's checks one after the other and prints what came of each."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping

MODEL = "allroads"
QUESTION = "Aya has 37 apples. Aya buys 58 more apples. How many apples does Aya have now?"
CHAT = [{"role": "user", "content": QUESTION}]
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["answer"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}

Check = Callable[[str], object]
PASSED = "passed"


def run(checks: Mapping[str, Check]) -> None:
    """Give each check the URL of the REST API; on the last line, a JSON object of what came of them."""
    url = sys.argv[1]
    outcomes = {}
    for name, check in checks.items():
        try:
            check(url)
        except Exception as error:  # whatever a client throws is the outcome
            outcomes[name] = _reason(error)
            traceback.print_exc()
        else:
            outcomes[name] = PASSED
    print(json.dumps(outcomes))


def demand(holds: object, what: str) -> None:
    """Fail with a reason where something does not hold."""
    if not holds:
        raise AssertionError(what)


def _reason(error: Exception) -> str:
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words[:200]
