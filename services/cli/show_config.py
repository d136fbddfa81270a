"""`allroads config`: what the mesh would run with."""

import yaml

from .console import stdout
from .options import Config, resolve_settings


def show_config(config: Config = None) -> None:
    """Print the configuration that results from file and environment.

    Every key with its value, as YAML that --config reads back. An empty address is chosen by `allroads up`.
    """
    settings = resolve_settings(config)
    stdout().print(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), end="")
