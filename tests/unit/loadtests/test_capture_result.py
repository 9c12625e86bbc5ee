"""The result of a comparison: document, table, plot and verdict."""

import json
import xml.etree.ElementTree as ET
from dataclasses import fields

import pytest
from rich.console import Console

from support.pages import DOCS
from towpath.loadtests.capture.check import CaptureCheck
from towpath.loadtests.capture.result import (
    CaptureResult,
    MethodCost,
    MethodResult,
    draw,
    plot,
    table_rows,
)
from towpath.loadtests.load.samples import Latency

CLEAN = dict.fromkeys((one.name for one in fields(CaptureCheck)), 0)


def method_result(**counts: int) -> MethodResult:
    """Make the result of a method."""
    return MethodResult(
        cost=MethodCost(
            transaction=Latency.of([1.0, 2.0]), log_bytes=512.4, cpu_us=99.6
        ),
        changes=1_234,
        check=CaptureCheck(**CLEAN | counts),
        scenarios={
            "delete": ("ghost",) if counts else (),
            "late": (),
            "race": (),
            "overtaking": (),
            "crash": (),
        },
        lag=Latency.of([3.0, 40.0]),
    )


def result(**methods: MethodResult) -> CaptureResult:
    """Make a result in which the relay is the method under test."""
    none = MethodResult(
        cost=MethodCost(transaction=Latency.of([1]), log_bytes=1, cpu_us=1)
    )
    return CaptureResult(
        seed=1,
        transactions=2000,
        rate_per_s=400.0,
        interval_s=0.1,
        machine={"cores": 2},
        methods={"none": none, **methods},
        judged="relay",
    )


def test_only_the_relay_decides_whether_a_comparison_is_equal():
    """
    Losses of the other methods are expected; one by the relay makes the result unequal.
    """
    others = result(query=method_result(ghosts=3), relay=method_result())
    lost = result(query=method_result(), relay=method_result(unseen=1))

    assert (True, False) == (others.verified, lost.verified)
    assert (True, False) == (others.as_json()["equal"], lost.as_json()["equal"])


def test_the_table_has_a_column_for_each_method_and_a_row_for_each_figure():
    """
    A method without capture has only costs.
    """
    document = result(query=method_result(ghosts=3), relay=method_result()).as_json()
    rows = dict(table_rows(document))

    assert ["-", "1,234", "1,234"] == rows["changes"]
    assert ["-", "3", "0"] == rows["deleted keys still there"]
    assert ["-", "ghost", "captured"] == rows["a row deleted later"]
    assert ["1", "512", "512"] == rows["log B/transaction"]
    assert ["-", "3.0 / 40.0", "3.0 / 40.0"] == rows["commit to Kafka p50 / p99 ms"]
    # Each count of the check has a row, and so does each scenario.
    assert len(CLEAN) + 5 + 5 == len(rows)


def test_the_drawn_result_ends_with_the_verdict_on_the_relay():
    """
    Its losses are named.
    """
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as printed:
        console.print(draw(result(relay=method_result(unseen=2))))
        console.print(draw(result(relay=method_result())))
    text = printed.get()

    assert "relay: 2 unseen" in text
    assert "relay: every change once and in order" in text


@pytest.mark.timeout(60)
def test_the_plot_shows_every_method_and_every_loss():
    """
    It is one SVG with the counts as text, and is the same for the same document.
    """
    document = result(
        dual_write=method_result(stale=17), relay=method_result()
    ).as_json()
    svg = plot(document)
    texts = [one.text for one in ET.fromstring(svg).iter() if one.tag.endswith("}text")]  # noqa: S314 - ours

    assert {"dual write", "relay", "none", "17", "ghosts"} <= set(texts)
    assert svg == plot(document)


def cells_of(page: str, first: str) -> dict[str, list[str]]:
    """Return the rows of the page's table whose header begins with the given cell."""
    lines = page[page.index(f"| {first} |") :].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {title: cells for title, *cells in rows if title.strip("-")}


def test_the_page_shows_the_figures_of_the_stored_document():
    """
    Each row of its two tables is one that the stored document yields.
    """
    page = (DOCS / "capture.md").read_text(encoding="utf-8")
    stored = (DOCS / "pictures/capture.json").read_text(encoding="utf-8")
    methods = json.loads(stored)["ways"]
    named = {name.replace("_", " "): name for name in methods}
    shown: set[str] = set()
    for first in ("2,000 transactions", "variants"):
        table = cells_of(page, first)
        columns = [named[title] for title in table.pop(first)]
        document = {"ways": {name: methods[name] for name in columns}}
        rows = {title.strip(): cells for title, cells in table_rows(document)}
        shown |= set(columns)

        assert table == {title: rows[title] for title in table}
        assert {"changes never seen", "changes out of order"} <= table.keys()
    assert shown == set(methods)
