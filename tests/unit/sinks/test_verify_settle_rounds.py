"""Single suspects: the result of the rounds that read both sides."""

import itertools
from dataclasses import replace

import pytest

from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.compare import SinkRow, Suspect, pack
from towpath.sinks.verify.forms import RowForm
from towpath.sinks.verify.settle import RouteComparison, settle
from towpath.sinks.verify.suspects import Suspects
from towpath.sinks.verify.table import SourceColumn, SourceTable

TABLE = SourceTable(
    "s", "t", (SourceColumn("id", "bigint"), SourceColumn("v", "text")), ("id",)
)
FORM = RowForm(TABLE)
# A rule that takes more rounds is considered endless.
MAX_ROUNDS = 2_000


class Sides:
    """
    A source and a sink that change only when a test requests it.

    ``while_waiting`` is called with the poll, if there is one, during each wait for the
    sink; ``before_reading`` is called before the source is read again.
    """

    def __init__(self, source, sink, copies=1):
        self.source, self.sink = source, sink
        self.polls = []
        self.while_waiting = lambda _poll: None
        self.before_reading = lambda: None
        self._copies = copies
        self._time_s = 0.0

    def listed_rows(self, _table, keys):
        """Read the source."""
        return [(k, self.source[k]) for (k,) in keys if k in self.source]

    def at(self, _route, keys):
        """Read the sink."""
        for key in keys:
            for _ in range(self._copies if key in self.sink else 0):
                position, text = self.sink[key]
                fields = {"id": int(key), "v": text}
                yield StoredRow(key, fields, f"{position:09}", False)

    def wait(self, poll=None):
        """Wait for the sink."""
        self.polls.append(poll is not None)
        assert len(self.polls) < MAX_ROUNDS
        self.while_waiting(poll)

    def wait_until_seen(self):
        """Wait for the writers."""
        self.before_reading()

    def monotonic_s(self):
        """Return a time that advances at each reading."""
        self._time_s += 0.1
        return self._time_s

    def settle(self, *suspects, table=TABLE):
        """Settle suspects; return the wrong keys, and the number that remain open."""
        comparison = RouteComparison("t", table, FORM, self, self, self, self)
        with Suspects() as found:
            found.add(suspects)
            settle(comparison, found)
            return [one.key for some in found.wrong() for one in some], found.open_count


def suspect(key, text=None):
    """Suspect a key; without a text, only the sink had its row."""
    if text is None:
        return Suspect(key, None, SinkRow(key, is_deleted=False, packed=b"a digest"))
    return Suspect(key, pack([key, text]), None)


def moving_sides(copies=1):
    """Make sides that have the same content only during the wait for the sink."""
    sides = Sides({"1": "a"}, {"1": (0, "z")}, copies)
    number = itertools.count(1)

    def move(poll):
        n = next(number)
        sides.source["1"] = f"during {n}"
        if poll is not None:
            poll()
        sides.sink["1"] = (n, f"during {n}")

    def write():
        sides.source["1"] = f"after {next(number)}"

    sides.while_waiting, sides.before_reading = move, write
    return sides


def test_a_suspect_whose_row_was_deleted_since_is_not_wrong():
    """
    The first read of the sink proves nothing: the delete may have happened in between.
    """
    assert ([], 0) == Sides({}, {}).settle(suspect("1", "a"))


def test_a_suspect_that_follows_the_source_is_settled_by_polling_it():
    """
    During the wait, the source had the content that the sink then reached.
    """
    assert ([], 0) == moving_sides().settle(suspect("1", "a"))


def test_a_suspect_that_the_sink_holds_twice_is_not_settled():
    """
    Even if its contents agree, the sink has one copy too many.
    """
    wrong, open_count = moving_sides(copies=2).settle(suspect("1", "a"))

    assert 1 == len(wrong) + open_count


def test_a_suspect_that_never_rests_remains_open():
    """
    It proves nothing, and is not read forever.
    """
    sides = Sides({"1": "a"}, {"1": (0, "z")})
    number = itertools.count(1)

    def move(_poll):
        n = next(number)
        sides.sink["1"] = (n, f"sink {n}")

    def write():
        sides.source["1"] = f"source {next(number)}"

    sides.while_waiting, sides.before_reading = move, write

    assert ([], 1) == sides.settle(suspect("1", "a"))


def test_an_unmoved_row_of_the_sink_is_wrong_whatever_the_source_had():
    """
    The sink has applied everything up to the source's content, but never had it.
    """
    sides = Sides({"1": "new"}, {"1": (0, "old")})

    def revert(poll):
        sides.source["1"] = "old"
        if poll is not None:
            poll()

    def write():
        sides.source["1"] = "new"

    sides.while_waiting, sides.before_reading = revert, write

    assert (["1"], 0) == sides.settle(suspect("1", "new"))


@pytest.mark.parametrize(("count", "is_polled"), [(200, True), (201, False)])
def test_the_source_is_polled_only_while_suspects_are_few(count, is_polled):
    """
    A poll reads all suspects, so a large number of them would delay the wait.
    """
    keys = [str(1000 + number) for number in range(count)]
    sides = Sides({}, dict.fromkeys(keys, (0, "extra")))
    wrong, _ = sides.settle(*map(suspect, keys))

    assert (count, [False, is_polled]) == (len(wrong), sides.polls)


@pytest.mark.parametrize(("is_pruned", "expected"), [(True, []), (False, ["1"])])
def test_a_row_that_only_the_sink_has_is_not_wrong_if_the_source_is_pruned(
    is_pruned, expected
):
    """
    The source loses rows that the sink keeps.
    """
    sides = Sides({}, {"1": (0, "kept")})
    table = replace(TABLE, is_pruned=is_pruned)

    assert (expected, 0) == sides.settle(suspect("1"), table=table)


def test_without_suspects_there_is_no_wait():
    """
    Both sides agreed at the first comparison.
    """
    sides = Sides({"1": "a"}, {"1": (0, "a")})

    assert (([], 0), []) == (sides.settle(), sides.polls)
