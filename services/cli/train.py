"""`allroads train`: a router from labels."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..errors import Cancelled, StartupError
from .console import stderr, stdout
from .model_files import check_model
from .options import Config, resolve_settings

if TYPE_CHECKING:
    from ..training.fitting import Epoch, Watcher
    from ..training.train_report import TrainReport

_TRAINING, _SHAPE = "Training", "Shape of the router"


def train(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET_DIR", help="What `allroads label` wrote.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the router goes; must not exist.")],
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="small, for models of the embedded size, or published, R2R's own recipe with 55M parameters. The "
            "options below override single numbers of it.",
        ),
    ] = "small",
    slm: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Small model. Without one: the one of the mesh.")
    ] = None,
    target_recall: Annotated[
        float | None,
        typer.Option(metavar="R", help="Share of divergent tokens that the threshold must find, above 0 to 1."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="X", help="Learning rate of AdamW.", rich_help_panel=_TRAINING)
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the rate: linear or constant.", rich_help_panel=_TRAINING)
    ] = None,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="X", help="Weight decay.", rich_help_panel=_TRAINING)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens in a step.", rich_help_panel=_TRAINING)
    ] = None,
    max_epochs: Annotated[
        int | None, typer.Option(metavar="N", help="Passes over the labels at most.", rich_help_panel=_TRAINING)
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(metavar="N", help="Stop after so many passes without a gain.", rich_help_panel=_TRAINING),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of the split by prompt, first weights and order.", rich_help_panel=_TRAINING),
    ] = None,
    logits_size: Annotated[
        int | None, typer.Option(metavar="K", help="Largest logits that it reads.", rich_help_panel=_SHAPE)
    ] = None,
    hidden_dims: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Widths of its blocks, such as 64,64.", rich_help_panel=_SHAPE),
    ] = None,
    expansion_factor: Annotated[
        int | None, typer.Option(metavar="N", help="Widening inside a block.", rich_help_panel=_SHAPE)
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(metavar="X", help="Share dropped in training.", rich_help_panel=_SHAPE)
    ] = None,
    normalize_input: Annotated[
        bool | None, typer.Option(help="Whether its inputs are normalised.", rich_help_panel=_SHAPE)
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="Where to train, such as cuda:0.")] = "cpu",
    num_threads: Annotated[int, typer.Option(min=1, metavar="N", help="torch threads.")] = 2,
    config: Config = None,
) -> None:
    """Train R2R's classifier on labelled tokens, and say how well it finds the divergent ones.

    Labels are parted by prompt: most to train on, some to stop and to choose the threshold on, some to measure on. A
    router that finds nothing, or no more than chance would, is not written. Writes all of DIR at the end or nothing.
    """
    # Late, so that no other command pays for torch.
    from ..labelling.dataset import load_dataset  # noqa: PLC0415
    from ..training.export import export_router  # noqa: PLC0415
    from ..training.router_fit import PRESETS  # noqa: PLC0415
    from ..training.train_router import fitting_embedding, train_router  # noqa: PLC0415
    from ..training.whole_directory import require_free  # noqa: PLC0415

    if preset not in PRESETS:
        raise StartupError(f"--preset must be {' or '.join(PRESETS)}, not {preset!r}", field="preset")
    if schedule not in (None, "linear", "constant"):
        raise StartupError(f"--schedule must be linear or constant, not {schedule!r}", field="schedule")
    given: dict[str, Any] = {
        "target_recall": target_recall,
        "rate": rate,
        "schedule": schedule,
        "weight_decay": weight_decay,
        "batch_size": batch_size,
        "max_epochs": max_epochs,
        "patience": patience,
        "seed": seed,
        "logits_size": logits_size,
        "hidden_dims": None if hidden_dims is None else _widths(hidden_dims),
        "expansion_factor": expansion_factor,
        "dropout": dropout,
        "normalize_input": normalize_input,
    }
    recipe = replace(PRESETS[preset], **{name: value for name, value in given.items() if value is not None})
    recipe.check()
    require_free(out)
    small = resolve_settings(config, slm={"path": slm}).slm.path
    check_model(small, "slm.path")
    try:
        labels, manifest = load_dataset(dataset)
        embedding = fitting_embedding(small, manifest)
        with _progress(recipe.max_epochs) as watcher:
            trained = train_router(
                labels, manifest, embedding, recipe, device=device, num_threads=num_threads, watcher=watcher
            )
        has_curves = export_router(out, trained)
    except KeyboardInterrupt:
        raise Cancelled("stopped; nothing was written") from None
    _show(trained.report)
    if not has_curves:
        stderr().print("no curves.svg was drawn, for want of matplotlib: pip install 'allroads[lifecycle]'")
    stdout().print(f"router of {trained.report.num_parameters:,} parameters in {out}; serve it with --router {out}")


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise StartupError(
            f"--hidden-dims must be whole numbers with commas, not {text!r}", field="hidden_dims"
        ) from None


@contextmanager
def _progress(max_epochs: int) -> "Iterator[Watcher]":
    from ..training.fitting import Watcher  # noqa: PLC0415 (late, as above)

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = stderr()
    # In a file or a pipe there is no bar to draw.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"epoch 1 of {max_epochs}", total=None)

        def on_step(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        def on_epoch(epoch: "Epoch") -> None:
            words = f"epoch {epoch.number}: loss {epoch.train_loss:.4f}, on validation {epoch.validation_loss:.4f}"
            console.print(words)
            progress.update(task, description=f"epoch {epoch.number + 1} of {max_epochs}")

        yield Watcher(on_step, on_epoch)


def _show(report: "TrainReport") -> None:
    table = Table("divergent tokens", "validation", "test")
    splits = (report.validation, report.test)

    def row(name: str, *cells: str) -> None:
        table.add_row(name, *cells)

    row("tokens", *(f"{split.quality.num_tokens:,}" for split in splits))
    row("divergent", *(f"{part.quality.num_positives:,} ({part.quality.base_rate:.2%})" for part in splits))
    row("recall", *(f"{split.quality.recall:.1%}" for split in splits))
    row("  95 % interval", *(f"{low:.1%} to {high:.1%}" for low, high in (s.recall_interval for s in splits)))
    row("precision", *(f"{split.quality.precision:.1%}" for split in splits))
    row("share of the large model", *(f"{split.quality.positive_rate:.2%}" for split in splits))
    row("PR-AUC", *(f"{split.quality.pr_auc:.3f}" for split in splits))
    row("  of chance", *(f"{split.chance_pr_auc:.3f}" for split in splits))
    row("mean score", *(f"{split.quality.mean_probability:.2%}" for split in splits))
    row("calibration error", *(f"{split.calibration_error:.2%}" for split in splits))
    console = stdout()
    console.print(table, soft_wrap=False)
    console.print(
        f"threshold {report.threshold:.6g} ({report.threshold_rule}); weights of epoch {report.best_epoch} of "
        f"{len(report.epochs)}"
    )
