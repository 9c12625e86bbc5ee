"""When a wait may report that a sink has applied a commit, and when it must not."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from support.published import MemoryProgress, SinkRun
from towpath.settings import Settings
from towpath.sinks import wait
from towpath.sinks.dead_letters.entries import ParkedKey
from towpath.sinks.state import incomplete
from towpath.sinks.state.declare import READY_FILE, STARTING_OFFSETS_FILE
from towpath.sinks.state.progress import Progress, replace_file, sink_folder
from towpath.sinks.state.published import HEARD_WITHIN_S
from towpath.sinks.state.refetches import (
    PendingRefetch,
    StoredRefetches,
    encode_refetches,
    refetches_path,
)
from towpath.sinks.wait.errors import NotAppliedError, UnknownLsnError
from towpath.sinks.wait.rule import NUDGE_AFTER_S, Wait
from towpath.sinks.wait.source import SlotStatus

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOPIC = "towpath.shop.orders"
LSN = 1000
START_LSN = 500


class Clock:
    """Time passes during waits; planned events happen then."""

    def __init__(self):
        self.at_s = 0.0
        self.plan = {}

    def now(self):
        """Return the time, which passes during waits."""
        return NOW + timedelta(seconds=self.at_s)

    def monotonic_s(self):
        """Return the waited time."""
        return self.at_s

    def wait(self, delay_s):
        """Let time pass, and run planned events."""
        self.at_s += delay_s
        for due_s in sorted(at for at in self.plan if at <= self.at_s):
            self.plan.pop(due_s)()


class Slot:
    """A slot as the source shows it."""

    def __init__(self):
        self.found = SlotStatus(LSN, True, LSN)
        self.nudged = 0

    def status(self):
        """Return the set facts."""
        return self.found

    def nudge(self):
        """Count the call, and advance the log."""
        self.nudged += 1


class History:
    """The relay's memory."""

    def __init__(self):
        self.start = START_LSN

    def start_lsn(self):
        """Return the set facts."""
        return self.start


class Cluster:
    """Topics and their ends."""

    def __init__(self):
        self.ends = {TOPIC: {"0": 10}}
        self.asked_at = []
        self.on_ask = lambda: None

    def names(self):
        """List the topics."""
        self.on_ask()
        return sorted(self.ends)

    def end_offsets(self, names):
        """Return their ends."""
        return {name: dict(self.ends[name]) for name in names}


class Driver:
    """
    A driver that publishes before each look, as one does that runs.

    Attributes:
        is_silent: Whether it publishes nothing more.
        is_open: Whether its run has opened the target.
    """

    def __init__(self, folder, clock):
        self._folder = folder
        self._clock = clock
        self._store = MemoryProgress(clock)
        self._run = None
        self.progress = Progress("cache")
        self.is_silent = False
        self.is_open = True
        self.begin()

    def begin(self):
        """Begin another run."""
        self._run = SinkRun(self._folder, "cache", self._store, self._clock)

    def end(self):
        """End the run."""
        self._run.end()

    def read(self, sink):
        """Publish, and return what a reader finds."""
        if not self.is_silent:
            self._run.publish(self.progress, is_open=self.is_open)
        return self._store.read(sink)


class WaitBench:
    """Everything that a wait looks at."""

    def __init__(self, folder):
        self.clock = Clock()
        self.driver = Driver(folder, self.clock)
        self.slot = Slot()
        self.history = History()
        self.cluster = Cluster()
        self.folder = folder
        self.settings = Settings.model_validate(
            {
                "version": 1,
                "state_folder": str(folder),
                "source": [{"dsn": "postgresql://unused/shop"}],
                "kafka": {"bootstrap_servers": "unused"},
                "registry": {"url": "http://unused"},
                "sink": [
                    {
                        "name": "cache",
                        "kind": "cache",
                        "url": "redis://unused",
                        "route": [{"topic": TOPIC, "name": "orders"}],
                    }
                ],
            }
        )

    def applied(self, offsets, **progress):
        """Set what the sink has applied."""
        self.driver.progress = Progress("cache", applied=offsets, **progress)

    def wait(self, lsn=LSN, timeout_s=2.0):
        """Wait for an LSN."""
        (sink,) = self.settings.sink
        wait = Wait(self.settings, sink, self.driver, self.clock, timeout_s)
        return wait.until_applied(lsn, self.slot, self.history, self.cluster)

    def missing(self, **given):
        """Wait in vain; return the missing progress."""
        with pytest.raises(NotAppliedError) as raised:
            self.wait(**given)
        return str(raised.value)


