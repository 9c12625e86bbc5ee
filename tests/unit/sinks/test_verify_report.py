"""The result of a verification, and its report."""

import io
from dataclasses import replace

import orjson
import pytest
from rich.console import Console

from towpath.sinks.verify.compare import Difference, DifferenceKind
from towpath.sinks.verify.report import (
    FIRST_SHOWN,
    ProgressBars,
    RouteReport,
    Verdict,
    Verification,
    as_json,
    show,
    worse,
)

EQUAL = RouteReport("orders", "shop.orders", 50_000, 50_000, 3)
BROKEN = RouteReport("lines", "shop.order_lines", error="the cache does not answer")
UNSETTLED = RouteReport("hot", "shop.hot", 10, 10, restless=2)
DIFFERENT = RouteReport(
    "customers",
    "shop.customers",
    10,
    10,
    differences=1,
    first=(Difference(DifferenceKind.CHANGED, "7", "name", "[bold]A", "B"),),
)


def printed(*routes, sample=""):
    """Print a report on a narrow screen."""
    screen = io.StringIO()
    show(Console(file=screen, width=60), Verification("cache", routes, sample))
    return screen.getvalue().splitlines()


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ([EQUAL], Verdict.EQUAL),
        ([EQUAL, BROKEN], Verdict.UNVERIFIED),
        ([EQUAL, DIFFERENT], Verdict.DIFFERENT),
        ([BROKEN, DIFFERENT], Verdict.DIFFERENT),
        ([UNSETTLED, EQUAL], Verdict.UNVERIFIED),
    ],
)
def test_a_difference_outweighs_an_error(routes, expected):
    """
    An error hides no difference, and does not prove equality.
    """
    assert expected == Verification("cache", routes).verdict


@pytest.mark.parametrize(
    ("routes", "whole", "partial"),
    [
        ([EQUAL], True, False),
        ([DIFFERENT], True, True),
        ([BROKEN, DIFFERENT], True, True),
        ([EQUAL, BROKEN], False, False),
        ([UNSETTLED], False, False),
    ],
)
def test_only_a_proof_of_all_rows_replaces_a_difference(routes, whole, partial):
    """
    Neither an equal sample nor an unknown result hides an earlier difference.
    """
    found = Verification("cache", routes)

    assert whole == found.counts(is_partial=False)
    assert partial == found.counts(is_partial=True)


def test_differences_and_gaps_are_printed_in_full():
    """
    Each has one line, which is neither wrapped nor read as markup.
    """
    lines = printed(EQUAL, DIFFERENT, BROKEN)

    assert lines[-3:] == [
        "customers 7: name is '[bold]A' in the source and 'B' in the sink",
        "lines could not be compared: the cache does not answer",
        "cache differs from the source: 1 differences",
    ]


def test_a_route_that_is_not_compared_is_printed_with_the_remedy():
    """
    Its error and its remedy are two sentences.
    """
    failed = replace(BROKEN, remedy="Start it.")

    assert printed(failed)[-2:] == [
        "lines could not be compared: the cache does not answer. Start it.",
        "cache could not be verified",
    ]


def test_only_the_first_differences_are_printed():
    """The other differences are only counted."""
    first = tuple(
        Difference(DifferenceKind.MISSING, str(n)) for n in range(FIRST_SHOWN)
    )
    lines = printed(RouteReport("a", "s.a", differences=500, first=first))

    assert (FIRST_SHOWN, "... and 480 more") == (
        sum("does not have it" in line for line in lines),
        lines[-2],
    )


def test_equality_is_reported_in_one_line():
    """
    No other line follows.
    """
    assert printed(EQUAL)[-1] == "cache equals the source, every key and column"


def test_columns_that_are_not_compared_are_reported():
    """
    No claim is made about them, nor about rows without a counterpart.
    """
    notes = ("masked columns are not compared: secret",)
    log = RouteReport("log", "shop.outbox", 2, 5, notes=notes, unmatched=1_003)

    assert printed(log)[-3:] == [
        "log masked columns are not compared: secret",
        "log 1,003 rows of the sink are not in the source",
        "cache equals the source in all that was compared",
    ]


