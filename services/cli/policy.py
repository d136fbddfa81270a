"""`allroads policy`: which routing policies there are, and whether one does what every policy must."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from ..errors import AllroadsError
from .console import stdout
from .options import Config, resolve_settings

if TYPE_CHECKING:
    from ..conformance.suite import Result
    from ..policies.policy import Parameter

policy = typer.Typer(no_args_is_help=True, help="List routing policies, and check one: ours, or an installed plug-in.")

_WORDS = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_STYLES = {"pass": "green", "fail": "bold red", "skip": "yellow"}


@policy.command("list")
def list_policies() -> None:
    """Show each policy with its parameters, their ranges and defaults, and the scorer that it needs.

    Plug-ins are those that installed packages register under the entry point `allroads.policies`. The threshold of
    a scored policy has its default from the scorer's checkpoint, where that names one.
    """
    # Late, so that no other command pays for torch.
    from ..policies.registry import PolicyRegistry  # noqa: PLC0415

    table = Table("policy", "parameters", "scorer", "what it does")
    for known in PolicyRegistry.load().all():
        parameters = "\n".join(map(_described, known.parameters))
        table.add_row(*map(Text, (known.name, parameters, known.scorer or "", known.summary)))
    stdout().print(table, soft_wrap=False)


@policy.command("check")
def check_policy(
    name: Annotated[str, typer.Argument(help="Policy to check.", show_default=False)],
    config: Config = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of it; a list of values with commas."),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Answers that must be compared in each check of equality.")
    ] = 50,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long an answer may take.")] = 60.0,
    ready_timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long services may take until they are ready.")
    ] = 120.0,
) -> None:
    """Serve a mesh and hold what it does with a policy against a slow reference that recomputes everything.

    Exit code 1 where a check fails. Parameters that are not set have their default, or the middle of their range
    where they have none. Needs memory for a second copy of all models.
    """
    given = _parsed(parameters or [])
    settings = resolve_settings(config)
    # gRPC reads it when it is imported; it tells of every connection that a stopping service closes.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Late, as above.
    from .policy_check import check_on_mesh  # noqa: PLC0415

    results = asyncio.run(
        check_on_mesh(
            settings,
            name,
            given,
            num_prompts=num_prompts,
            timeout_s=timeout,
            ready_timeout_s=ready_timeout,
        )
    )
    _show(name, results)


def _show(name: str, results: "list[Result]") -> None:
    """The results as a table.

    Raises:
        AllroadsError: some check failed.
    """
    table = Table("", "check", "what was found")
    for result in results:
        outcome = result.finding.outcome
        table.add_row(Text(outcome, style=_STYLES[outcome]), Text(result.name), Text(result.finding.reason))
    stdout().print(table, soft_wrap=False)
    counts = Counter(result.finding.outcome.value for result in results)
    summary = ", ".join(f"{counts[outcome]} {word}" for outcome, word in _WORDS.items() if counts[outcome])
    if counts["fail"]:
        raise AllroadsError(f"{name} does not conform: {summary}")
    stdout().print(f"{name} conforms: {summary}")


def _parsed(settings: list[str]) -> Mapping[str, list[float]]:
    parsed = {}
    for setting in settings:
        name, _, values = setting.partition("=")
        try:
            parsed[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise typer.BadParameter(f"{setting!r} is not NAME=VALUE with a number, or several with commas") from None
    return parsed


def _described(parameter: "Parameter") -> str:
    """A parameter with its range and default on one line."""
    kind = "whole, " if parameter.is_whole else ""
    defaults = parameter.default if isinstance(parameter.default, tuple) else (parameter.default,)
    shown = ",".join("must be set" if value is None else f"{value:g}" for value in defaults)
    each = " for each tier" if parameter.per_tier else ""
    return f"{parameter.name}: {shown} ({kind}{parameter.minimum:g} to {parameter.maximum:g}{each})"
