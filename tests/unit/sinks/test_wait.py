"""A wait reports that a sink has applied a commit only if the sink certainly has."""

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
from towpath.sinks.state.published import RECEIVED_WITHIN_S
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
    """A clock that advances only in ``wait``, and then runs planned events."""

    def __init__(self):
        self.at_s = 0.0
        self.plan = {}

    def now(self):
        """Return the time."""
        return NOW + timedelta(seconds=self.at_s)

    def monotonic_s(self):
        """Return the time spent waiting."""
        return self.at_s

    def wait(self, delay_s):
        """Advance the clock, and run planned events."""
        self.at_s += delay_s
        for due_s in sorted(at for at in self.plan if at <= self.at_s):
            self.plan.pop(due_s)()


class Slot:
    """A slot as the source shows it."""

    def __init__(self):
        self.found = SlotStatus(LSN, True, LSN)
        self.nudged = 0

    def status(self):
        """Return the status that the test has set."""
        return self.found

    def nudge(self):
        """Count the call."""
        self.nudged += 1


class History:
    """The lineage that the relay has stored."""

    def __init__(self):
        self.start = START_LSN

    def start_lsn(self):
        """Return the start that the test has set."""
        return self.start


class Cluster:
    """Topics and their ends."""

    def __init__(self):
        self.ends = {TOPIC: {"0": 10}}
        self.requested_at = []
        self.on_request = lambda: None

    def names(self):
        """List the topics."""
        self.on_request()
        return sorted(self.ends)

    def end_offsets(self, names):
        """Return their ends."""
        return {name: dict(self.ends[name]) for name in names}


class Driver:
    """
    A driver that publishes before each read, as a running driver does.

    Attributes:
        is_silent: Whether it has stopped publishing.
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
        """Begin a new run."""
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
    """Everything that a wait reads."""

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
        """Set the sink's progress."""
        self.driver.progress = Progress("cache", applied=offsets, **progress)

    def wait(self, lsn=LSN, timeout_s=2.0):
        """Wait for an LSN."""
        (sink,) = self.settings.sink
        wait = Wait(self.settings, sink, self.driver, self.clock, timeout_s)
        return wait.until_applied(lsn, self.slot, self.history, self.cluster)

    def missing(self, **given):
        """Return the error of a wait that times out."""
        with pytest.raises(NotAppliedError) as raised:
            self.wait(**given)
        return str(raised.value)


@pytest.fixture
def bench(tmp_path):
    """Return a bench on which everything is applied."""
    made = WaitBench(tmp_path)
    made.applied({TOPIC: {"0": 10}})
    return made


def test_a_wait_includes_lost_rows(bench):
    """
    Everything is applied, but the rows of a gap are read again until their sweep.
    """
    incomplete.begin(bench.folder, "cache", "orders", "repair-1")
    missing = bench.missing()
    at_s = bench.clock.at_s + 1
    bench.clock.plan = {
        at_s: lambda: incomplete.end(bench.folder, "cache", "orders", "repair-1")
    }
    applied = bench.wait()

    assert "lacks rows of orders, which are being read again" in missing
    assert applied.waited_s == pytest.approx(1, abs=0.1)


def store_refetches(bench, *rows):
    """Store pending refetches: keys, each with the first position that it lacks."""
    known = {
        ("orders", (key,)): PendingRefetch(
            ParkedKey(TOPIC, b"%d" % key), since, since, since, 0
        )
        for key, since in rows
    }
    replace_file(
        refetches_path(bench.folder, "cache"),
        encode_refetches(StoredRefetches(rows=known)),
    )


def test_a_wait_includes_pending_refetches(bench):
    """
    A partial change is applied, but incomplete until its row has arrived.
    """
    store_refetches(bench, (7, "2"), (8, "3"))
    missing = bench.missing()
    at_s = bench.clock.at_s
    bench.clock.plan = {
        at_s + 1: lambda: store_refetches(bench, (8, "3")),
        at_s + 2: lambda: store_refetches(bench),
    }
    outcome = bench.wait(timeout_s=9)

    assert "the sink cache has requested 2 rows that have not arrived yet" in missing
    assert outcome.waited_s == pytest.approx(2, abs=0.1)


def test_a_wait_ignores_refetches_of_later_changes(bench):
    """
    A hot row is refetched all the time, each time for a different change.
    """
    bench.applied({TOPIC: {"0": 9}})
    store_refetches(bench, (6, "1"), (7, "2"))

    def apply():
        store_refetches(bench, (7, "2"))
        bench.applied({TOPIC: {"0": 10}})

    bench.clock.plan = {1: apply, 2: lambda: store_refetches(bench, (7, "5"), (8, "6"))}

    assert bench.wait(timeout_s=9).waited_s == pytest.approx(2, abs=0.1)


