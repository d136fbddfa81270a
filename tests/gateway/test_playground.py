"""The playground's page: what is served, that it needs nothing from elsewhere, and the scores that it shows."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from allroads.gateway.text.tokenizer import TextTokenizer

from tests.doubles.scripted_home import Script
from tests.gateway.conftest import Serve, Served

PAGE = Path(__file__).parents[2] / "services" / "gateway" / "playground"
SCRIPTS = sorted(path.name for path in PAGE.glob("*.js"))
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def as_modules(directory: Path) -> Path:
    """A copy of the scripts that node takes for modules, as a browser does."""
    for name in SCRIPTS:
        shutil.copy(PAGE / name, directory / name)
    (directory / "package.json").write_text('{"type": "module"}')
    return directory


@NEEDS_NODE
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_well_formed(name: str, tmp_path: Path) -> None:
    subprocess.run(["node", "--check", as_modules(tmp_path) / name], check=True, timeout=60)


@NEEDS_NODE
@pytest.mark.parametrize(
    ("status", "headers", "message", "words"),
    [
        (429, {"Retry-After": "7"}, "the line is full", "There is no room now: the line is full. Try again in 7 s."),
        (401, {}, "wrong key", "wrong key. Put an API key into the settings."),
        (503, {"Retry-After": "1"}, "not ready", "not ready. Try again in 1 s."),
        (502, {}, None, "the gateway answered 502."),
        (0, {}, None, "The gateway cannot be reached."),
    ],
)
def test_refusals_are_told_in_words(
    status: int, headers: dict[str, str], message: str | None, words: str, tmp_path: Path
) -> None:
    body = f'{{"error": {{"message": "{message}"}}}}' if message else "Bad gateway"
    reply = f"new Response({body!r}, {{status: {status}, headers: {headers}}})" if status else "Promise.reject(Error())"
    script = as_modules(tmp_path) / "try.js"
    script.write_text(
        f'globalThis.fetch = async () => {reply};\nconst {{ fetchCard }} = await import("./api.js");\n'
        "await fetchCard().catch((error) => process.stdout.write(error.message));\n"
    )
    told = subprocess.run(["node", script], check=True, timeout=60, capture_output=True, text=True)
    assert told.stdout == words


@NEEDS_NODE
def test_events_are_read_however_they_are_cut(tmp_path: Path) -> None:
    stream = ': hi\n\ndata: {"choices": "ä"}\r\n\r\ndata: {"choices": 2}\n\ndata: [DONE]\n\n'
    script = as_modules(tmp_path) / "try.js"
    script.write_text(
        f"const bytes = new TextEncoder().encode({stream!r});\n"
        "globalThis.fetch = async () => new Response(new ReadableStream({ start(out) {\n"
        "  bytes.forEach((byte) => out.enqueue(new Uint8Array([byte]))); out.close(); } }));\n"
        'const { streamChat } = await import("./api.js");\n'
        "for await (const chunk of streamChat({})) process.stdout.write(`${chunk.choices} `);\n"
    )
    told = subprocess.run(["node", script], check=True, timeout=60, capture_output=True, text=True)
    assert told.stdout == "ä 2 "


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve(Script([5]))


async def test_the_page_and_its_parts_are_served(served: Served) -> None:
    for path in PAGE.iterdir():
        url = "/" if path.name == "index.html" else f"/playground/{path.name}"
        reply = await served.http.get(url)
        assert reply.status_code == 200
        assert reply.content == path.read_bytes()
        assert reply.headers["content-type"].partition(";")[0] == TYPES[path.suffix]
        assert reply.headers["content-security-policy"].startswith("default-src 'self';")
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-cache"
        again = await served.http.get(url, headers={"If-None-Match": reply.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await served.http.head(url)).headers["content-length"] == str(len(reply.content))
    for url in ("/playground/", "/playground/none.js", "/playground/../config.py", "/playground/%2e%2e/gateway.py"):
        assert (await served.http.get(url)).status_code == 404
    assert (await served.http.post("/")).status_code == 405


async def test_it_can_be_turned_off(serve: Serve) -> None:
    served = await serve(Script([5]), playground=False)
    assert (await served.http.get("/")).status_code == 404
    assert (await served.http.get("/playground/main.js")).status_code == 404


def test_the_page_needs_nothing_that_is_not_served_with_it() -> None:
    there = {path.name for path in PAGE.iterdir()}
    html = (PAGE / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert {name.removeprefix("playground/") for name in named} <= there
    assert not re.search(r"<style|<script(?![^>]*src)| style=| on\w+=", html)
    for name in SCRIPTS:
        text = (PAGE / name).read_text()
        assert set(re.findall(r'from "\./([^"]*)"', text)) <= there
        assert not re.search(r"https?://|innerHTML|localStorage|sessionStorage|document\.cookie", text)
    assert "url(" not in (PAGE / "style.css").read_text()


async def test_scores_are_told_where_they_are_asked_for(serve: Serve, tokenizer: TextTokenizer) -> None:
    token_ids = await tokenizer.encode_prompt("Aya has 37 apples")
    scores = [0.25, math.nan, 0.1, *[0.5] * len(token_ids)][: len(token_ids)]
    wanted = [0.25, None, 0.1, *[0.5] * len(token_ids)][: len(token_ids)]
    served = await serve(Script(token_ids, scores=scores, groups=(2, 1)), piece_interval_s=0.001)
    for ask in (served.chat, served.complete):
        whole = (await ask(routing={"report_scores": True}, max_tokens=64)).json()
        assert whole["routing"]["scores"] == wanted
        assert "tiers" not in whole["routing"]
        assert "scores" not in (await ask(routing={"report_tokens": True})).json()["routing"]
    chunks = await served.chunks(routing={"report_scores": True, "report_tokens": True})
    told = [chunk["routing"] for chunk in chunks if chunk != "[DONE]" and "scores" in chunk.get("routing", {})]
    assert [score for routing in told for score in routing["scores"]] == wanted
    assert all(len(routing["scores"]) == len(routing["tiers"]) for routing in told)


async def test_a_home_that_tells_no_scores_gives_none(served: Served) -> None:
    assert (await served.chat(routing={"report_scores": True})).json()["routing"]["scores"] == [None]


async def test_scores_of_which_some_are_left_out_fail_the_request(serve: Serve) -> None:
    served = await serve(Script([5, 6, 7], scores=[0.5, 0.5], groups=(3,)))
    assert (await served.chat(routing={"report_scores": True})).status_code == 500
