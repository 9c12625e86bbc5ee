"""
The console in a real browser: make browser-test.

If ``CONSOLE_PICTURES`` names a folder, pictures of the pages are stored there for
the documentation.
"""

import os
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from support.browser import ENTER, TAB, browser
from support.console import TOKEN, console_platform, settled_order
from support.disaster import PATIENCE_S
from support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

# Each page, and the element that must be drawn before the page is checked.
PAGES = {
    "/": "text:has-text('rec/s')",
    "/source": "canvas",
    "/sinks": "[data-sink='cache']",
    "/verify": "#start-verification",
    "/dead-letters": "h1",
    "/messages": "h1",
    "/trace?table=shop.orders&key=7": "ol.way",
    "/doctor?examined=1": "h1",
}
# The pages whose pictures the documentation shows, in light and in dark.
SHOWN = (("/", "/source"), ("/sinks", "/trace?table=shop.orders&key=7"))
DESKTOP, PHONE = (1280, 900), (390, 844)
# With small chunks and 10 rows per second, a snapshot of the orders takes half a
# minute: long enough to pause and stop it.
CHUNKS = "[relay.snapshot]\nchunk_rows = 10\n"
TOO_WIDE = """
return document.documentElement.scrollWidth > document.documentElement.clientWidth
"""
FOCUS = """
const one = document.activeElement;
return [one.tagName, one.textContent.trim(), getComputedStyle(one).outlineStyle];
"""


PICTURES = os.environ.get("CONSOLE_PICTURES")  # noqa: TID251 - only for this test
SAMPLES = 8


def sample_count(console):
    """Return the number of samples that the console has."""
    return len(console.json("/api/samples", names="slot.lag_bytes")["at"])


@pytest.fixture(scope="module")
def console(stack, tmp_path_factory):
    """Provide the console of a platform with two sinks, while an application writes."""
    folder = tmp_path_factory.mktemp("seen")
    stack.up("opensearch")
    with console_platform(stack, folder, "cache", "search", relay=CHUNKS) as served:
        if PICTURES:
            # The plots in a picture should cover more than a moment.
            until(
                lambda: sample_count(served) > SAMPLES, "samples", timeout_s=PATIENCE_S
            )
        yield served


@pytest.fixture
def window(console):
    """Provide a logged-in window; the browser's own console must remain empty."""
    with browser() as made:
        made.emulate(width=DESKTOP[0], height=DESKTOP[1])
        made.open(f"{console.address}/login")
        made.fill("token", TOKEN)
        made.follow("main button")
        yield made
        assert [] == made.complaints()


def store_picture(window, path, name=""):
    """Store a picture of the page for the documentation, if a folder is named."""
    if PICTURES:
        page = path.partition("?")[0].strip("/") or "topology"
        Path(PICTURES, f"console-{page}{name}.png").write_bytes(window.picture())


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_page_is_accessible_and_fits(window, console, size, is_dark):
    """
    The checker finds nothing, no page is too wide, and no error is logged.
    """
    window.emulate(is_dark=is_dark, width=size[0], height=size[1])
    findings = []
    for path, part in PAGES.items():
        window.open(console.address + path)
        window.page.wait_for_selector(part, state="attached")
        found = Axe().run(window.page).response["violations"]
        findings += [(path, one["id"], one["nodes"][0]["target"]) for one in found]
        if window.run(TOO_WIDE):
            findings.append((path, "wider than the screen", ""))
        findings += [(path, one, "") for one in window.complaints()]
        if size == DESKTOP and path in SHOWN[is_dark]:
            store_picture(window, path)

    assert [] == findings


def test_the_checker_finds_low_contrast_text(window, console):
    """
    A planted defect is found, so an empty list of findings means something.
    """
    window.open(f"{console.address}/verify")
    window.run("document.querySelector('h1').style.color = '#ddd'")
    found = Axe().run(window.page).response["violations"]

    assert [one["id"] for one in found] == ["color-contrast"]


