"""The demo's live screen and its plain lines."""

import io

from rich.console import Console

from towpath.deploy.demo.screen import (
    PartView,
    PlainScreen,
    Rates,
    SinkView,
    SnapshotView,
    View,
    draw,
    open_screen,
    summary,
)

SNAPSHOT = SnapshotView(
    snapshot_id="s1",
    collection="shop.orders",
    target="search_orders",
    state="running",
    rows=9_900,
    dropped=100,
    estimated_rows=50_000,
    elapsed_s=5.0,
)
VIEW = View(
    step="filling the new sink",
    elapsed_s=61.0,
    parts=(
        PartView("relay", "running", 4711, 120 * 1024 * 1024, restarts=1),
        PartView("kafka", "ready", 4712, 180 * 1024 * 1024),
    ),
    sinks=(SinkView("cache", "running", 1_234, 176_000, 210),),
    snapshots=(SNAPSHOT,),
    rates=Rates(50.2, 212.0, 88.0),
)


def drawn(view):
    """Draw a look as text."""
    console = Console(width=140, file=io.StringIO())
    console.print(draw(view))
    return console.file.getvalue()


def test_the_screen_shows_parts_rates_lag_and_snapshot():
    """
    Pid, restarts, memory, rates, records behind, rows and the time left are drawn.
    """
    text = drawn(VIEW)
    wanted = ["relay", "4711", "300 MiB", "1,234", "9,900", "1,980", "20 s", "212"]
    missing = [word for word in wanted if word not in text]

    assert missing == []


def test_a_view_without_anything_can_be_drawn():
    """
    Before the first look there is only the step.
    """
    text = drawn(View(step="starting", elapsed_s=0.0))

    assert "starting" in text


def test_a_snapshot_is_complete_only_when_it_says_so():
    """
    Rows beyond the estimate do not make a snapshot complete; its state does.
    """
    running = SnapshotView("s", "t", None, "running", 60_000, 0, 50_000, 5.0)
    completed = SnapshotView("s", "t", None, "completed", 49_000, 0, 50_000, 5.0)

    assert running.share < 1.0
    assert completed.share == 1.0


def test_nothing_is_promised_before_the_first_row():
    """
    A snapshot without rows yet has no time left to tell.
    """
    waiting = SnapshotView("s", "t", None, "running", 0, 0, 50_000, 1.0)

    assert waiting.eta_s is None


def test_the_summary_is_one_line():
    """
    Without a terminal the same facts fit in a line.
    """
    text = summary(VIEW)

    assert "\n" not in text
    assert "cache 1,234 behind" in text
    assert "snapshot of shop.orders 20%" in text


def test_without_a_terminal_lines_are_printed_and_looks_are_rare():
    """
    Steps appear as lines at once; looks only every ten seconds.
    """
    console = Console(width=140, file=io.StringIO(), force_terminal=False)
    with open_screen(console) as screen:
        screen.print("hello")
        screen.show(View(step="a", elapsed_s=3.0))
        screen.show(View(step="a", elapsed_s=11.0))
        screen.show(View(step="a", elapsed_s=12.0))
        kind = type(screen)
    lines = console.file.getvalue().splitlines()

    assert kind is PlainScreen
    assert len(lines) == 2
