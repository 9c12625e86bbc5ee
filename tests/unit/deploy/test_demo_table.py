"""The demo's final table."""

import dataclasses

from rich.console import Console

from towpath.deploy.demo.table import (
    Result,
    SagaResult,
    SinkResult,
    SnapshotResult,
    StoreResult,
    Traffic,
    draw,
)

GOOD = Result(
    orders_before=50_000,
    traffic=Traffic(
        checkouts=2_013,
        payments=1_777,
        cancellations=340,
        conflicts=4,
        not_started=6,
        failed_requests=0,
        row_changes=9_001,
        events=4_130,
        dead_letters=17,
        load_s=40.2,
    ),
    sinks=(
        SinkResult(
            name="cache",
            samples=150,
            p50_ms=312.5,
            p95_ms=700.0,
            p99_ms=12_345.0,
            compared=176_001,
            differences=0,
        ),
        SinkResult(name="search_orders", compared=52_013, differences=0),
    ),
    sagas=SagaResult(
        ended={"completed": 1_604, "cancelled": 342, "returned": 67},
        reasons={"payment declined": 201, "out of stock": 141},
    ),
    stores=(
        StoreResult(name="database", orders=52_013),
        StoreResult(name="cache", orders=52_013),
    ),
    snapshot=SnapshotResult(
        sink="search_orders",
        rows=50_711,
        rows_per_s=1_998.7,
        changed_meanwhile=741,
        wanted_changes=500,
        dropped=3,
    ),
    restarts=2,
    peak_memory_bytes=5 * 1024**3,
    elapsed_s=151.4,
    machine="2 cores",
)


def shown(result, width=140):
    """Draw a result as text."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(draw(result))
    return capture.get()


def with_sink(**changes):
    """Return the good result with changes to its first sink."""
    sinks = (dataclasses.replace(GOOD.sinks[0], **changes), GOOD.sinks[1])
    return dataclasses.replace(GOOD, sinks=sinks)


def test_the_table_shows_every_number():
    """
    Counts, percentiles, the snapshot's figures and the verdict are all in the table.
    """
    text = shown(GOOD)
    wanted = [
        "2,013", "9,001", "4,130", "17", "50,711", "1,999 rows/s", "741", "176,001",
        "312 ms", "700 ms", "12.3 s", "5.0 GiB", "151 s", "not one difference",
        "4 too late, 6 not started", "1,604", "67 returned", "342", "141 out of stock",
        "agree in database, cache",
    ]  # fmt: skip
    missing = [number for number in wanted if number not in text]

    assert missing == []


def test_a_narrow_terminal_truncates_nothing():
    """
    Eighty columns are enough for every figure.
    """
    assert "…" not in shown(GOOD, width=80)


def test_violated_invariants_are_named_with_their_store():
    """
    One finding in one store suffices, and so does a store that could not be read.
    """
    wrong = dataclasses.replace(GOOD.stores[1], findings=("1 products have units",))
    unread = dataclasses.replace(GOOD.stores[1], failure="no answer")
    results = [
        dataclasses.replace(GOOD, stores=(GOOD.stores[0], one))
        for one in (wrong, unread)
    ]
    texts = [shown(result) for result in results]

    assert [False, False] == [result.adds_up for result in results]
    assert all("do not agree in cache" in text for text in texts)
    assert "cache: 1 products have units" in texts[0]
    assert "cache: no answer" in texts[1]


def test_one_difference_decides_the_verdict():
    """
    One different key makes the result unequal, and is named.
    """
    result = with_sink(differences=1, named=("orders 7: status differs",))
    text = shown(result)

    assert not result.equal
    assert "1 key differs" in text
    assert "orders 7: status differs" in text


def test_a_sink_that_was_not_verified_does_not_count_as_equal():
    """
    Success is never printed if a sink could not be compared.
    """
    result = with_sink(differences=None, failure="no answer")
    text = shown(result)

    assert not result.equal
    assert "Not verified: cache." in text
    assert "no answer" in text


def test_too_few_changes_are_reported():
    """
    If fewer rows changed during the snapshot than required, the table reports it.
    """
    snapshot = dataclasses.replace(GOOD.snapshot, changed_meanwhile=499)
    text = shown(dataclasses.replace(GOOD, snapshot=snapshot))

    assert "fewer than the 500 wanted" in text


def test_the_json_contains_the_totals():
    """
    The JSON contains the whole result and the totals that scripts need.
    """
    expected = (0, True, 2_013)
    document = GOOD.as_json()
    actual = (
        document["differences"],
        document["equal"],
        document["traffic"]["checkouts"],
    )

    assert expected == actual
