"""Random histories of a source and a late sink, compared while they run.

The sink of the model is correct but late: it applies the log in order, in small
steps. Commits are in the log, and even in the sink, before they are visible in the
source. So every finding is a false alarm, unless a defect was planted.
"""

import random

import pytest

from support.copying import replace
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify import settle as rule
from towpath.sinks.verify.compare import (
    SinkRow,
    Suspect,
    SuspectState,
    state_of,
    suspects,
)
from towpath.sinks.verify.forms import RowForm
from towpath.sinks.verify.settle import RouteComparison, settle
from towpath.sinks.verify.suspects import DigestTable, Suspects
from towpath.sinks.verify.table import SourceColumn, SourceTable

TABLE = SourceTable(
    "s", "t", (SourceColumn("id", "bigint"), SourceColumn("v", "text")), ("id",)
)
FORM = RowForm(TABLE)
HISTORIES = range(50)
HOT_KEYS = 8
QUIET_KEY = 9
# Little is written, and becomes visible late: for a long time, the source does not show
# rows that the sink has.
LATE = {"writes": 0.1, "shown": 0.05}
DEFECTS = {
    "changed": lambda sink: sink.update({QUIET_KEY: (0, "other")}),
    "stale, as if newer": lambda sink: sink.update({QUIET_KEY: (10**8, "other")}),
    "deleted": lambda sink: sink.update({QUIET_KEY: (10**8, None)}),
    "missing": lambda sink: sink.pop(QUIET_KEY),
}


class Model:
    """A source, its log and a sink; time is a number that advances at each reading."""

    def __init__(self, seed, writes=1.5, shown=0.9):
        self.rng = random.Random(seed)  # noqa: S311 - a repeatable test
        self.writes = writes
        self.shown = shown
        self.log = []
        self.visible = {QUIET_KEY: "quiet", 10: "quiet"}
        self.pending = []
        self.sink = {key: (0, text) for key, text in self.visible.items()}
        self.applied = 0
        self.time_s = 0.0
        for _ in range(30):
            self.step()

    # Events -----------------------------------------------------------------------

    def step(self):
        """Write, show and apply some changes."""
        for _ in range(int(self.writes + self.rng.random())):
            key = self.rng.randrange(HOT_KEYS)
            text = self.rng.choice(["a", "b", "c", None])
            self.log.append((key, text))
            self.pending.append((key, text))
        if self.rng.random() < self.shown:
            self.show(self.rng.randrange(len(self.pending) + 1))
        self.carry(self.applied + self.rng.randrange(4))

    def show(self, count):
        """Make a number of further commits visible in the source."""
        for key, text in self.pending[:count]:
            self.visible[key] = text
        del self.pending[:count]

    def carry(self, end):
        """Apply the log to the sink, up to the given end."""
        while self.applied < min(end, len(self.log)):
            key, text = self.log[self.applied]
            self.applied += 1
            self.sink[key] = (self.applied, text)

    # The source -------------------------------------------------------------------

    def rows(self):
        """Read the source, two keys at a time, while the model steps."""
        for first in range(0, 12, 2):
            self.step()
            found = [(k, self.visible.get(k)) for k in (first, first + 1)]
            yield FORM.source_rows([(str(k), v) for k, v in found if v is not None])

    def listed_rows(self, _table, keys):
        self.step()
        found = [(int(key), self.visible.get(int(key))) for (key,) in keys]
        return [(str(key), text) for key, text in found if text is not None]

    # The sink ---------------------------------------------------------------------

    def stored(self):
        """Read the sink while the model steps."""
        for key in list(self.sink):
            self.step()
            yield self.row(key)

    def at(self, _route, keys):
        self.step()
        return [self.row(int(key)) for key in keys if int(key) in self.sink]

    def row(self, key):
        """Return the sink's row for a key."""
        position, text = self.sink[key]
        fields = {"id": key, "v": text}
        return StoredRow(str(key), fields, f"{position:09}", text is None)

    def close(self):
        """Do nothing."""

    # Waiting ----------------------------------------------------------------------

    def wait(self, poll=None):
        end = len(self.log) - len(self.pending)
        for _ in range(3):
            self.step()
            if poll is not None:
                poll()
        self.carry(end)

    def wait_until_seen(self):
        self.step()
        self.show(len(self.pending))

    # The clock --------------------------------------------------------------------

    def monotonic_s(self):
        self.time_s += 0.1
        return self.time_s


def judged(model, plant=lambda _: None, reader=lambda model: model):
    """
    Compare the model's sides; return the wrong keys, and the number still undecided.
    """
    plant(model.sink)
    seen_by = reader(model)
    comparison = RouteComparison("t", TABLE, FORM, model, seen_by, model, model)
    with DigestTable() as digests, Suspects() as found:
        digests.put(FORM.sink_row(row) for row in model.stored())
        found.add(suspects(model.rows(), digests))
        settle(comparison, found)
        wrong = [one.key for some in found.wrong() for one in some]
        return wrong, found.open_count


