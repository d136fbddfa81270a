"""Writes a trained router with all that tells of it: weights, manifest, card, report and curves."""

import importlib.util
from pathlib import Path

from ..router.checkpoint import save_router
from .router_card import write_router_card
from .train_router import TrainedRouter
from .whole_directory import whole_directory

REPORT_FILE, CURVES_FILE = "report.json", "curves.svg"


def export_router(out: Path, trained: TrainedRouter) -> bool:
    """Write it to `out`, whole or not at all. False where there is no picture, for want of matplotlib.

    Raises:
        StartupError: there is something at `out`, or it cannot be written to.
    """
    can_draw = importlib.util.find_spec("matplotlib") is not None
    with whole_directory(out) as directory:
        save_router(directory, trained.classifier, trained.manifest)
        made_by = "`allroads label` and `allroads train`"
        write_router_card(directory, trained.classifier.num_parameters, trained.manifest, made_by)
        (directory / REPORT_FILE).write_text(trained.report.model_dump_json(indent=2) + "\n")
        if can_draw:
            # Late, since only the extra `lifecycle` has it.
            from .curves import draw_curves  # noqa: PLC0415

            draw_curves(trained.report, directory / CURVES_FILE)
    return can_draw