def test_the_keyboard_reaches_every_page_and_shows_the_focus(window, console):
    """
    The first Tab stop skips the navigation; stops have outlines; Enter opens a link.
    """
    window.open(f"{console.address}/sinks")
    stops = []
    for _ in range(11):
        window.key(TAB)
        stops.append(window.run(FOCUS))
    texts = [text for _, text, _ in stops]
    window.page.focus("nav a[href='/verify']")
    with window.page.expect_navigation():
        window.key(ENTER)

    assert "Skip to the content" == texts[0]
    assert {"Topology", "Source", "Sinks", "Verify", "Dead letters"} <= set(texts)
    assert {"Messages", "Trace", "Health", "Log out"} <= set(texts)
    assert {outline for _, _, outline in stops} == {"solid"}
    assert window.page.url == f"{console.address}/verify"


def test_a_snapshot_is_started_paused_and_stopped_by_buttons(window, console):
    """
    The page updates itself, and shows the outcome of each button at the top.
    """
    window.open(f"{console.address}/source")
    window.page.fill("input[name='max_rows_per_second']", "10")
    window.follow("#start-snapshot button")
    row = window.page.locator("tr[data-snapshot]:has(.state.warning)").first
    snapshot = row.get_attribute("data-snapshot")
    for verb, state in (
        ("pause", "paused"),
        ("resume", "running"),
        ("stop", "stopped"),
    ):
        window.follow(f"#{verb}-{snapshot}")
        window.page.wait_for_selector("#outcome")
        window.page.wait_for_selector(
            f"[data-snapshot='{snapshot}'] .state:has-text('{state}')"
        )

    rows = console.platform.execute(
        "select distinct state from towpath.snapshot where snapshot_id = %s", snapshot
    )
    assert rows == [("stopped",)]


def test_a_difference_is_shown_by_key_and_column_and_repaired(window, console):
    """
    The page shows that a cached note differs; the repair restores the source's note.
    """
    platform = console.platform
    with platform.writer.paused(), settled_order(platform) as order:
        before = order.note
        order.change_note("not the source's")
        window.open(f"{console.address}/verify")
        window.follow("#start-verification button")
        window.page.wait_for_selector("[data-sink='cache'] td:has-text('note')")
        store_picture(window, "/verify", "-difference")
        window.follow("#repair-cache")
        window.page.wait_for_selector("[data-sink='cache'] .state:has-text('equal')")
        until(lambda: order.note == before, "the note equals the source's")


def test_an_index_is_rebuilt_by_its_button(window, console):
    """
    The page shows the run until it ends; the report says what was replaced.
    """
    window.open(f"{console.address}/sinks")
    window.follow("#rebuild-search")
    window.page.wait_for_selector("#run[data-state='ended']", timeout=1000 * PATIENCE_S)
    report = window.page.inner_text("#run pre")

    assert "documents replaces" in report


def test_the_login_page_refuses_a_wrong_token(console):
    """
    The page shows the error, and the login form remains.
    """
    with browser() as window:
        window.open(f"{console.address}/login")
        window.fill("token", "not the token of this console")
        window.press("main button")
        window.page.wait_for_selector(".wrong")
        buttons = window.page.locator("#start-snapshot").count()

    assert buttons == 0


def test_a_lost_relay_turns_red_and_green_again_without_a_reload(window, console):
    """
    The open page shows the loss and the recovery, and the browser logs no error.
    """
    platform = console.platform
    relay = ".wide [data-part='relay'][data-state='{}']"
    window.open(console.address)
    platform.kill()
    try:
        window.page.wait_for_selector(relay.format("bad"), timeout=1000 * PATIENCE_S)
        store_picture(window, "/", "-lost-relay")
    finally:
        platform.start()
    window.page.wait_for_selector(relay.format("good"), timeout=1000 * PATIENCE_S)