class WholeReader:
    """A reader that cannot look up keys."""

    def __init__(self, model):
        self._model = model

    def rows(self, _route):
        return self._model.stored()


def alarms(**pace):
    """Count the histories in which a correct sink is reported as wrong."""
    return sum(bool(judged(Model(seed, **pace))[0]) for seed in HISTORIES)


def test_a_late_sink_is_never_reported_as_wrong():
    """
    The pace of writes and of the sink does not matter while both sides are read.
    """
    assert (0, 0) == (alarms(), alarms(**LATE))


def test_every_key_is_settled():
    """
    Keys that are written all the time are judged by their final content.
    """
    assert sum(judged(Model(seed))[1] for seed in HISTORIES) == 0


@pytest.mark.parametrize("verb", ["wait", "wait_until_seen"])
def test_without_a_wait_a_correct_sink_is_reported_as_wrong(verb, monkeypatch):
    """
    The model is strong enough: each omitted wait causes false alarms.
    """
    monkeypatch.setattr(Model, verb, lambda _model, _poll=None: None)

    assert alarms() + alarms(**LATE) > 0


def test_the_first_pass_proves_nothing(monkeypatch):
    """
    A row in the sink may not have been visible in the source yet.
    """
    compare = rule._compare_suspects

    def hasty(comparison, found, had, *, is_first):
        for some in found.open() if is_first else ():
            unmoved = [replace(one, before=one.after) for one in some]
            found.mark_wrong(
                [s.key for s in unmoved if state_of(s) is SuspectState.WRONG]
            )
        compare(comparison, found, had, is_first=is_first)

    monkeypatch.setattr(rule, "_compare_suspects", hasty)

    assert alarms(**LATE) > 0


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found_under_load(defect):
    """
    It may be a wrong value, an old row with a new position, a delete or a missing row.
    """
    found = {tuple(judged(Model(seed), DEFECTS[defect])[0]) for seed in HISTORIES}

    assert found == {(str(QUIET_KEY),)}


def test_an_extra_row_is_found_under_load():
    """
    One key was never in the source, and the other has reappeared after its deletion.
    """
    plant = {77: (0, "extra"), 78: (10**8, "resurrected")}
    found = {
        tuple(judged(Model(seed), lambda sink: sink.update(plant))[0])
        for seed in HISTORIES
    }

    assert found == {("77", "78")}


def test_all_rows_of_a_lost_sink_are_wrong():
    """
    A lost sink has no rows, and every key is reported.
    """
    model = Model(1, writes=0)
    count = len([text for text in model.visible.values() if text is not None])
    model.show(len(model.pending))
    wrong, open_count = judged(model, lambda sink: sink.clear())

    assert (count, 0) == (len(wrong), open_count)


def test_a_reader_without_lookups_is_read_completely():
    """
    It takes longer, and finds the same differences.
    """
    found = {
        tuple(judged(Model(seed), DEFECTS["missing"], WholeReader)[0])
        for seed in HISTORIES
    }

    assert found == {(str(QUIET_KEY),)}


def test_suspects_beyond_one_lookup_are_all_judged():
    """
    They are read a few at a time, however many are settled meanwhile.
    """
    keys = [f"{number:05}" for number in range(2500)]
    with Suspects() as found:
        found.add(Suspect(key, b"a", None) for key in keys)
        found.add([Suspect(keys[0], b"b", None)])
        for some in found.open():
            found.drop([each.key for each in some if int(each.key) % 2])
        for some in found.open():
            found.mark_wrong([each.key for each in some if int(each.key) % 4])
        found.record_sink_rows(
            [SinkRow(keys[4], is_deleted=False, packed=b"c"), held_of(keys[1])]
        )
        left = [each for some in found.open() for each in some]

        assert (625, 625, keys[::4], keys[2::4]) == (
            *(found.open_count, found.wrong_count),
            [each.key for each in left],
            [each.key for some in found.wrong() for each in some],
        )
        assert (b"a", None, (b"c", 1)) == (
            left[0].source,
            left[0].after,
            (left[1].after.packed, left[1].copies),
        )


def test_an_empty_key_is_a_suspect_too():
    """
    Another program's key in the cache may consist only of a route's prefix.
    """
    with Suspects() as found:
        found.add([Suspect("", None, None), Suspect("-", None, None)])
        keys = [each.key for some in found.open() for each in some]

    assert ["", "-"] == keys


def held_of(key):
    """Make a row of the sink that is not a suspect."""
    return SinkRow(key, is_deleted=False, packed=b"x")