def test_a_wait_includes_a_route_to_be_refetched(bench):
    """
    The wait lasts until the route is requested, and then until it has been read.
    """
    kept = StoredRefetches(postponed=frozenset({"orders"}))
    replace_file(refetches_path(bench.folder, "cache"), encode_refetches(kept))
    missing = bench.missing()
    at_s = bench.clock.at_s

    def request():
        incomplete.begin(bench.folder, "cache", "orders", "repair-1")
        replace_file(
            refetches_path(bench.folder, "cache"), encode_refetches(StoredRefetches())
        )

    def end():
        incomplete.end(bench.folder, "cache", "orders", "repair-1")

    bench.clock.plan = {at_s + 1: request, at_s + 2: end}

    assert "has requested 1 rows" in missing
    assert bench.wait(timeout_s=9).waited_s == pytest.approx(2, abs=0.1)


def test_an_applied_commit_is_reported_immediately(bench):
    """
    There is no wait, and the outcome includes dead letters.
    """
    bench.applied({TOPIC: {"0": 10}}, dead_letters=2, parked=1)
    outcome = bench.wait()

    assert (LSN, 0.0, 2, 1) == (
        *(outcome.lsn, outcome.waited_s, outcome.dead_letters, outcome.parked),
    )


def test_topic_ends_are_read_after_the_relay_has_confirmed(bench):
    """
    The wait includes records that arrive while it waits for the relay.
    """
    bench.slot.found = SlotStatus(LSN - 8, True, LSN)

    def confirm():
        bench.cluster.ends = {TOPIC: {"0": 12}}
        bench.slot.found = SlotStatus(LSN, True, LSN)

    bench.clock.plan = {0.2: confirm, 0.6: lambda: bench.applied({TOPIC: {"0": 12}})}
    outcome = bench.wait()

    assert (0.2, 0.6) == (round(outcome.confirmed_s, 1), round(outcome.waited_s, 1))


def test_an_added_partition_counts_from_its_first_record(bench):
    """
    The progress lacks the partition, so its records do not count as applied.
    """
    bench.cluster.ends = {TOPIC: {"0": 10, "1": 3}}

    assert "the sink cache has 3 records to go" in bench.missing()


def test_nothing_is_applied_after_the_loss_of_the_progress_file(bench):
    """
    A driver without progress has applied nothing.
    """
    bench.applied({})

    assert "10 records to go" in bench.missing()


def test_a_driver_that_does_not_run_has_applied_nothing(bench):
    """
    The target may have been restored since the last record, or a new driver may run.
    """
    bench.wait()
    bench.driver.is_silent = True
    outcome = bench.wait(timeout_s=1)
    bench.clock.at_s = RECEIVED_WITHIN_S
    silent = bench.missing()
    bench.driver.is_silent = False
    bench.wait()
    bench.driver.end()
    bench.driver.is_silent = True

    assert 0.0 == outcome.waited_s
    assert "the driver of the sink cache has not been heard from since 2026" in silent
    assert "the driver of the sink cache ended at 2026" in bench.missing()


def test_a_run_that_has_not_opened_its_target_has_applied_nothing(bench):
    """
    Its offsets are those of an earlier run: it has not checked the target for losses.
    """
    bench.driver.is_open = False
    missing = bench.missing()
    at_s = bench.clock.at_s + 1
    bench.clock.plan = {at_s: lambda: setattr(bench.driver, "is_open", True)}

    assert "the sink cache is starting" in missing
    assert 1.0 == round(bench.wait().waited_s, 1)


def test_a_sink_without_a_record_to_read_needs_no_open_target(bench):
    """
    A driver opens the target only once there is a topic.
    """
    bench.driver.is_open = False
    bench.cluster.ends = {}

    assert LSN == bench.wait().lsn


def test_a_run_that_begins_during_a_wait_is_compared_with_new_ends(bench):
    """
    Its offsets may belong to a topic that was deleted since the ends were listed.
    """
    bench.applied({TOPIC: {"0": 9}})

    def restart():
        bench.cluster.ends = {TOPIC: {"0": 4}}
        bench.applied({TOPIC: {"0": 10}})
        bench.driver.begin()

    bench.clock.plan = {1: restart}

    assert "was recreated" in bench.missing()


def test_the_sinks_error_is_reported(bench):
    """
    The error of a wait names the reason.
    """
    bench.applied({TOPIC: {"0": 9}}, error="Redis does not answer.")

    assert bench.missing().endswith("1 records to go: Redis does not answer.")


def test_a_recreated_topic_is_not_applied(bench):
    """
    Offsets begin at 0 again: progress of the old topic means nothing.
    """
    bench.cluster.ends = {TOPIC: {"0": 2}}

    assert "was recreated" in bench.missing()


