"""A headless Chromium, driven over the W3C WebDriver protocol by plain HTTP: no library between."""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "ArrowRight": "\ue014", "End": "\ue010"}
WAIT_MS = 60_000
"""How long a script may take, and a condition may be waited for."""

_UNTIL = """
const done = arguments[arguments.length - 1];
const look = () => { const found = (() => { %s })(); found ? done(found) : setTimeout(look, 20); };
look();
"""


def missing() -> str:
    """What a browser needs and this machine lacks; empty where it has all."""
    return ", ".join(name for name in ("chromium", "chromedriver") if shutil.which(name) is None)


class Browser:
    """One window. `js` is the body of a function of the page."""

    def __init__(self, driver: httpx.Client, session: str) -> None:
        self._driver, self._session = driver, session

    def open(self, url: str) -> None:
        self._post("url", url=url)

    def run(self, js: str) -> Any:
        return self._post("execute/sync", script=js, args=[])

    def until(self, js: str) -> Any:
        """Look again and again until it is true in the page; what it gave."""
        return self._post("execute/async", script=_UNTIL % js, args=[])

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a user with no mouse does."""
        strokes = [KEYS.get(key, key) for key in keys]
        actions = [{"type": kind, "value": stroke} for stroke in strokes for kind in ("keyDown", "keyUp")]
        self._post("actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def point_at(self, selector: str) -> None:
        """Move the mouse onto the first element of a CSS selector."""
        element = self._post("element", using="css selector", value=selector)
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": element}
        self._post("actions", actions=[{"type": "pointer", "id": "mouse", "actions": [move]}])

    def emulate(self, command: str, **params: Any) -> None:
        """A command of the DevTools protocol, such as `Emulation.setDeviceMetricsOverride`."""
        self._post("goog/cdp/execute", cmd=command, params=params)

    def picture(self) -> str:
        """The window as PNG, in base64."""
        return str(self._get("screenshot"))

    def complaints(self) -> list[str]:
        """What the console has got since the last call: errors and warnings, breaches of the policy among them."""
        return [entry["message"] for entry in self._post("se/log", type="browser")]

    def requested_urls(self) -> list[str]:
        """What the window has asked the network for since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self._post("se/log", type="performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def _get(self, path: str) -> Any:
        return _value(self._driver.get(f"/session/{self._session}/{path}"))

    def _post(self, path: str, **fields: Any) -> Any:
        return _value(self._driver.post(f"/session/{self._session}/{path}", json=fields))


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in a directory; it ends with the context."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    log = profile / "driver.log"
    command = [shutil.which("chromedriver") or "", f"--port={port}", f"--log-path={log}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    # Over its own address only: a proxy in the environment is not for it.
    driver = httpx.Client(
        base_url=f"http://127.0.0.1:{port}", timeout=90, trust_env=False, transport=httpx.HTTPTransport(retries=8)
    )
    wanted = {
        "goog:chromeOptions": {"args": [*FLAGS, f"--user-data-dir={profile / 'profile'}"]},
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        "timeouts": {"script": WAIT_MS},
    }
    try:
        session = str(_value(driver.post("/session", json={"capabilities": {"alwaysMatch": wanted}}))["sessionId"])
        try:
            browser = Browser(driver, session)
            # Away from the browser's own first page, and from what it asked for.
            browser.open("about:blank")
            browser.requested_urls()
            yield browser
        finally:
            driver.delete(f"/session/{session}")
    finally:
        driver.close()
        process.terminate()
        process.wait(30)


def _value(response: httpx.Response) -> Any:
    value = response.json()["value"]
    assert response.status_code == 200, value["message"]
    return value
