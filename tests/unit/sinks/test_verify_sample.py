"""The claims of a sample, however small."""

import pytest

from towpath.sinks.errors import (
    BatchRefusedError,
    SearchRefusedError,
    TargetUnavailableError,
)
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.forms import RowForm
from towpath.sinks.verify.report import Verdict, Verification
from towpath.sinks.verify.route import verify_route
from towpath.sinks.verify.settle import RouteComparison
from towpath.sinks.verify.suspects import DigestTable, Suspects
from towpath.sinks.verify.table import SourceColumn, SourceTable

COLUMNS = (SourceColumn("id", "bigint"), SourceColumn("v", "text"))
TABLE = SourceTable("s", "t", COLUMNS, ("id",))
LOG = SourceTable("s", "t", COLUMNS, ("id",), is_pruned=True)
ROW = StoredRow("7", {"id": 7, "v": "a"}, "0000000000000008.0000000000", False)


class SampleBench:
    """A source and a sink with so few rows that a sampled fraction is below one row."""

    def __init__(self, source, sink):
        self._source = source
        self._sink = sink
        self._time_s = 0.0

    def sample(self, side, size):
        if isinstance(side, SourceTable):
            return [self._source] if size >= 1 else []
        return self._sink

    def listed_rows(self, _table, keys):
        return [row for row in self._source if (row[0],) in keys]

    def at(self, _route, keys):
        return [row for row in self._sink if row.key in set(keys)]

    def rows(self, _route):
        return self._sink

    def close(self):
        """Do nothing."""

    def wait(self, poll=None):
        """Return immediately: the sink has everything."""

    def wait_until_seen(self):
        """Return immediately: there is no writer."""

    def monotonic_s(self):
        self._time_s += 0.1
        return self._time_s


@pytest.mark.parametrize(
    ("table", "source", "sink", "expected"),
    [
        (TABLE, [("7", "a")], [ROW], Verdict.EQUAL),
        (TABLE, [("7", "a")], [], Verdict.DIFFERENT),
        (TABLE, [], [ROW], Verdict.DIFFERENT),
        (TABLE, [], [], Verdict.UNVERIFIED),
        (LOG, [("7", "a")], [ROW], Verdict.EQUAL),
        (LOG, [("7", "a")], [], Verdict.DIFFERENT),
        (LOG, [], [ROW], Verdict.UNVERIFIED),
    ],
)
def test_only_compared_rows_count_as_equal(table, source, sink, expected):
    """
    Neither an empty sample nor a row that only an event log has proves anything.
    """
    bench = SampleBench(source, sink)
    comparison = RouteComparison("t", table, RowForm(table), bench, bench, bench, bench)
    route = verify_route(comparison, 0.01, None, lambda *_: None)

    assert expected is Verification("it", [route], "1%").verdict


@pytest.mark.parametrize(
    "failure", [TargetUnavailableError, SearchRefusedError, BatchRefusedError]
)
@pytest.mark.parametrize("sample", [None, 0.5])
def test_any_failure_of_a_target_is_the_error_of_its_route(
    failure, sample, monkeypatch
):
    """
    An expired scroll is a refusal; the other routes must still be verified.
    """
    bench = SampleBench([("7", "a")], [ROW])

    def fail(*_):
        raise failure("no such scroll")  # noqa: EM101, TRY003

    monkeypatch.setattr(bench, "sample" if sample else "rows", fail)
    monkeypatch.setattr(bench, "estimate", lambda _: 1, raising=False)
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    route = verify_route(comparison, sample, None, lambda *_: None)

    assert ("no such scroll", failure.remedy) == (route.error, route.remedy)


@pytest.mark.parametrize("kind", [DigestTable, Suspects])
def test_a_full_disk_is_the_error_of_its_route(kind, monkeypatch):
    """
    The rows of both sides are kept in temporary files, which may be large.
    """
    rows = [(str(n), "a" * 1000) for n in range(1000)]
    bench = SampleBench(rows, [ROW._replace(key=str(n)) for n in range(2000, 3000)])
    small = ("pragma max_page_count = 2", *kind.statements)
    monkeypatch.setattr(kind, "statements", small)
    monkeypatch.setattr(bench, "estimate", lambda _: 1, raising=False)
    monkeypatch.setattr(
        bench, "rows", lambda side: [rows] if side is TABLE else bench._sink
    )
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    route = verify_route(comparison, None, None, lambda *_: None)

    assert "disk is full: free disk space" in route.error
    assert Verdict.UNVERIFIED is Verification("it", [route]).verdict
