"""`allroads calibrate`: the threshold that meets a target."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table

from ..errors import Cancelled, StartupError
from .console import stderr, stdout
from .model_files import check_model
from .options import Config, resolve_settings

if TYPE_CHECKING:
    from ..router.calibration_file import Calibration

_FEW_DIVERGENT = 50
_Kind = Literal["recall", "share", "cost"]


def calibrate(
    router: Annotated[
        Path,
        typer.Argument(metavar="ROUTER", help="What `allroads train` wrote, a published .pt file, or another scorer."),
    ],
    dataset: Annotated[Path, typer.Option(metavar="DIR", help="What `allroads label` wrote.")],
    target_recall: Annotated[
        float | None, typer.Option(metavar="R", help="Find at least this share of the divergent tokens, above 0 to 1.")
    ] = None,
    target_share: Annotated[
        float | None, typer.Option(metavar="S", help="Send at most this share of tokens to the large model, 0 to 1.")
    ] = None,
    target_cost: Annotated[
        float | None,
        typer.Option(metavar="C", help="Activate at most so many parameters a token on average, in billions."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where it goes. Default: calibration.json beside the router."),
    ] = None,
    slm: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Small model. Without one: the one of the mesh.")
    ] = None,
    num_threads: Annotated[int, typer.Option(min=1, metavar="N", help="torch threads.")] = 2,
    config: Config = None,
) -> None:
    """Choose a router's threshold for a target, on labels, and store it with all that it is valid for.

    What a threshold comes to depends on the text: measured on some of the labelled problems, and on others that it was
    not chosen on. A mesh takes the file as `router.calibration`, and refuses it where the models, the weights or the
    features are others.
    """
    # Late, so that no other command pays for torch.
    from ..labelling.dataset import load_dataset  # noqa: PLC0415
    from ..router.calibration_file import write_calibration  # noqa: PLC0415
    from ..training.calibrate_threshold import calibrate_threshold, make_target, place_beside  # noqa: PLC0415

    target = make_target(*_only_one({"recall": target_recall, "share": target_share, "cost": target_cost}))
    settings = resolve_settings(config, slm={"path": slm}, router={"path": router})
    check_model(settings.slm.path, "slm.path")
    try:
        labels, manifest = load_dataset(dataset)
        calibration = calibrate_threshold(
            settings.router.path,
            settings.slm.path,
            labels,
            manifest,
            target,
            slm_dtype=manifest.run.slm_engine.dtype,
            num_threads=num_threads,
        )
        place = out or place_beside(settings.router.path)
        write_calibration(place, calibration)
    except KeyboardInterrupt:
        raise Cancelled("stopped; nothing was written") from None
    _show(calibration)
    stdout().print(f"threshold {calibration.threshold:.6g} in {place}; serve it with router.calibration: {place}")


def _only_one(targets: dict[_Kind, float | None]) -> tuple[_Kind, float]:
    given = [(kind, value) for kind, value in targets.items() if value is not None]
    if len(given) != 1:
        raise StartupError("exactly one target is needed: --target-recall, --target-share or --target-cost")
    return given[0]


def _show(calibration: "Calibration") -> None:
    parts = (calibration.calibration, calibration.held_out)
    table = Table(f"scorer {calibration.scorer}", "calibrated on", "held out")
    table.add_row("problems", *(f"{part.num_problems:,}" for part in parts))
    table.add_row("tokens", *(f"{part.num_tokens:,}" for part in parts))
    table.add_row("divergent", *(f"{part.num_divergent:,}" for part in parts))
    table.add_row("recall", *("unknown" if part.recall is None else f"{part.recall:.1%}" for part in parts))
    table.add_row("share of the large model", *(f"{part.share:.2%}" for part in parts))
    table.add_row("billions of parameters a token", *(f"{part.cost:.4g}" for part in parts))
    stdout().print(table, soft_wrap=False)
    if min(part.num_divergent for part in parts) < _FEW_DIVERGENT:
        stderr().print(f"recall on fewer than {_FEW_DIVERGENT} divergent tokens is a guess: label more problems")
