"""
The console in a real browser while parts of the platform are down: make browser-test.

As in a demo, the console may kill the parts of the platform's own stack, which holds
its source; the tests act as the supervisor that starts them again.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe

from support.browser import ENTER, browser
from support.console import TOKEN, console_platform
from support.disaster import PATIENCE_S

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

PATIENCE_MS = 1000 * PATIENCE_S
# Pages that query the broker when they are opened.
BROKER_PAGES = ("/messages", "/dead-letters", "/trace?table=shop.orders&key=7")
# A marker that disappears when the live part of the page is fetched again.
MARK = "document.querySelector('#live').dataset.isOld = 'yes'"
RENEWED = "() => !document.querySelector('#live').dataset.isOld"


@pytest.fixture(scope="session")
def stack(worker_stack):
    """Provide the worker's own stack: tests freeze its broker."""
    return worker_stack


@pytest.fixture(scope="module")
def console(stack, tmp_path_factory):
    """Provide the console of a demo whose platform has a cache."""
    folder = tmp_path_factory.mktemp("failing")
    with console_platform(stack, folder, "cache", is_demo=True) as served:
        yield served


@pytest.fixture
def window(console):
    """Provide a logged-in window."""
    with browser() as made:
        made.open(f"{console.address}/login")
        made.fill("token", TOKEN)
        made.follow("main button")
        yield made


@contextmanager
def silent_broker(stack) -> Iterator[None]:
    """Suspend the broker, so that it does not respond during the block."""
    [pid] = [part.pid for part in stack.stack.status() if part.name == "kafka"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_part(window, part, state):
    """Wait until the open topology shows a part in a state."""
    selector = f"[data-part='{part}'][data-state='{state}']"
    window.page.wait_for_selector(selector, timeout=PATIENCE_MS)


def test_an_unresponsive_broker_is_red_and_reported_on_its_pages(
    window, console, stack
):
    """
    The topology updates without a reload; pages that read topics show no traceback.
    """
    window.open(console.address)
    texts = {}
    with silent_broker(stack):
        await_part(window, "topics", "bad")
        for path in BROKER_PAGES:
            window.open(console.address + path)
            texts[path] = window.text()
    window.open(console.address)
    await_part(window, "topics", "good")

    assert not [path for path, text in texts.items() if "Traceback" in text]
    assert not [path for path, text in texts.items() if "Kafka" not in text], texts


def test_a_lost_driver_turns_its_sink_red_until_it_returns(window, console):
    """
    The Topology and Sinks pages update without a reload, and no error is logged.
    """
    platform = console.platform
    window.open(console.address)
    await_part(window, "sink-cache", "good")
    platform.driver.kill()
    platform.driver.wait()
    try:
        await_part(window, "sink-cache", "bad")
        window.open(f"{console.address}/sinks")
        window.page.wait_for_selector("[data-sink='cache'] .state.bad")
    finally:
        platform.start_driver()
    window.open(console.address)
    await_part(window, "sink-cache", "good")

    assert [] == window.complaints()


def test_a_part_is_killed_by_its_button_and_followed_until_healthy(window, console):
    """
    The keyboard suffices; the page shows how many seconds the recovery takes.
    """
    killed = "[data-killed='postgres'] td:nth-child({}):has-text(' s')"
    window.open(f"{console.address}/kill")
    window.page.focus("#kill-postgres")
    with window.page.expect_navigation():
        window.key(ENTER)
    try:
        outcome = window.page.inner_text("#outcome")
        window.page.wait_for_selector("[data-part='postgres'] .state.bad")
    finally:
        console.platform.own.up(["postgres"])
    window.page.wait_for_selector(killed.format(3), timeout=PATIENCE_MS)
    window.page.wait_for_selector(killed.format(4), timeout=PATIENCE_MS)
    window.open(console.address)
    await_part(window, "relay", "good")

    assert "killed postgres, process" in outcome
    assert [] == window.complaints()


def test_a_button_keeps_the_focus_while_the_page_updates(window, console):
    """
    The button remains focused when the live part of the page is fetched again.
    """
    window.open(f"{console.address}/kill")
    window.page.focus("#kill-postgres")
    window.run(MARK)
    window.page.wait_for_function(RENEWED)

    assert window.run("return document.activeElement.id") == "kill-postgres"


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280], ids=["phone", "desktop"])
def test_the_kill_page_is_accessible_and_fits(window, console, width, is_dark):
    """
    The checker finds nothing, and each button's label names the part that it kills.
    """
    window.emulate(is_dark=is_dark, width=width)
    window.open(f"{console.address}/kill")
    found = Axe().run(window.page).response["violations"]
    shown = window.run("return document.documentElement.clientWidth")
    needed = window.run("return document.documentElement.scrollWidth")
    label = window.page.get_attribute("#kill-postgres", "aria-label")

    assert [] == [(one["id"], one["nodes"][0]["target"]) for one in found]
    assert needed <= shown
    assert label == "Kill postgres"
