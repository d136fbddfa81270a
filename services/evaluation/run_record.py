"""What a directory of answers is for, so that nothing else is ever mixed in: `run.json`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from .answers import ANSWERS_FILE
from .arms import Arm, RunSettings
from .mesh_client import ServedModel

RUN_FILE = "run.json"
_FORMAT = {"format": "allroads-evaluation", "version": 1}


def run_record(
    problems: dict[str, Any], served: ServedModel, routed: list[Arm], settings: RunSettings, judge: str
) -> dict[str, Any]:
    """Everything that answers depend on."""
    return {
        **_FORMAT,
        "problems": problems,
        "mesh": {
            "model": served.name,
            "tiers": served.tiers,
            "num_parameters": list(served.num_parameters),
            "defaults": {
                arm.routing["policy"]: {
                    name: parameter.default
                    for name, parameter in served.policy(arm.routing["policy"]).parameters.items()
                }
                for arm in routed
            },
        },
        "settings": asdict(settings) | {"policies": [arm.name for arm in routed]},
        "judge": judge,
    }


def open_run(directory: Path, record: dict[str, Any]) -> None:
    """Make a directory for a run, or see that it is this run's.

    Raises:
        InvalidArgument: it belongs to another run, or cannot be used; names what differs.
    """
    path = directory / RUN_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _require_same(path, json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(record)))
            return
        if (directory / ANSWERS_FILE).exists():
            raise InvalidArgument(f"{directory} has answers without {RUN_FILE}; choose another directory", field="out")
        unfinished = path.with_name(f"{RUN_FILE}.part")
        unfinished.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InvalidArgument(f"cannot use the directory {directory}: {error.strerror}", field="out") from error
    except ValueError as error:
        raise InvalidArgument(f"{path} is damaged; choose another directory", field="out") from error


def _require_same(path: Path, old: object, new: object) -> None:
    if (key := _difference(old, new)) is not None:
        raise InvalidArgument(
            f"{path.parent} holds an evaluation of another configuration ({key or 'the whole'} differs); choose "
            "another directory, or give what it was begun with",
            field="out",
        )


def _difference(old: object, new: object) -> str | None:
    """The key of the first thing that differs; None where nothing does."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return None if old == new else ""
    for key in sorted(old.keys() | new.keys()):
        below = _difference(old[key], new[key]) if key in old and key in new else ""
        if below is not None:
            return f"{key}.{below}" if below else str(key)
    return None
