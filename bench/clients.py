"""What real clients get from the REST API, each in an environment of its own.

`python -m bench.clients [--only NAME] [--json] [--write-docs]` starts the embedded pair once, installs one client
after the other into a temporary folder, asks it for what it can do, and prints what passed or why not. Needs a
package index. `--write-docs` writes the table into `docs/clients.md`.
"""

import asyncio
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from allroads import __version__

from .client_kinds import KINDS, PASSED, ROOT, Kind, Place, last_words
from .mesh import running_mesh
from .report import arguments, finish, show

_MAX_MIB = 1500
_NOT_WANTED = "torch<0\nnvidia-cublas<0\n"
"""Constraints: who needs one of these is gigabytes large, and is told so before anything is loaded."""
_PAGE = ROOT / "docs" / "clients.md"
_BEGIN, _END = "<!-- table: python -m bench.clients --write-docs -->\n", "<!-- end of table -->\n"


async def install(kind: Kind, place: Place) -> tuple[str, str]:
    """Make a client's environment; its version, and why it cannot be had ("" where it can)."""
    if not kind.packages:
        return "", ""
    code, _, err = await place.run(sys.executable, "-m", "venv", place.folder)
    if code:
        return "", last_words(err)
    constraints = place.folder / "constraints.txt"
    constraints.write_text(_NOT_WANTED)
    pip = (place.bin / "python", "-m", "pip")
    code, _, err = await place.run(*pip, "install", "-q", "-c", constraints, *kind.packages)
    if code:
        return "", last_words(err)
    size = sum(path.stat().st_size for path in place.folder.rglob("*") if path.is_file()) / 2**20
    if size > _MAX_MIB:
        return "", f"it takes {size:.0f} MiB, over {_MAX_MIB}"
    name = kind.packages[0].split("<")[0]
    code, version, _ = await place.run(
        place.bin / "python", "-c", f"from importlib.metadata import version; print(version({name!r}))"
    )
    return version.strip() if code == 0 else "", ""


async def try_all(kinds: list[Kind]) -> list[dict[str, Any]]:
    """What came of each client, one after the other over one mesh."""
    results = []
    async with running_mesh() as mesh:
        for kind in kinds:
            with tempfile.TemporaryDirectory(prefix="allroads-client-") as folder:
                place = Place(Path(folder), str(mesh.client.base_url).rstrip("/"))
                version, fault = await install(kind, place)
                outcomes = {"install": fault} if fault else dict(await kind.ask(place))
            results.append({"client": kind.name, "version": version, "outcomes": outcomes})
    return results


def table(results: list[dict[str, Any]]) -> str:
    """The results as Markdown: a row for each client, and what failed below it."""
    lines = [
        f"allroads {__version__}, Python {platform.python_version()}, the embedded pair.",
        "",
        "| client | version | passed | did not pass |",
        "|---|---|---|---|",
    ]
    for result in results:
        outcomes = result["outcomes"]
        passed = ", ".join(feature for feature, outcome in outcomes.items() if outcome == PASSED)
        failed = "<br>".join(
            f"{feature}: {outcome.replace('|', '/')}" for feature, outcome in outcomes.items() if outcome != PASSED
        )
        lines.append(f"| {result['client']} | {result['version']} | {passed} | {failed} |")
    return "\n".join(lines) + "\n"


def write_page(results: list[dict[str, Any]]) -> None:
    """Put the table into the page, in place of the one that is there."""
    before, rest = _PAGE.read_text().split(_BEGIN)
    _, after = rest.split(_END)
    _PAGE.write_text(f"{before}{_BEGIN}{table(results)}{_END}{after}")


def main() -> None:
    """Command line."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", action="append", choices=[kind.name for kind in KINDS], help="just this client")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/clients.md")
    options = parser.parse_args()
    results = asyncio.run(try_all([kind for kind in KINDS if not options.only or kind.name in options.only]))
    rows = [
        (f"{result['client']} {result['version']}", feature, outcome)
        for result in results
        for feature, outcome in result["outcomes"].items()
    ]
    show("clients", ("client", "feature", "outcome"), rows, width=160)
    if options.write_docs:
        write_page(results)
    finish({"clients": results}, as_json=options.json)


if __name__ == "__main__":
    main()
