"""Options that commands share, and how they meet file and environment: an option wins over both."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import MeshSettings, load_settings

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="YAML file of the mesh. Without one: the embedded pair."),
]


def resolve_settings(config: Path | None, **options: dict[str, Any]) -> MeshSettings:
    """Settings from file, environment and options: `gateway={"port": 9000}`. None means not given.

    Values of options must have been checked by the option's type.

    Raises:
        StartupError: the file or a variable is wrong.
    """
    settings = load_settings(config)
    changed = {}
    for name, values in options.items():
        given = {key: value for key, value in values.items() if value is not None}
        changed[name] = getattr(settings, name).model_copy(update=given)
    return settings.model_copy(update=changed)
