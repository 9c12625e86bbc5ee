"""
A real browser without a window, driven by the WebDriver protocol.

Debian has both programs: ``apt-get install chromium chromium-driver``.
"""

import base64
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from support.waiting import until
from towpath.deploy.local import ports

PROGRAM = "chromedriver"
# Tall enough for all rows of the statistics.
WIDTH, HEIGHT = 1280, 1100
# Keys by WebDriver's names for them.
TAB, ENTER = "\ue004", "\ue007"
_KEY = ("keyDown", "keyUp")
_IS_LOADED = """
    return document.readyState === "complete"
        && !document.documentElement.dataset.isLeft
"""
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One window."""

    def __init__(self, session_url: str) -> None:
        self._url = session_url

    def open(self, address: str) -> None:
        """Open a page."""
        self._post("url", {"url": address})

    def fill(self, name: str, text: str) -> None:
        """Replace the text of a named field."""
        field = self._find(f"input[name='{name}']")
        script = "arguments[0].focus(); arguments[0].select();"
        self._post("execute/sync", {"script": script, "args": [{_ELEMENT: field}]})
        self._post(f"element/{field}/value", {"text": text})

    def press(self, selector: str) -> None:
        """Click the element that a CSS selector finds."""
        self._post(f"element/{self._find(selector)}/click", {})

    def follow(self, selector: str) -> None:
        """Click an element that leads to a page, and wait until the page is loaded."""
        self.run("document.documentElement.dataset.isLeft = 'yes'")
        self.press(selector)
        until(lambda: self.run(_IS_LOADED), f"{selector} leads to a page")

    def choose(self, name: str, value: str) -> None:
        """Choose a value of a named list."""
        self.press(f"select[name='{name}'] option[value='{value}']")

    def keys(self, text: str) -> None:
        """Type keys where the focus is; see ``TAB`` and ``ENTER``."""
        one = [{"type": kind, "value": key} for key in text for kind in _KEY]
        source = {"type": "key", "id": "keyboard", "actions": one}
        self._post("actions", {"actions": [source]})

    def run(self, script: str) -> Any:
        """Run a script in the page, and return its value."""
        return self._post("execute/sync", {"script": script, "args": []})

    def emulate(
        self, *, is_dark: bool = False, width: int = WIDTH, height: int = HEIGHT
    ) -> None:
        """Show pages as on a screen of a size, with a light or a dark scheme."""
        scheme = {"name": "prefers-color-scheme", "value": ("light", "dark")[is_dark]}
        self._command("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self._command(
            "Emulation.setDeviceMetricsOverride", **size, mobile=width < WIDTH
        )

    def complaints(self) -> list[str]:
        """Return the warnings and errors of the console since the last call."""
        entries = self._post("se/log", {"type": "browser"})
        serious = ("WARNING", "SEVERE")
        return [one["message"] for one in entries if one["level"] in serious]

    def text(self) -> str:
        """Return the text that the page shows."""
        body = self._find("body")
        return str(self._get(f"element/{body}/text"))

    def picture(self) -> bytes:
        """Return a screenshot of the window, as PNG."""
        return base64.b64decode(self._get("screenshot"))

    def _command(self, name: str, **parameters: Any) -> None:
        """Execute a command of the browser's own protocol."""
        self._post("goog/cdp/execute", {"cmd": name, "params": parameters})

    def _find(self, selector: str) -> str:
        how = {"using": "css selector", "value": selector}
        return str(self._post("element", how)[_ELEMENT])

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return _value(requests.post(f"{self._url}/{path}", json=body, timeout=60))

    def _get(self, path: str) -> Any:
        return _value(requests.get(f"{self._url}/{path}", timeout=60))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Provide a window; the browser's own files go below the folder."""
    program = shutil.which(PROGRAM)
    assert program, "install a browser: apt-get install chromium chromium-driver"
    port = ports.any_free()
    driver = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [program, f"--port={port}"], stdout=subprocess.DEVNULL
    ) as one:
        try:
            until(lambda: _answers(f"{driver}/status"), "the browser's driver answers")
            words = [
                *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"),
                *(f"--window-size={WIDTH},{HEIGHT}", f"--user-data-dir={folder}"),
                "--force-device-scale-factor=0.75",
            ]
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": words},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            body = {"capabilities": {"alwaysMatch": wanted}}
            answer = requests.post(f"{driver}/session", json=body, timeout=60)
            session = f"{driver}/session/{_value(answer)['sessionId']}"
            try:
                yield Browser(session)
            finally:
                requests.delete(session, timeout=60)
        finally:
            one.terminate()


def start_load(page: Browser, address: str, fields: dict[str, str]) -> None:
    """Open locust's page, fill its fields, press Start; wait for its table."""
    until(lambda: _answers(address), "locust's page answers")
    page.open(address)
    until(lambda: "Start new load test" in page.text(), "the page is drawn")
    for name, text in fields.items():
        page.fill(name, text)
    page.press("button[type='submit']")
    until(lambda: "checkout" in page.text(), "the page shows requests")


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except requests.ConnectionError:
        return False


def _value(answer: requests.Response) -> Any:
    value = answer.json()["value"]
    assert answer.ok, value
    return value
