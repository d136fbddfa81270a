"""`allroads keys`: who may ask, as a file that the gateway reads."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from .console import stderr, stdout

keys = typer.Typer(no_args_is_help=True, help="Make and revoke API keys, in the file that gateway.keys_path names.")

File = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="Where keys are kept, as hashes alone.")]
Name = Annotated[str, typer.Argument(help="Whose key it is.", show_default=False)]


@keys.command("new")
def new_key(
    name: Name,
    file: File,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Requests that it may start in a minute.", show_default="any")
    ] = None,
    max_running: Annotated[
        int | None, typer.Option(min=1, help="Answers that it may have open at once.", show_default="any")
    ] = None,
    expires: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Last day in UTC.", show_default="none")
    ] = None,
) -> None:
    """Make a key and print it, this once.

    The file is made if it is not there, readable by its owner alone. A gateway that runs takes it up in a second.
    """
    # Late, so that no other command pays for it.
    from ..gateway.security.key_changes import add_key  # noqa: PLC0415

    last_day = None if expires is None else expires.date()
    key = add_key(file, name, requests_per_minute=requests_per_minute, max_running=max_running, expires=last_day)
    stdout().print(key)
    stderr().print(f"Keep it now: {file} holds its hash alone, and nobody can print it again.")


@keys.command("list")
def list_keys(file: File) -> None:
    """Show names, days and limits."""
    from ..gateway.security.key_file import read_keys, today  # noqa: PLC0415

    table = Table("name", "created", "expires", "requests per minute", "open at once")
    for record in read_keys(file).keys:
        expires = "" if record.expires is None else f"{record.expires}{' (over)' if record.is_past(today()) else ''}"
        limits = (str(limit or "") for limit in (record.requests_per_minute, record.max_running))
        table.add_row(*map(Text, (record.name, str(record.created), expires, *limits)))
    stdout().print(table, soft_wrap=False)


@keys.command("revoke")
def revoke_key(name: Name, file: File) -> None:
    """Take a key out of the file; requests that are open go on, and no more are let in after a second."""
    from ..gateway.security import key_changes  # noqa: PLC0415

    key_changes.revoke_key(file, name)
    stderr().print(f"{name} has no key any more.")
