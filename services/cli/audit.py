"""`allroads audit`: what a mesh's decision log says of its router, two routers compared, and a person's judgement."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..embedded import model_path
from ..errors import StartupError
from .console import one_line, stderr, stdout
from .options import resolve_settings

if TYPE_CHECKING:
    from ..audit.drift import CalibratedRouter
    from ..evaluation.cost import ParameterCounts

audit = typer.Typer(
    no_args_is_help=True, help="Report on recorded decisions, compare two routers, and let a person judge decisions."
)

_BILLION = 1e9
_SIZES = "Cost"
Logs = Annotated[
    list[Path], typer.Argument(metavar="LOG...", help="Decision logs; PATH.1 and so on are found.", show_default=False)
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(metavar="DIR", parser=model_path, help="Model that was served, or another with its tokenizer."),
]


@audit.command()
def report(
    logs: Logs,
    tokenizer: Tokenizer = None,
    router: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH",
            help="Calibration, or directory of a router or scorer, to tell of drift.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Mesh whose models' sizes count.", rich_help_panel=_SIZES),
    ] = None,
    slm_parameters: Annotated[
        float | None,
        typer.Option(min=1e-9, metavar="BILLIONS", help="That a token activates.", rich_help_panel=_SIZES),
    ] = None,
    llm_parameters: Annotated[
        float | None, typer.Option(min=1e-9, metavar="BILLIONS", help="The same.", rich_help_panel=_SIZES)
    ] = None,
    router_parameters: Annotated[
        float | None, typer.Option(min=0, metavar="BILLIONS", help="The same.", rich_help_panel=_SIZES)
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(metavar="SLM,LLM", help="Of a million tokens of either model.", rich_help_panel=_SIZES),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where audit.html and audit.json go.", show_default=False)
    ] = None,
) -> None:
    """Show what a router did, or would have done: how much it sends on, misses and saves, and whether it drifts.

    Sizes of models are taken from --config, or named. docs/audit.md says how to read the figures.
    """
    # Late, so that no other command pays for them.
    from ..audit.cost import parse_prices  # noqa: PLC0415
    from ..audit.page import render_page  # noqa: PLC0415
    from ..audit.report import make_audit  # noqa: PLC0415
    from ..audit.token_class import TokenClasses  # noqa: PLC0415
    from .audit_view import show_audit  # noqa: PLC0415

    made = make_audit(
        logs,
        classes=None if tokenizer is None else TokenClasses(tokenizer),
        routers=_calibrated(router or []),
        sizes=_sizes(config, slm_parameters, llm_parameters, router_parameters),
        prices=None if prices is None else parse_prices(prices),
    )
    show_audit(made, stdout(), has_classes=tokenizer is not None)
    if out is not None:
        _write(out, "audit.json", made.to_json())
        _write(out, "audit.html", render_page(made))


@audit.command()
def compare(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG_A [LOG_B]", help="Log of each side, or one of both.", min=1, max=2, show_default=False
        ),
    ],
    a: Annotated[str, typer.Option("--a", metavar="SIDE", help="POLICY, POLICY@THRESHOLD or @THRESHOLD.")] = "",
    b: Annotated[str, typer.Option("--b", metavar="SIDE", help="The same; without it, all of a log.")] = "",
    matters: Annotated[float, typer.Option(metavar="SHARE", help="Smallest difference of shares that matters.")] = 0.01,
) -> None:
    """Compare two routers, or two thresholds, that served different requests: do they differ, or may it be chance?"""
    if len(logs) > 2:
        raise typer.BadParameter("give one log or two")
    from ..audit.compare import compare as compare_sides  # noqa: PLC0415
    from ..audit.compare import parse_side  # noqa: PLC0415
    from .audit_view import show_comparison  # noqa: PLC0415

    sides = parse_side(a, logs[:1]), parse_side(b, logs[-1:])
    show_comparison(compare_sides(*sides, matters), stdout())


@audit.command()
def review(
    logs: Logs,
    queue: Annotated[Path, typer.Option(metavar="FILE", help="Where decisions and answers are kept.")],
    tokenizer: Annotated[Path, typer.Option(metavar="DIR", parser=model_path, help="Model that was served.")],
    decisions: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="To put into an empty queue.")] = 50,
    again: Annotated[bool, typer.Option("--again", help="Show what was answered before, to correct it.")] = False,
) -> None:
    """Judge decisions yourself: would the small model's token have changed the answer?

    Needs a log with contexts (slm.decisions_context). Answers are kept one by one; the same command goes on later.
    """
    from ..audit.review_pick import pick  # noqa: PLC0415
    from ..audit.review_queue import ReviewQueue  # noqa: PLC0415
    from ..audit.token_class import TokenClasses  # noqa: PLC0415
    from .audit_review import Reviewer  # noqa: PLC0415

    texts = TokenClasses(tokenizer)
    with ReviewQueue(queue) as opened:
        if not again and not opened.open_items:
            opened.add(pick(logs, decisions, known=opened.items.keys()))
        Reviewer(opened, texts, stdout()).run(list(opened.items.values()) if again else opened.open_items)


@audit.command()
def labels(
    queue: Annotated[Path, typer.Option(metavar="FILE", help="What a review wrote.")],
    dataset: Annotated[Path, typer.Option(metavar="DIR", help="Labels to add the answers to.")],
    slm: Annotated[Path, typer.Option(metavar="DIR", help="Small model of the log and of the labels.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new labels, for `allroads train`.")],
) -> None:
    """Make labels of a review's answers: write a dataset that has the rows of another and these."""
    from ..audit.review_labels import merge_reviewed  # noqa: PLC0415
    from ..audit.review_queue import ReviewQueue  # noqa: PLC0415

    if not queue.is_file():
        raise StartupError(f"--queue: no file {queue}; `allroads audit review` makes it", field="queue")
    with ReviewQueue(queue) as opened:
        merged = merge_reviewed(opened, dataset, slm, out)
    stdout().print(
        f"{merged.num_added} answers became labels in {one_line(str(out))}; {merged.num_cut} were left out because the "
        f"log cut their context, {merged.num_skipped} have no answer"
    )
    if merged.num_otherwise:
        stderr().print(
            f"in {merged.num_otherwise} of them the small model's likeliest token is not the one that was judged: it "
            "was drawn at random, or another model was served",
            style="yellow",
        )


