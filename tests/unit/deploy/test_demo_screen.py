"""The demo's live screen and its plain lines."""

import io
from dataclasses import replace

from rich.console import Console

from towpath.deploy.demo.screen import (
    PartView,
    PlainScreen,
    Rates,
    SinkView,
    View,
    completed_share,
    draw,
    open_screen,
    summary,
)
from towpath.deploy.snapshots.signals import TableProgress
from towpath.deploy.snapshots.view import time_left_s

SNAPSHOT = TableProgress(
    snapshot_id="s1",
    collection="shop.orders",
    target="search_orders",
    state="running",
    rows=9_900,
    dropped=100,
    estimated_rows=50_000,
    percent=None,
    elapsed_s=5.0,
    error=None,
    rows_per_second=1_980.0,
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
    """Draw a view as text."""
    console = Console(width=140, file=io.StringIO())
    console.print(draw(view))
    return console.file.getvalue()


def test_the_screen_shows_parts_rates_lag_and_snapshot():
    """
    The pid, restarts, memory, rates, lag, rows and the remaining time are drawn.
    """
    text = drawn(VIEW)
    wanted = ["relay", "4711", "300 MiB", "1,234", "9,900", "1,980", "20 s", "212"]
    missing = [value for value in wanted if value not in text]

    assert missing == []


def test_an_empty_view_can_be_drawn():
    """
    Before the first reading, there is only the step.
    """
    text = drawn(View(step="starting", elapsed_s=0.0))

    assert "starting" in text


def test_a_snapshot_is_shown_as_complete_only_in_the_completed_state():
    """
    A running snapshot may have more rows than estimated, and a complete one fewer.
    """
    running = SNAPSHOT._replace(rows=60_000, dropped=0)
    completed = SNAPSHOT._replace(state="completed", rows=49_000, dropped=0)

    assert completed_share(running) < 1.0
    assert completed_share(completed) == 1.0


def test_no_remaining_time_is_shown_before_the_first_row():
    """
    Without rows, there is no rate to estimate it from.
    """
    waiting = SNAPSHOT._replace(rows=0, dropped=0, rows_per_second=None)

    assert time_left_s(waiting) is None


def test_the_summary_has_one_line():
    """
    Without a terminal, the same facts fit in one line.
    """
    text = summary(VIEW)

    assert "\n" not in text
    assert "cache 1,234 behind" in text
    assert "snapshot of shop.orders 20%" in text


def test_brackets_in_the_name_of_a_table_are_shown():
    """
    The live screen and the plain line print them, because they are not markup.
    """
    table = SNAPSHOT._replace(collection="shop.a[b]")
    view = replace(VIEW, snapshots=(table,))
    console = Console(width=200, file=io.StringIO(), force_terminal=False)
    with open_screen(console) as screen:
        screen.show(view)

    assert ["shop.a[b]" in text for text in (drawn(view), console.file.getvalue())] == [
        True,
        True,
    ]


def test_without_a_terminal_lines_are_printed_and_views_are_rare():
    """
    Printed lines appear at once, but views only every ten seconds.
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
