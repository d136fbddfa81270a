"""`allroads label`: tokens of a pair labelled as R2R does, for a router to learn from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import Cancelled, StartupError
from ..memory import resolve_memory
from .console import stderr, stdout
from .model_files import check_model
from .options import Config, resolve_settings

if TYPE_CHECKING:
    from ..labelling.problems import Problems
    from ..labelling.report import LabelReport

_DEFAULT_NUM_PROBLEMS = 1000


def label(
    slm: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Small model. Without one: the one of the mesh.")
    ] = None,
    llm: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Large model. Without one: the one of the mesh.")
    ] = None,
    problems: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Problems, JSON Lines. Without one: those of the embedded pair."),
    ] = None,
    num_problems: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=f"So many problems. Default: the whole file, or {_DEFAULT_NUM_PROBLEMS} embedded ones.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Which embedded problems.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the labels go.")] = Path("labels"),
    settings: Annotated[
        Path | None,
        typer.Option("--settings", metavar="FILE", help="YAML file of judge and limits (docs/labelling.md)."),
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="same-continuation, exact-answer or llm; the settings can name more."),
    ] = None,
    num_threads: Annotated[int | None, typer.Option(min=1, metavar="N", help="torch threads.")] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what the directory holds of any labelling, and begin anew.")
    ] = False,
    config: Config = None,
) -> None:
    """Label the tokens of a large model's answers by whether the small model would have changed their meaning.

    The large model answers, the small one reads along; from each token in which they differ the large model goes on,
    and a judge compares. May be interrupted at any moment: the same command goes on where it was.
    """
    # Late, so that no other command pays for it; and torch when all else is right.
    from ..labelling.settings import load_label_settings  # noqa: PLC0415

    how = load_label_settings(settings, {} if judge is None else {"judge": {"kind": judge}})
    threads: dict[str, Any] = {"num_threads": num_threads}
    mesh = resolve_memory(resolve_settings(config, slm={"path": slm, **threads}, llm={"path": llm, **threads}))
    check_model(mesh.slm.path, "slm.path")
    check_model(mesh.llm.path, "llm.path")
    asked = _problems(problems, num_problems, seed)

    from ..labelling.report import report_of  # noqa: PLC0415
    from ..labelling.run import label as run_label  # noqa: PLC0415
    from ..labelling.run import plan_run  # noqa: PLC0415

    run = plan_run(out, mesh, how, asked)
    try:
        with _progress() as progress:
            manifest = run_label(run, progress, restart=restart)
    except KeyboardInterrupt:
        raise Cancelled(f"stopped; the same command goes on with what is left (labels so far: {out})") from None
    _show(report_of(manifest))
    stdout().print(f"{manifest.statistics.num_tokens} tokens of {manifest.counts.num_finished} answers in {out}")


def _problems(path: Path | None, count: int | None, seed: int) -> "Problems":
    from ..labelling.problems import embedded_problems, problems_of_file  # noqa: PLC0415

    if path is None:
        return embedded_problems(count or _DEFAULT_NUM_PROBLEMS, seed)
    found = problems_of_file(path, count)
    if count is not None and len(found.problems) < count:
        raise StartupError(f"{path} has {len(found.problems)} problems, not {count}: lower --num-problems")
    return found


class _Bars:
    """Two bars: shards of the run, and what is going on in the one that is being made."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._run = progress.add_task("shards", total=None)
        self._phase = progress.add_task("loading", total=None)

    def shards(self, done: int, total: int) -> None:
        """See `labelling.run.RunProgress`."""
        self._progress.update(self._run, completed=done, total=total)

    def begin(self, phase: str, total: int) -> None:
        """See `labelling.labeller.Progress`."""
        self._progress.reset(self._phase, description=phase, total=total)

    def advance(self, count: int) -> None:
        """See `labelling.labeller.Progress`."""
        self._progress.advance(self._phase, count)


@contextmanager
def _progress() -> Iterator[_Bars]:
    columns = (
        TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    console = stderr()
    # In a file or a pipe there is no bar to draw.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield _Bars(progress)


def _show(report: "LabelReport") -> None:
    kinds = Table("", "tokens", "share", "published", title="kinds of tokens")
    for kind in report.kinds:
        kinds.add_row(kind.kind, str(kind.num_tokens), f"{kind.share:.1%}", f"{kind.published_share:.0%}")
    kinds.add_row("no label", str(report.num_unlabelled), "", "")
    ratio = "none" if report.entropy_ratio is None else f"{report.entropy_ratio:.1f} x"
    kinds.add_row("entropy", "", ratio, f"{report.published_entropy_ratio:.1f} x")
    rarity = Table("how often it occurs", "distinct tokens", "tokens", "divergent", title="rare tokens first")
    for part in report.by_frequency:
        occurs = f"{part.least}" if part.least == part.most else f"{part.least} to {part.most}"
        rarity.add_row(occurs, str(part.num_distinct), str(part.num_tokens), f"{part.divergent_share:.1%}")
    console = stdout()
    console.print(
        f"{report.num_finished} of {report.num_problems} answers finished, {report.num_unfinished} too long, "
        f"{report.num_failed} failed"
    )
    for table in (kinds, rarity):
        console.print(table, soft_wrap=False)
