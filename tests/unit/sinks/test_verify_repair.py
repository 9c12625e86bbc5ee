"""The reasons why a refetched key is still wrong."""

import pytest

from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.compare import Suspect, pack
from towpath.sinks.verify.forms import RowForm
from towpath.sinks.verify.repair import (
    ABOVE,
    NOT_ERASED,
    NOT_REQUESTED,
    STILL_WRONG,
    TWICE,
    UnrepairedKeys,
    repair,
)
from towpath.sinks.verify.settle import RouteComparison
from towpath.sinks.verify.suspects import Suspects
from towpath.sinks.verify.table import SourceColumn, SourceTable

TABLE = SourceTable(
    "s", "t", (SourceColumn("id", "bigint"), SourceColumn("v", "text")), ("id",)
)
LOW, HIGH = "0000000000000008.0000000000", "00000000000000f0.0000000000"


class VerifyBench:
    """A source with one row, a sink with given rows, and no writer."""

    def __init__(self, *held):
        self._held = held
        self._time_s = 0.0
        self.erased = []
        self.refusal = ""
        self.unread = ()
        self.is_possible = True

    def listed_rows(self, _table, keys):
        return [(*key, "right") for key in keys]

    def possible_keys(self, _table, keys):
        return keys if self.is_possible else []

    def at(self, _route, _keys):
        return self._held

    def rows(self, _route):
        return self._held

    def close(self):
        """Do nothing."""

    def wait(self, poll=None):
        """Return immediately: the sink has everything."""

    def wait_until_seen(self):
        """Return immediately: there is no writer."""

    def wait_for_answers(self, _signals):
        return self.unread

    def highest(self):
        return HIGH

    def monotonic_s(self):
        self._time_s += 0.1
        return self._time_s

    def erase(self, _route, keys, *, is_read_again):
        """Erase keys and refetch their rows, unless that is refused."""
        self.erased.append((list(keys), is_read_again))
        if not self.refusal:
            self._held = [row("right")]
        return self.refusal

    def request_source_keys(self, _route, keys):
        return [f"repair-{key}" for key in keys]


def row(text, position=LOW):
    """Return a row of the sink."""
    return StoredRow("7", {"id": 7, "v": text}, position, False)


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ([row("wrong")], STILL_WRONG),
        ([row("wrong", "f" + HIGH[1:])], ABOVE),
        ([row("right"), row("right")], TWICE),
        ([row("right", "f" + HIGH[1:]), row("wrong")], TWICE),
    ],
)
def test_the_reason_names_the_remedy(held, reason):
    """
    A refetch replaces both copies of a row, so it removes neither.
    """
    bench = VerifyBench(*held)
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    with Suspects() as found:
        found.add([Suspect("7", pack(("7", "right")), None)])
        found.mark_wrong(["7"])
        repaired = repair(comparison, found, bench)

    assert (0, (UnrepairedKeys(reason, 1),)) == repaired


def test_a_key_whose_second_copy_is_gone_is_repaired():
    """
    A row that the sink now has only once, with the right values, is not reported.
    """
    bench = VerifyBench(row("right"))
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    with Suspects() as found:
        found.add([Suspect("7", pack(("7", "right")), None)])
        found.mark_wrong(["7"])

        assert (1, ()) == repair(comparison, found, bench)


def test_a_key_found_wrong_later_keeps_its_repair():
    """
    On a busy machine, a key may still be undecided when another one is requested.
    """
    repaired_row = StoredRow("8", {"id": 8, "v": "right"}, LOW, False)
    bench = VerifyBench(row("wrong", ABOVE_HIGH), repaired_row)
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    with Suspects() as found:
        found.add(Suspect(key, pack((key, "right")), None) for key in ("7", "8"))
        found.mark_wrong(["8"])

        assert (1, (UnrepairedKeys(ABOVE, 1),)) == repair(comparison, found, bench)


ABOVE_HIGH = "f" + HIGH[1:]


@pytest.mark.parametrize(
    ("held", "refusal", "erased", "expected"),
    [
        ([row("wrong", ABOVE_HIGH)], "", [(["7"], True)], (1, ())),
        ([row("right"), row("right")], "", [(["7"], True)], (1, ())),
        ([row("wrong")], "", [], (0, (UnrepairedKeys(STILL_WRONG, 1),))),
        (
            [row("wrong", ABOVE_HIGH)],
            "no",
            [(["7"], True)],
            (0, (UnrepairedKeys(f"{NOT_ERASED}: no", 1),)),
        ),
    ],
)
def test_only_rows_without_a_replacement_are_erased(held, refusal, erased, expected):
    """
    A row that the sink cannot erase is reported with the sink's answer.
    """
    bench = VerifyBench(*held)
    bench.refusal = refusal
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    with Suspects() as found:
        found.add([Suspect("7", pack(("7", "right")), None)])
        found.mark_wrong(["7"])
        repaired = repair(comparison, found, bench, bench)

    assert (erased, expected) == (bench.erased, repaired)


@pytest.mark.parametrize(
    ("unread", "is_possible", "erased"),
    [
        (("no permission to read it",), True, []),
        ((), False, [(["7"], False)]),
    ],
)
def test_a_row_that_cannot_be_refetched_is_not_erased(unread, is_possible, erased):
    """
    Only a key that the source's table cannot have is erased without being read again.
    """
    bench = VerifyBench(row("wrong", ABOVE_HIGH))
    bench.unread, bench.is_possible, bench.refusal = unread, is_possible, "no"
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    with Suspects() as found:
        found.add([Suspect("7", pack(("7", "right")), None)])
        found.mark_wrong(["7"])
        (left,) = repair(comparison, found, bench, bench).left

    assert erased == bench.erased
    assert f"{NOT_ERASED}: {unread[0] if unread else 'no'}" == left.reason


def test_a_route_without_refetches_is_not_erased():
    """
    Keys of ``relay.rows.key_columns`` may differ from the source's keys.
    """
    bench = VerifyBench(row("wrong"))
    bench.is_possible = False
    bench.request_source_keys = lambda _route, _keys: None
    comparison = RouteComparison("t", TABLE, RowForm(TABLE), bench, bench, bench, bench)
    with Suspects() as found:
        found.add([Suspect("7", pack(("7", "right")), None)])
        found.mark_wrong(["7"])
        repaired = repair(comparison, found, bench, bench)

    assert ([], (0, (UnrepairedKeys(NOT_REQUESTED, 1),))) == (bench.erased, repaired)
