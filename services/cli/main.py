"""The entry point: commands, the version, and how an error leaves the program."""

from typing import Annotated

import typer

from .. import __version__
from ..errors import AllroadsError
from .audit import audit
from .calibrate import calibrate
from .chat import chat
from .console import exit_code, print_error, stdout
from .evaluate import evaluate
from .health import health
from .kernels import kernels
from .keys import keys
from .label import label
from .plan import plan
from .policy import policy
from .roi import roi
from .serve import serve
from .show_config import show_config
from .simulate import simulate
from .train import train
from .up import up

app = typer.Typer(
    name="allroads",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done or stopped as asked, 1 a failure at run time, 2 a wrong command or configuration.",
)
app.command()(up)
app.command()(serve)
app.command()(health)
app.command()(chat)
app.command("config")(show_config)
app.command()(label)
app.command()(evaluate)
app.command()(roi)
app.command()(plan)
app.command()(simulate)
app.command()(train)
app.command()(calibrate)
app.command()(kernels)
app.add_typer(policy, name="policy")
app.add_typer(keys, name="keys")
app.add_typer(audit, name="audit")


def _print_version(wanted: bool) -> None:
    if wanted:
        stdout().print(f"allroads {__version__}")
        raise typer.Exit


@app.callback()
def _allroads(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Serve a small and a large language model as one, routed token by token."""


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    try:
        app()
    except AllroadsError as error:
        print_error(error)
        raise SystemExit(exit_code(error)) from None
