"""The models, the router and the scorers that come with the package, and how settings name them."""

from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

_PREFIX = "embedded:"
_SCORERS = ("citer", "co-llm")
_UNFINISHED = ".part"
"""Ends the name of a directory whose training is under way."""
_WRITTEN_LAST = "manifest.json"


def embedded_path(name: str) -> Path:
    """Directory of what is embedded under a name, such as `slm`, `llm` or `router`."""
    return _root() / name


def embedded_names() -> list[str]:
    """What there is."""
    names = (path.name for path in _root().iterdir() if path.is_dir())
    return sorted(name for name in names if not name.startswith("_") and not name.endswith(_UNFINISHED))


def embedded_scorers() -> dict[str, Path]:
    """Scorers made for the embedded small model beside the router, by name."""
    return {name: embedded_path(name) for name in _SCORERS if (embedded_path(name) / _WRITTEN_LAST).is_file()}


def _root() -> Path:
    return Path(str(resources.files(f"{__package__}.models")))


def _resolve(path: object) -> object:
    name = str(path).removeprefix(_PREFIX)
    if not isinstance(path, str | Path) or name == str(path):
        return path
    if name not in (names := embedded_names()):
        raise ValueError(f"nothing is embedded as {name!r}; there are {', '.join(names)}")
    return embedded_path(name)


ModelPath = Annotated[Path, BeforeValidator(_resolve)]
"""A path; `embedded:NAME` stands for the directory of what is embedded under that name."""


def model_path(text: str) -> Path:
    """The same, for an option of a command.

    Raises:
        ValueError: nothing is embedded under the name; the message lists what there is.
    """
    return Path(str(_resolve(text)))