def _calibrated(paths: list[Path]) -> "list[CalibratedRouter]":
    if not paths:
        return []
    # Late, so that no report pays for torch that needs none.
    from ..audit.calibrated import load_calibrated  # noqa: PLC0415

    return [load_calibrated(path) for path in paths]


def _sizes(config: Path | None, slm: float | None, llm: float | None, router: float | None) -> "ParameterCounts | None":
    """Parameters as options name them, or else as the files of a mesh tell."""
    from ..evaluation.cost import ParameterCounts  # noqa: PLC0415
    from ..model_identity import identify_model  # noqa: PLC0415
    from ..weight_headers import stored_tensors  # noqa: PLC0415

    sizes = [None if size is None else round(size * _BILLION) for size in (slm, llm, router)]
    if config is not None:
        settings = resolve_settings(config)
        for tier, path in enumerate((settings.slm.path, settings.llm.path)):
            sizes[tier] = sizes[tier] or identify_model(path).num_parameters
        if sizes[2] is None and settings.router.path.is_dir():
            sizes[2] = sum(tensor.num_values for tensor in stored_tensors(settings.router.path).values())
    if sizes == [None, None, None]:
        return None
    if sizes[0] is None or sizes[1] is None:
        raise StartupError(
            "give --slm-parameters and --llm-parameters both, or a mesh's --config", field="slm_parameters"
        )
    return ParameterCounts((sizes[0], sizes[1]), sizes[2] or 0)


def _write(directory: Path, name: str, content: str) -> None:
    path = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise StartupError(f"--out: cannot write {path}: {error.strerror}", field="out") from error
    stderr().print(f"wrote {one_line(str(path))}")
