"""The facts that the demo and the benchmark read from a comparison."""

import json

import pytest

from towpath.deploy.demo.command import CommandOutcome
from towpath.deploy.demo.compare import read_findings
from towpath.sinks.verify.compare import Difference, DifferenceKind
from towpath.sinks.verify.report import RouteReport, Verification, as_json

WHOLE = RouteReport("orders", "shop.orders", 5, 5)
UNSETTLED = RouteReport("lines", "shop.lines", 7, 7, restless=2)
BROKEN = RouteReport("lines", "shop.lines", 3, error="the cache went away")
DIFFERENT = RouteReport(
    *("lines", "shop.lines", 7, 7),
    differences=1,
    first=(Difference(DifferenceKind.MISSING, "9"),),
)
MOVED = "lines: 2 keys changed at every comparison"
GONE = "lines: the cache went away"


def findings(*routes, error=None):
    """Read the facts from the command's report on these routes."""
    document = as_json(Verification("cache", routes, error=error))
    found = read_findings("cache", CommandOutcome(0, document, ""))
    return found.compared, found.differences, found.failure


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ([WHOLE], (5, 0, None)),
        ([WHOLE, DIFFERENT], (12, 1, None)),
        ([WHOLE, BROKEN], (8, None, GONE)),
        ([WHOLE, UNSETTLED], (12, None, MOVED)),
        ([DIFFERENT, UNSETTLED], (14, 1, MOVED)),
        ([DIFFERENT, BROKEN], (10, 1, GONE)),
    ],
)
def test_only_a_complete_comparison_can_report_no_differences(routes, expected):
    """
    Neither keys that kept changing nor an unread route counts as equal.
    """
    assert expected == findings(*routes)


def test_a_difference_is_named_with_its_route():
    """
    The text names the route, the key and the kind of the difference.
    """
    document = as_json(Verification("cache", [DIFFERENT]))
    found = read_findings("cache", CommandOutcome(1, document, ""))

    assert found.named == ("lines 9: the sink does not have it",)


def test_a_comparison_that_could_not_begin_has_no_result():
    """
    The reason is in the report itself, not in a route.
    """
    assert findings(error="not at rest") == (0, None, "not at rest")


@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (CommandOutcome(3, "", "nobody answers\n"), "nobody answers"),
        (CommandOutcome(3, "", ""), "towpath verify exited with code 3"),
        (CommandOutcome(1, json.dumps({"routes": []}), ""), '{"routes": []}'),
    ],
)
def test_an_invalid_report_does_not_count_as_a_comparison(outcome, failure):
    """
    The command's actual output is reported.
    """
    found = read_findings("cache", outcome)

    assert (None, failure) == (found.differences, found.failure)