@pytest.fixture
def place(tmp_path):
    """Return a state in which everything is applied."""
    made = WaitBench(tmp_path)
    made.applied({TOPIC: {"0": 10}})
    return made


def test_lost_rows_are_waited_for(place):
    """
    Everything is applied, but a gap's rows are read again: only their sweep ends that.
    """
    incomplete.begin(place.folder, "cache", "orders", "repair-1")
    missing = place.missing()
    at_s = place.clock.at_s + 1
    place.clock.plan = {
        at_s: lambda: incomplete.end(place.folder, "cache", "orders", "repair-1")
    }
    applied = place.wait()

    assert "lacks rows of orders, which are being read again" in missing
    assert applied.waited_s == pytest.approx(1, abs=0.1)


def store_refetches(place, *rows):
    """Store pending refetches: the keys, each with the position it is needed for."""
    known = {
        ("orders", (key,)): PendingRefetch(
            ParkedKey(TOPIC, b"%d" % key), since, since, since, 0
        )
        for key, since in rows
    }
    replace_file(
        refetches_path(place.folder, "cache"),
        encode_refetches(StoredRefetches(rows=known)),
    )


def test_pending_refetches_are_waited_for(place):
    """
    A partial change is applied, but incomplete until its row has come.
    """
    store_refetches(place, (7, "2"), (8, "3"))
    missing = place.missing()
    at_s = place.clock.at_s
    place.clock.plan = {
        at_s + 1: lambda: store_refetches(place, (8, "3")),
        at_s + 2: lambda: store_refetches(place),
    }
    outcome = place.wait(timeout_s=9)

    assert "the sink cache has requested 2 rows that have not arrived yet" in missing
    assert outcome.waited_s == pytest.approx(2, abs=0.1)


def test_refetches_of_later_changes_are_not_waited_for(place):
    """
    A hot row is refetched all the time, each time for another change.
    """
    place.applied({TOPIC: {"0": 9}})
    store_refetches(place, (6, "1"), (7, "2"))

    def apply():
        store_refetches(place, (7, "2"))
        place.applied({TOPIC: {"0": 10}})

    place.clock.plan = {1: apply, 2: lambda: store_refetches(place, (7, "5"), (8, "6"))}

    assert place.wait(timeout_s=9).waited_s == pytest.approx(2, abs=0.1)


def test_a_route_to_be_refetched_is_waited_for(place):
    """
    First until it is requested, and then until it is read.
    """
    kept = StoredRefetches(postponed=frozenset({"orders"}))
    replace_file(refetches_path(place.folder, "cache"), encode_refetches(kept))
    missing = place.missing()
    at_s = place.clock.at_s

    def ask():
        incomplete.begin(place.folder, "cache", "orders", "repair-1")
        replace_file(
            refetches_path(place.folder, "cache"), encode_refetches(StoredRefetches())
        )

    def end():
        incomplete.end(place.folder, "cache", "orders", "repair-1")

    place.clock.plan = {at_s + 1: ask, at_s + 2: end}

    assert "has requested 1 rows" in missing
    assert place.wait(timeout_s=9).waited_s == pytest.approx(2, abs=0.1)


def test_an_applied_commit_is_reported_at_once(place):
    """
    There is no wait, and dead letters are reported with it.
    """
    place.applied({TOPIC: {"0": 10}}, dead_letters=2, parked=1)
    outcome = place.wait()

    assert (LSN, 0.0, 2, 1) == (
        *(outcome.lsn, outcome.waited_s, outcome.dead_letters, outcome.parked),
    )


