"""The playground in a real browser, over the whole mesh: what a user sees, by mouse, by keyboard, and on a phone."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ..doubles.browser import Browser, browsing, missing
from ..doubles.processes import MeshProcesses

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")

QUESTION = "abc def"
ANSWERED = "return document.querySelector('.turn:first-child details')"
SHARE = "return document.querySelector('.turn:first-child .answer dd').textContent"


@pytest.fixture(scope="module")
def url(mesh: MeshProcesses) -> str:
    return f"http://127.0.0.1:{mesh.settings.gateway.port}"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Browser]:
    """The page, with its question; it complains of nothing and asks nobody but its gateway."""
    browser.emulate("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(url)
    browser.until("return document.querySelector('#policy option')")
    browser.run(f"document.getElementById('question').value = {json.dumps(QUESTION)}")
    write(browser, "max-tokens", 48)
    yield browser
    assert browser.complaints() == []
    assert {asked.startswith(f"{url}/") for asked in browser.requested_urls()} == {True}


@pytest.fixture(scope="module")
def threshold(url: str) -> float:
    """A threshold at which both models write: just under the highest score of what the small one writes alone."""
    body = {
        "model": "allroads", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 48,
        "routing": {"policy": "r2r", "threshold": 1, "report_scores": True},
    }  # fmt: skip
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=90)
    return float(max(reply.json()["routing"]["scores"])) - 1e-4


def write(page: Browser, field: str, value: float | str) -> None:
    page.run(
        f"const input = document.getElementById('{field}') ?? document.querySelector('#parameters [type=number]');"
        f"input.value = '{value}'; input.dispatchEvent(new Event('input'));"
    )


def ask(page: Browser) -> None:
    page.run("document.getElementById('send').click()")
    page.until(ANSWERED)


def test_tokens_of_both_models_are_told_apart(page: Browser, threshold: float) -> None:
    write(page, "threshold", threshold)
    ask(page)
    kinds = page.run(
        "return [...document.querySelectorAll('.tokens .token')].map((t) =>"
        "[t.classList[1], getComputedStyle(t).textDecorationLine, getComputedStyle(t).backgroundColor])"
    )
    assert {(kind, line) for kind, line, _ in kinds} == {("tier-small", "none"), ("tier-large", "underline")}
    assert len({colour for _, _, colour in kinds}) == 2
    assert page.run("return document.querySelectorAll('#legend .token').length") == 2
    page.point_at(".tokens .tier-large")
    page.until("return !document.getElementById('details').hidden")
    details = page.run("return document.getElementById('details').innerText")
    for said in ("written by\nllm", "probability\n", "router score\n", "threshold\n", "1. choice"):
        assert said in details


def test_the_threshold_moves_the_share(page: Browser) -> None:
    for value, share in ((0, "100 %"), (1, "0 %")):
        write(page, "threshold", value)
        ask(page)
        assert page.run(SHARE).startswith(f"{share} of ")
        page.run("document.querySelector('.turn').remove()")


def test_each_model_alone_stands_beside_the_routed_answer(page: Browser, threshold: float) -> None:
    write(page, "threshold", threshold)
    page.run("document.getElementById('compare').click(); document.getElementById('send').click()")
    page.until("return document.querySelectorAll('.turn details').length === 3")
    shares = page.run("return [...document.querySelectorAll('.answer')].map((a) => a.querySelector('dd').textContent)")
    assert [share.split(" of ")[0] for share in shares][::2] == ["0 %", "100 %"]
    assert shares[1].split(" of ")[0] not in {"0 %", "100 %"}


def test_escape_stops_an_answer(page: Browser) -> None:
    write(page, "max-tokens", "")
    write(page, "threshold", 0)
    page.run("document.getElementById('question').focus()")
    page.press("Enter")
    page.until("return document.querySelector('.tokens .token')")
    page.press("Escape")
    page.until("return document.querySelector('.state').textContent === 'stopped'")
    assert page.run("return document.getElementById('stop').disabled")
    page.until("return document.getElementById('status').innerText.includes('answered now\\n0 of')")


def test_everything_is_in_reach_of_the_keyboard(page: Browser, threshold: float) -> None:
    write(page, "threshold", threshold)
    assert page.run("return document.activeElement.id") == "question"
    page.press("Enter")
    page.until(ANSWERED)
    assert "is complete" in page.run("return document.getElementById('news').textContent")
    reached: list[str] = []
    while "option" not in reached[-1:]:
        page.press("Tab")
        reached.append(page.run("const e = document.activeElement; return e.getAttribute('role') ?? e.id"))
        assert len(reached) < 20, reached
    assert reached[:3] == ["send", "compare", "remember"]
    assert {"policy", "parameter-threshold", "mode", "temperature", "max-tokens", "key"} <= set(reached)
    page.press("ArrowRight", "ArrowRight")
    focused = "return [...document.querySelectorAll('.tokens .token')].indexOf(document.activeElement)"
    assert page.run(focused) == 2
    assert not page.run("return document.getElementById('details').hidden")
    page.press("Escape")
    assert page.run("return document.getElementById('details').hidden")


def test_a_refusal_is_told_in_words(page: Browser) -> None:
    write(page, "threshold", 7)
    page.run("document.getElementById('send').click()")
    page.until("return document.querySelector('.turn [role=alert]')")
    words = page.run("return document.querySelector('.turn [role=alert]').textContent")
    assert words == "the threshold of r2r must be a number from 0 to 1, not 7."
    (complaint,) = page.complaints()
    assert "400" in complaint


def test_a_phone_scrolls_in_one_direction_only(page: Browser, tmp_path: Path) -> None:
    page.emulate("Emulation.setDeviceMetricsOverride", width=360, height=740, deviceScaleFactor=1, mobile=True)
    page.run("document.getElementById('compare').click(); document.getElementById('settings').open = true")
    page.run("document.getElementById('send').click()")
    page.until("return document.querySelectorAll('.turn details').length === 3")
    page.run("for (const block of document.querySelectorAll('details')) block.open = true")
    page.run("document.querySelector('.tokens .token:nth-child(5)').click()")
    assert page.run("return [document.documentElement.scrollWidth, window.innerWidth]") == [360, 360]
    box = page.run(
        "const box = document.getElementById('details').getBoundingClientRect(); return [box.left, box.right]"
    )
    assert 0 <= box[0] < box[1] <= 360