def test_a_sink_that_passes_the_ends_during_the_check_has_applied_the_topic(bench):
    """
    A sink may pass the ends while they are read; the topic is not new.
    """
    bench.cluster.on_request = lambda: bench.applied({TOPIC: {"0": 11}})
    bench.applied({TOPIC: {"0": 9}})

    assert LSN == bench.wait().lsn


def test_a_sink_declared_late_must_be_filled_first(bench):
    """
    A snapshot delivers the rows from before the sink's first offset.
    """
    folder = sink_folder(bench.folder, "cache")
    replace_file(folder / STARTING_OFFSETS_FILE, b"{}")
    missing = bench.missing()
    bench.clock.plan = {3.0: lambda: replace_file(folder / READY_FILE, b"")}

    assert "still being filled" in missing
    assert LSN == bench.wait().lsn


def test_one_record_more_than_the_topic_has_means_a_recreated_topic(bench):
    """
    Offsets of two topics with the same name may differ by only one.
    """
    bench.cluster.ends = {TOPIC: {"0": 9}}

    assert "was recreated" in bench.missing()


def test_an_lsn_at_which_the_current_history_begins_belongs_to_it(bench):
    """
    The relay has published the first commit that ends there.
    """
    bench.history.start = LSN

    assert LSN == bench.wait().lsn


def test_a_wait_ignores_topics_without_a_route_of_the_sink(bench):
    """
    This sink does not apply records of other sinks.
    """
    bench.cluster.ends = {TOPIC: {"0": 10}, "towpath.shop.parcels": {"0": 5}}

    assert LSN == bench.wait().lsn


def test_rows_that_were_refetched_are_reported(bench):
    """
    The number comes from the sink's progress.
    """
    bench.applied({TOPIC: {"0": 10}}, asked=3)

    assert 3 == bench.wait().asked


def test_an_lsn_of_an_earlier_history_is_refused(bench):
    """
    A recreated slot has confirmed LSNs that were never published.
    """
    bench.history.start = LSN + 8
    with pytest.raises(UnknownLsnError) as raised:
        bench.wait()

    assert "earlier commits arrive through a snapshot" in str(raised.value)


def test_a_wait_includes_a_pending_lineage(bench):
    """
    While a lineage is pending, it is unknown whether the slot serves it.
    """
    bench.history.start = None
    bench.clock.plan = {0.5: lambda: setattr(bench.history, "start", START_LSN)}
    outcome = bench.wait()
    bench.history.start = None

    assert 0.5 == round(outcome.waited_s, 1)
    assert "has not begun" in bench.missing()


def test_the_lineage_is_read_after_the_slot_has_confirmed(bench):
    """
    A slot that is replaced during the wait is noticed.
    """
    bench.slot.found = SlotStatus(LSN - 8, True, LSN)

    def replace():
        bench.history.start = LSN + 8
        bench.slot.found = SlotStatus(LSN + 8, True, LSN + 8)

    bench.clock.plan = {0.1: replace}

    with pytest.raises(UnknownLsnError):
        bench.wait()


def test_an_lsn_beyond_the_end_of_the_log_is_refused(bench):
    """
    The LSN is from a different server, or from a log that was reset.
    """
    with pytest.raises(UnknownLsnError) as raised:
        bench.wait(lsn=LSN + 8)

    assert "not an LSN of this server" in str(raised.value)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, "the slot towpath does not exist"),
        (SlotStatus(LSN - 8, False, LSN), "no relay is consuming the slot"),
        (SlotStatus(LSN - 8, True, LSN), "has confirmed 0/3E0, not yet 0/3E8"),
    ],
)
def test_a_relay_that_does_not_confirm_is_reported(bench, status, expected):
    """
    Applied records count only after the relay has confirmed.
    """
    bench.slot.found = status

    assert expected in bench.missing()


def test_an_idle_log_is_advanced_once(bench):
    """
    A nudge, sent after a moment and only once, makes the relay stream a flushed commit.
    """
    bench.slot.found = SlotStatus(LSN - 8, True, LSN)
    bench.missing(timeout_s=NUDGE_AFTER_S / 2)
    before = bench.slot.nudged
    bench.missing(timeout_s=NUDGE_AFTER_S * 5)

    assert (0, 1) == (before, bench.slot.nudged)


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
    """A connection that records that it was closed."""

    def __init__(self, *_settings):
        self.is_closed = False

    def close(self):
        """Close the connection."""
        self.is_closed = True


def test_a_waiter_closes_its_connections_after_any_failure(bench, monkeypatch):
    """
    A wait that is interrupted in the middle of a response leaves them unusable.
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
    waiter = wait.Waiter(bench.settings, Clock())

    with pytest.raises(TypeError):
        waiter.wait_for("0/1", "cache")
    assert [True, True] == [one.is_closed for one in made]
