"""
A real headless browser, driven by Playwright.

It is the machine's own Chromium. If there is none, npm fetches the package
``@sparticuz/chromium``, locked by hash; its browser is unpacked below ``.towpath``.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import requests
from playwright.sync_api import Page, sync_playwright

from support.waiting import stretched, until
from towpath.sinks.jars.store import CLONE

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Tall enough for all rows of Locust's statistics.
WIDTH, HEIGHT = 1280, 1100
TAB, ENTER = "Tab", "Enter"
_TIMEOUT_MS: Final = 1000.0 * stretched(60.0)
_LOCKED: Final = CLONE / "tests" / "browser" / "chromium"
_UNPACKED: Final = CLONE / ".towpath" / "chromium"
_REMEDY: Final = "install chromium (apt-get install chromium), or npm to fetch one"
# Tests run as root in containers, where the browser's own sandbox cannot start.
_ARGUMENTS: Final = ("--no-sandbox", "--disable-dev-shm-usage")


class InstalledBrowser(NamedTuple):
    """A browser's program, and the folder of the libraries that it needs."""

    program: str
    libraries: str = ""


class Browser:
    """
    One browser window.

    Attributes:
        page: Playwright's page.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self._complaints: list[str] = []
        page.on("console", self._record)
        page.on("pageerror", lambda error: self._complaints.append(str(error)))

    def open(self, address: str) -> None:
        """Open a page."""
        self.page.goto(address)

    def fill(self, name: str, text: str) -> None:
        """Replace the text of a named field."""
        self.page.fill(f"input[name='{name}']", text)

    def press(self, selector: str) -> None:
        """Click the element that a CSS selector finds."""
        self.page.click(selector)

    def follow(self, selector: str) -> None:
        """Click an element that leads to a page, and wait until the page is loaded."""
        with self.page.expect_navigation(wait_until="load"):
            self.page.click(selector)

    def choose(self, name: str, value: str) -> None:
        """Choose a value of a named list."""
        self.page.select_option(f"select[name='{name}']", value)

    def key(self, name: str) -> None:
        """Press a key where the focus is; see ``TAB`` and ``ENTER``."""
        self.page.keyboard.press(name)

    def run(self, script: str) -> Any:
        """Run the body of a function in the page, and return its value."""
        return self.page.evaluate(f"() => {{ {script} }}")

    def emulate(
        self, *, is_dark: bool = False, width: int = WIDTH, height: int = HEIGHT
    ) -> None:
        """Show pages as on a screen of this size, in light or dark colors."""
        self.page.emulate_media(color_scheme="dark" if is_dark else "light")
        self.page.set_viewport_size({"width": width, "height": height})

    def complaints(self) -> list[str]:
        """Return the warnings and errors of the console since the last call."""
        found, self._complaints = self._complaints, []
        return found

    def text(self) -> str:
        """Return the text that the page shows."""
        return self.page.inner_text("body")

    def picture(self, *, is_whole: bool = False) -> bytes:
        """Return a screenshot of the window, or of the whole page, as PNG."""
        return self.page.screenshot(full_page=is_whole)

    def _record(self, message: Any) -> None:
        if message.type in {"warning", "error"}:
            self._complaints.append(message.text)


@contextmanager
def browser() -> Iterator[Browser]:
    """Provide a window of a new browser process."""
    found = installed()
    env = dict(os.environ)  # noqa: TID251 - the browser's
    if found.libraries:
        env["LD_LIBRARY_PATH"] = found.libraries
    with sync_playwright() as library:
        program = library.chromium.launch(
            executable_path=found.program, args=[*_ARGUMENTS], env=env
        )
        # LANG=C.UTF-8 becomes "en-US@posix", which no number format accepts.
        page = program.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, locale="en-US"
        )
        page.set_default_timeout(_TIMEOUT_MS)
        try:
            yield Browser(page)
        finally:
            program.close()


def installed() -> InstalledBrowser:
    """Return the machine's own Chromium, or the one that npm fetches."""
    for name in NAMES:
        if own := shutil.which(name):
            return InstalledBrowser(own)
    return fetched()


def fetched() -> InstalledBrowser:
    """Return the Chromium of the locked package; it is fetched once."""
    assert shutil.which("npm"), _REMEDY
    package = _UNPACKED / "package"
    if not (package / "node_modules").exists():
        shutil.copytree(_LOCKED, package, dirs_exist_ok=True)
        _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    printed = _run("node", "unpack.mjs")
    found = json.loads(printed.splitlines()[-1])
    return InstalledBrowser(found["program"], found["libraries"] or "")


def _run(*command: str) -> str:
    env = {**os.environ, "TMPDIR": str(_UNPACKED)}  # noqa: TID251 - npm's
    done = subprocess.run(
        command,
        cwd=_UNPACKED / "package",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{_REMEDY}: {done.stderr}"
    return done.stdout


def start_load(window: Browser, address: str, fields: dict[str, str]) -> None:
    """Open Locust's page, fill in the fields, press Start, and wait for the table."""
    until(lambda: _responds(address), "Locust's page responds")
    window.open(address)
    until(lambda: "Start new load test" in window.text(), "the page is drawn")
    for name, text in fields.items():
        window.fill(name, text)
    window.press("button[type='submit']")
    until(lambda: "checkout" in window.text(), "the page shows requests")


def _responds(url: str) -> bool:
    try:
        return requests.get(url, timeout=5).ok
    except (requests.ConnectionError, requests.Timeout):
        return False