def test_a_sample_claims_only_its_own_rows():
    """
    Other rows may differ; the document for scripts shows the sample too.
    """
    found = Verification("cache", [EQUAL], "1%")
    document = orjson.loads(as_json(found))

    assert printed(EQUAL, sample="1%")[-1] == (
        "cache equals the source in a random sample of 50,000 rows"
    )
    assert ("equal", "1%", None) == (
        *(document[name] for name in ("result", "sample", "error")),
    )


def test_a_sample_without_rows_proves_nothing():
    """
    Nothing was compared, so nothing is equal.
    """
    nothing = RouteReport("orders", "shop.orders", tombstones=7)
    document = orjson.loads(as_json(Verification("cache", [nothing, nothing], "1%")))

    assert ("unverified", "the random sample of 1% has no rows") == (
        document["result"],
        document["error"],
    )
    assert printed(nothing, sample="1%")[-1] == (
        "cache could not be verified: the random sample of 1% has no rows"
    )


def test_a_sample_that_could_not_be_read_is_not_called_empty():
    """
    The route's error is the reason; it is unknown which rows there are.
    """
    found = Verification("cache", [BROKEN], "1%")

    assert (Verdict.UNVERIFIED, None) == (found.verdict, found.reason)
    assert printed(BROKEN, sample="1%")[-2:] == [
        "lines could not be compared: the cache does not answer",
        "cache could not be verified",
    ]


@pytest.mark.parametrize("name", ["orders[v2]", "orders[/v2]"])
def test_brackets_in_the_name_of_a_route_are_printed(name):
    """
    Brackets are read as markup neither in the table nor beside a progress bar.
    """
    bar, table = io.StringIO(), io.StringIO()
    with ProgressBars(Console(file=bar, width=120, force_terminal=True)) as bars:
        bars.advance(f"{name}: read the sink", 1, 2)
    found = Verification("cache", [replace(EQUAL, route=name)])
    show(Console(file=table, width=80), found)

    assert f"{name}: read the sink" in bar.getvalue()
    assert f" {name} " in table.getvalue()


def test_two_empty_sides_are_equal():
    """
    It is not a sample: nothing was left out.
    """
    nothing = RouteReport("orders", "shop.orders")

    assert Verification("cache", [nothing]).verdict is Verdict.EQUAL


def test_keys_that_kept_changing_are_reported():
    """
    They are not differences, but they prove nothing either.
    """
    assert ["hot 2 keys changed in every round of reads", "could not be"] == [
        printed(UNSETTLED)[-2],
        printed(UNSETTLED)[-1].removeprefix("cache ")[:12],
    ]


def test_repaired_keys_are_reported():
    """
    The result is equal, but the report shows that it was not before.
    """
    lines = printed(RouteReport("orders", "shop.orders", 9, 9, repaired=3))

    assert lines[-2:] == [
        "orders 3 keys were refetched and are equal now",
        "cache equals the source, every key and column",
    ]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Verdict.EQUAL, Verdict.UNVERIFIED, Verdict.UNVERIFIED),
        (Verdict.DIFFERENT, Verdict.UNVERIFIED, Verdict.DIFFERENT),
        (Verdict.EQUAL, Verdict.EQUAL, Verdict.EQUAL),
    ],
)
def test_the_worst_of_several_passes_counts(one, other, expected):
    """
    The next pass does not erase a difference that an earlier one found.
    """
    assert (expected, expected) == (worse(one, other), worse(other, one))


def test_each_pass_prints_one_line_for_a_script():
    """
    The line is the same document as that of a single pass.
    """
    found = Verification("cache", [DIFFERENT])
    line = as_json(found, is_line=True)

    assert (False, orjson.loads(as_json(found))) == (
        "\n" in line,
        orjson.loads(line),
    )


def test_the_json_report_has_everything():
    """
    It contains counts, both values, and the reason for a gap.
    """
    document = orjson.loads(as_json(Verification("cache", [DIFFERENT, BROKEN])))

    assert ("different", 1, None, "B", "the cache does not answer") == (
        document["result"],
        document["differences"],
        document["sample"],
        document["routes"][0]["first"][0]["sink"],
        document["routes"][1]["error"],
    )
