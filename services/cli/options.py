"""Options that commands share, and how they meet file and environment: an option wins over both."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import MeshSettings, load_settings
from ..errors import StartupError

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="YAML file of the mesh. Without one: the embedded pair."),
]

_MESSAGE_BYTES_PER_BODY_BYTE = 4
"""A byte of text may be a token. Its id takes three bytes, and a fourth is left for what goes along."""


def resolve_settings(config: Path | None, **options: dict[str, Any]) -> MeshSettings:
    """Settings from file, environment and options: `gateway={"port": 9000}`. None means not given.

    Raises:
        StartupError: the file, a variable or an option is wrong, or two settings contradict each other.
    """
    given = {
        name: {key: value for key, value in values.items() if value is not None} for name, values in options.items()
    }
    settings = load_settings(config, options=given)
    _check_sizes(settings)
    return settings


def _check_sizes(settings: MeshSettings) -> None:
    """A prompt that the gateway takes must fit into a message to the small model's service."""
    body_bytes, message_bytes = settings.gateway.max_body_bytes, settings.max_message_bytes
    needed = _MESSAGE_BYTES_PER_BODY_BYTE * body_bytes
    if message_bytes < needed:
        raise StartupError(
            f"max_message_bytes is {message_bytes}, but a prompt of gateway.max_body_bytes = {body_bytes} may take "
            f"{needed} between services; raise the first or lower the second",
            field="max_message_bytes",
        )