def test_topic_ends_are_taken_after_the_relay_has_confirmed(place):
    """
    Records that come while the relay is waited for are waited for, too.
    """
    place.slot.found = SlotStatus(LSN - 8, True, LSN)

    def confirm():
        place.cluster.ends = {TOPIC: {"0": 12}}
        place.slot.found = SlotStatus(LSN, True, LSN)

    place.clock.plan = {0.2: confirm, 0.6: lambda: place.applied({TOPIC: {"0": 12}})}
    outcome = place.wait()

    assert (0.2, 0.6) == (round(outcome.confirmed_s, 1), round(outcome.waited_s, 1))


def test_an_added_partition_counts_from_its_first_record(place):
    """
    The progress does not have it: its records are not applied.
    """
    place.cluster.ends = {TOPIC: {"0": 10, "1": 3}}

    assert "the sink cache has 3 records to go" in place.missing()


def test_a_lost_progress_file_is_not_applied(place):
    """
    A driver that knows nothing has applied nothing.
    """
    place.applied({})

    assert "10 records to go" in place.missing()


def test_a_driver_that_does_not_run_has_applied_nothing(place):
    """
    The target may have been restored since its last record; and another one may run.
    """
    place.wait()
    place.driver.is_silent = True
    outcome = place.wait(timeout_s=1)
    place.clock.at_s = HEARD_WITHIN_S
    silent = place.missing()
    place.driver.is_silent = False
    place.wait()
    place.driver.end()
    place.driver.is_silent = True

    assert 0.0 == outcome.waited_s
    assert "the driver of the sink cache has not been heard from since 2026" in silent
    assert "the driver of the sink cache ended at 2026" in place.missing()


def test_a_run_that_has_not_opened_its_target_has_applied_nothing(place):
    """
    Its offsets are those of an earlier run: it finds out what the target has lost.
    """
    place.driver.is_open = False
    missing = place.missing()
    at_s = place.clock.at_s + 1
    place.clock.plan = {at_s: lambda: setattr(place.driver, "is_open", True)}

    assert "the sink cache is starting" in missing
    assert 1.0 == round(place.wait().waited_s, 1)


def test_a_sink_without_a_record_to_read_needs_no_open_target(place):
    """
    A driver opens the target only once there is a topic.
    """
    place.driver.is_open = False
    place.cluster.ends = {}

    assert LSN == place.wait().lsn


def test_a_run_that_begins_during_a_wait_has_ends_of_its_own(place):
    """
    Its offsets may be of a topic that was deleted since the ends were listed.
    """
    place.applied({TOPIC: {"0": 9}})

    def restart():
        place.cluster.ends = {TOPIC: {"0": 4}}
        place.applied({TOPIC: {"0": 10}})
        place.driver.begin()

    place.clock.plan = {1: restart}

    assert "was recreated" in place.missing()


def test_the_sinks_error_is_reported(place):
    """
    A wait in vain names the reason.
    """
    place.applied({TOPIC: {"0": 9}}, error="Redis does not answer.")

    assert place.missing().endswith("1 records to go: Redis does not answer.")


def test_a_recreated_topic_is_not_applied(place):
    """
    Offsets begin at 0 again: progress of the old topic means nothing.
    """
    place.cluster.ends = {TOPIC: {"0": 2}}

    assert "was recreated" in place.missing()


def test_a_sink_faster_than_the_look_has_applied_the_topic(place):
    """
    A sink may pass the ends while they are read; the topic is not new.
    """
    place.cluster.on_ask = lambda: place.applied({TOPIC: {"0": 11}})
    place.applied({TOPIC: {"0": 9}})

    assert LSN == place.wait().lsn


def test_a_sink_declared_late_must_be_filled_first(place):
    """
    Rows before its first offset come by a snapshot.
    """
    folder = sink_folder(place.folder, "cache")
    replace_file(folder / STARTING_OFFSETS_FILE, b"{}")
    missing = place.missing()
    place.clock.plan = {3.0: lambda: replace_file(folder / READY_FILE, b"")}

    assert "still being filled" in missing
    assert LSN == place.wait().lsn


def test_one_record_more_than_the_topic_has_is_a_topic_made_again(place):
    """
    Offsets of two topics of one name may differ by one only.
    """
    place.cluster.ends = {TOPIC: {"0": 9}}

    assert "was recreated" in place.missing()


