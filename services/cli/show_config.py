"""`allroads config`: what the mesh would run with, and what every key means."""

from typing import Annotated

import typer
import yaml

from .config_reference import config_reference
from .console import stdout
from .options import Config, resolve_settings


def show_config(
    config: Config = None,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print what every key means instead, as a page of Markdown.")
    ] = False,
) -> None:
    """Print the configuration that results from file and environment.

    Every key with its value, as YAML that --config reads back. An empty address is chosen by `allroads up`.
    """
    if reference:
        stdout().print(config_reference(), end="")
        return
    settings = resolve_settings(config)
    stdout().print(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), end="")