def test_an_lsn_at_which_the_present_history_begins_is_in_it(place):
    """
    The first commit that ends there is one that the relay has published.
    """
    place.history.start = LSN

    assert LSN == place.wait().lsn


def test_topics_of_no_route_of_the_sink_are_not_waited_for(place):
    """
    Another sink's records are nothing that this one applies.
    """
    place.cluster.ends = {TOPIC: {"0": 10}, "towpath.shop.parcels": {"0": 5}}

    assert LSN == place.wait().lsn


def test_rows_that_were_refetched_are_reported(place):
    """
    The count is the sink's own.
    """
    place.applied({TOPIC: {"0": 10}}, asked=3)

    assert 3 == place.wait().asked


def test_an_lsn_of_an_earlier_history_is_refused(place):
    """
    A recreated slot has confirmed LSNs that were never published.
    """
    place.history.start = LSN + 8
    with pytest.raises(UnknownLsnError) as raised:
        place.wait()

    assert "earlier commits arrive through a snapshot" in str(raised.value)


def test_a_pending_lineage_is_waited_for(place):
    """
    While a lineage is pending its slot is not known to serve it.
    """
    place.history.start = None
    place.clock.plan = {0.5: lambda: setattr(place.history, "start", START_LSN)}
    outcome = place.wait()
    place.history.start = None

    assert 0.5 == round(outcome.waited_s, 1)
    assert "has not begun" in place.missing()


def test_the_lineage_is_read_after_the_slot_has_confirmed(place):
    """
    A slot that is replaced during the wait is noticed.
    """
    place.slot.found = SlotStatus(LSN - 8, True, LSN)

    def replace():
        place.history.start = LSN + 8
        place.slot.found = SlotStatus(LSN + 8, True, LSN + 8)

    place.clock.plan = {0.1: replace}

    with pytest.raises(UnknownLsnError):
        place.wait()


def test_an_lsn_beyond_the_end_of_the_log_is_refused(place):
    """
    It is of another server, or of a log that went back: the wait could only be wrong.
    """
    with pytest.raises(UnknownLsnError) as raised:
        place.wait(lsn=LSN + 8)

    assert "not an LSN of this server" in str(raised.value)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, "the slot towpath does not exist"),
        (SlotStatus(LSN - 8, False, LSN), "no relay follows the slot"),
        (SlotStatus(LSN - 8, True, LSN), "has confirmed 0/3E0, not yet 0/3E8"),
    ],
)
def test_a_relay_that_does_not_confirm_is_reported(place, status, expected):
    """
    Applied records count only after the relay has confirmed.
    """
    place.slot.found = status

    assert expected in place.missing()


def test_an_idle_log_is_advanced_once(place):
    """
    A flushed but not yet streamed commit is streamed, soon and only once.
    """
    place.slot.found = SlotStatus(LSN - 8, True, LSN)
    place.missing(timeout_s=NUDGE_AFTER_S / 2)
    before = place.slot.nudged
    place.missing(timeout_s=NUDGE_AFTER_S * 5)

    assert (0, 1) == (before, place.slot.nudged)


def test_a_wait_needs_no_spark():
    """
    A client of the services can wait without Spark installed.
    """
    code = "import sys, towpath.sinks.wait; print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert "False" == done.stdout.strip()


class Connection:
    """A connection that notes that it was closed."""

    def __init__(self, *_settings):
        self.is_closed = False

    def close(self):
        """Close it."""
        self.is_closed = True


def test_a_waiter_closes_its_connections_after_any_failure(place, monkeypatch):
    """
    A wait that broke off in the middle of an answer leaves them unusable.
    """
    made = []

    def connect(*_settings):
        made.append(Connection())
        return made[-1]

    def broken(*_given):
        message = "no row"
        raise TypeError(message)

    monkeypatch.setattr(wait, "PostgresSlot", connect)
    monkeypatch.setattr(wait, "KafkaHistory", connect)
    monkeypatch.setattr(Wait, "until_applied", broken)
    waiter = wait.Waiter(place.settings, Clock())

    with pytest.raises(TypeError):
        waiter.wait_for("0/1", "cache")
    assert [True, True] == [one.is_closed for one in made]
