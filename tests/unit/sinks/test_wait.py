"""When a wait may say that a sink has applied a commit, and when it must not."""

import subprocess
import sys
from datetime import UTC, datetime

import pytest

from towpath.settings import Settings
from towpath.sinks import unfilled
from towpath.sinks.dead_letters.letter import ParkedKey
from towpath.sinks.declare import READY_FILE, STARTING_OFFSETS_FILE
from towpath.sinks.jobs.owed_file import Kept, Owing, file_of, written
from towpath.sinks.progress import (
    Progress,
    progress_path,
    replace_file,
    sink_folder,
    write_progress,
)
from towpath.sinks.wait.errors import NotAppliedError, UnknownLsnError
from towpath.sinks.wait.rule import NUDGE_AFTER_S, Wait
from towpath.sinks.wait.source import SlotSight

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOPIC = "towpath.shop.orders"
LSN = 1000
START_LSN = 500


class Clock:
    """Time passes while somebody waits; what is planned happens then."""

    def __init__(self):
        self.at_s = 0.0
        self.plan = {}

    def now(self):
        """Tell a fixed time."""
        return NOW

    def monotonic_s(self):
        """Tell how long was waited."""
        return self.at_s

    def wait(self, delay_s):
        """Let time pass, and what is planned happen."""
        self.at_s += delay_s
        for due_s in sorted(at for at in self.plan if at <= self.at_s):
            self.plan.pop(due_s)()


class Slot:
    """A slot as the source shows it."""

    def __init__(self):
        self.sight = SlotSight(LSN, True, LSN)
        self.nudged = 0

    def see(self):
        """Tell what is set."""
        return self.sight

    def nudge(self):
        """Count it, and have the log go on."""
        self.nudged += 1


class History:
    """The relay's memory."""

    def __init__(self):
        self.start = START_LSN

    def start_lsn(self):
        """Tell what is set."""
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
        """Tell their ends."""
        return {name: dict(self.ends[name]) for name in names}


class Place:
    """Everything that a wait looks at."""

    def __init__(self, folder):
        self.clock = Clock()
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
        """Write what the sink has applied."""
        path = progress_path(self.folder, "cache")
        write_progress(path, Progress("cache", applied=offsets, **progress), NOW)

    def wait(self, lsn=LSN, timeout_s=2.0):
        """Wait for an LSN."""
        (sink,) = self.settings.sink
        wait = Wait(self.settings, sink, self.clock, timeout_s)
        return wait.until_applied(lsn, self.slot, self.history, self.cluster)

    def missing(self, **given):
        """Wait in vain; return what is missing."""
        with pytest.raises(NotAppliedError) as raised:
            self.wait(**given)
        return str(raised.value)


@pytest.fixture
def place(tmp_path):
    """Lend a place where everything is applied."""
    made = Place(tmp_path)
    made.applied({TOPIC: {"0": 10}})
    return made


def test_rows_that_were_lost_are_waited_for(place):
    """
    Everything is applied, but a gap's rows are read anew: only their sweep ends that.
    """
    unfilled.begin(place.folder, "cache", "orders", "repair-1")
    missing = place.missing()
    at_s = place.clock.at_s + 1
    place.clock.plan = {
        at_s: lambda: unfilled.end(place.folder, "cache", "orders", "repair-1")
    }
    applied = place.wait()

    assert "lost rows of orders, which are being read anew" in missing
    assert applied.waited_s == pytest.approx(1, abs=0.1)


def owe(place, *rows):
    """Write what the sink is owed: the keys, each with the position it is owed for."""
    known = {
        ("orders", (key,)): Owing(ParkedKey(TOPIC, b"%d" % key), since, since, since, 0)
        for key, since in rows
    }
    replace_file(file_of(place.folder, "cache"), written(Kept(rows=known)))


def test_rows_that_were_asked_for_are_waited_for(place):
    """
    A partial change is applied, and stands nowhere until its row has come.
    """
    owe(place, (7, "2"), (8, "3"))
    missing = place.missing()
    at_s = place.clock.at_s
    place.clock.plan = {
        at_s + 1: lambda: owe(place, (8, "3")),
        at_s + 2: lambda: owe(place),
    }
    told = place.wait(timeout_s=9)

    assert "the sink cache has asked for 2 rows that have not come yet" in missing
    assert told.waited_s == pytest.approx(2, abs=0.1)


def test_what_is_owed_for_later_changes_is_not_waited_for(place):
    """
    A row that is owed all the time, each time for another change, comes all the time.
    """
    place.applied({TOPIC: {"0": 9}})
    owe(place, (6, "1"), (7, "2"))

    def apply():
        owe(place, (7, "2"))
        place.applied({TOPIC: {"0": 10}})

    place.clock.plan = {1: apply, 2: lambda: owe(place, (7, "5"), (8, "6"))}

    assert place.wait(timeout_s=9).waited_s == pytest.approx(2, abs=0.1)


def test_a_route_that_is_to_be_asked_for_is_waited_for(place):
    """
    First until it is, and then until it was read.
    """
    kept = Kept(put_off=frozenset({"orders"}))
    replace_file(file_of(place.folder, "cache"), written(kept))
    missing = place.missing()
    at_s = place.clock.at_s

    def ask():
        unfilled.begin(place.folder, "cache", "orders", "repair-1")
        replace_file(file_of(place.folder, "cache"), written(Kept()))

    def end():
        unfilled.end(place.folder, "cache", "orders", "repair-1")

    place.clock.plan = {at_s + 1: ask, at_s + 2: end}

    assert "has asked for 1 rows" in missing
    assert place.wait(timeout_s=9).waited_s == pytest.approx(2, abs=0.1)


def test_what_is_applied_is_told_at_once(place):
    """
    Nothing is waited for, and what was set aside is told with it.
    """
    place.applied({TOPIC: {"0": 10}}, dead_letters=2, parked=1)
    told = place.wait()

    assert (LSN, 0.0, 2, 1) == (
        *(told.lsn, told.waited_s, told.dead_letters, told.parked),
    )


def test_the_ends_are_taken_after_the_relay_has_confirmed(place):
    """
    Records that come while the relay is waited for are waited for, too.
    """
    place.slot.sight = SlotSight(LSN - 8, True, LSN)

    def confirm():
        place.cluster.ends = {TOPIC: {"0": 12}}
        place.slot.sight = SlotSight(LSN, True, LSN)

    place.clock.plan = {0.2: confirm, 0.6: lambda: place.applied({TOPIC: {"0": 12}})}
    told = place.wait()

    assert (0.2, 0.6) == (round(told.confirmed_s, 1), round(told.waited_s, 1))


def test_a_partition_that_was_added_counts_from_its_first_record(place):
    """
    The progress says nothing of it: its records are not applied.
    """
    place.cluster.ends = {TOPIC: {"0": 10, "1": 3}}

    assert "the sink cache has 3 records to go" in place.missing()


def test_a_progress_file_that_was_lost_is_no_yes(place):
    """
    Without a file nothing is known to be applied.
    """
    progress_path(place.folder, "cache").unlink()

    assert "10 records to go" in place.missing()


def test_the_error_of_the_sink_is_told(place):
    """
    Whoever waits in vain learns why.
    """
    place.applied({TOPIC: {"0": 9}}, error="Redis does not answer.")

    assert place.missing().endswith("1 records to go: Redis does not answer.")


def test_a_topic_that_was_made_anew_is_no_yes(place):
    """
    Offsets begin at 0 again: what was applied of the old topic says nothing.
    """
    place.cluster.ends = {TOPIC: {"0": 2}}

    assert "was made anew" in place.missing()


def test_records_that_are_applied_while_the_ends_are_taken_are_no_new_topic(place):
    """
    A sink that is quicker than the look at the ends has passed them, that is all.
    """
    place.cluster.on_ask = lambda: place.applied({TOPIC: {"0": 11}})
    place.applied({TOPIC: {"0": 9}})

    assert LSN == place.wait().lsn


def test_a_sink_that_began_late_must_be_filled_first(place):
    """
    What lies before its first offset comes by a snapshot.
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

    assert "was made anew" in place.missing()


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


def test_an_lsn_before_the_present_history_is_refused(place):
    """
    A slot that was made anew has confirmed what was never published.
    """
    place.history.start = LSN + 8
    with pytest.raises(UnknownLsnError) as raised:
        place.wait()

    assert "a snapshot brings" in str(raised.value)


def test_a_history_that_is_about_to_begin_is_waited_for(place):
    """
    While a lineage is pending its slot is not known to serve it.
    """
    place.history.start = None
    place.clock.plan = {0.5: lambda: setattr(place.history, "start", START_LSN)}
    told = place.wait()
    place.history.start = None

    assert 0.5 == round(told.waited_s, 1)
    assert "has not begun" in place.missing()


def test_the_history_is_read_after_the_slot_has_confirmed(place):
    """
    A slot that is replaced while one waits is noticed.
    """
    place.slot.sight = SlotSight(LSN - 8, True, LSN)

    def replace():
        place.history.start = LSN + 8
        place.slot.sight = SlotSight(LSN + 8, True, LSN + 8)

    place.clock.plan = {0.1: replace}

    with pytest.raises(UnknownLsnError):
        place.wait()


def test_an_lsn_behind_the_end_of_the_log_is_refused(place):
    """
    It is of another server, or of a log that went back: waiting could only lie.
    """
    with pytest.raises(UnknownLsnError) as raised:
        place.wait(lsn=LSN + 8)

    assert "none of this server's" in str(raised.value)


@pytest.mark.parametrize(
    ("sight", "told"),
    [
        (None, "the slot towpath does not exist"),
        (SlotSight(LSN - 8, False, LSN), "nobody follows the slot"),
        (SlotSight(LSN - 8, True, LSN), "the relay has confirmed 0/3E0 of 0/3E8"),
    ],
)
def test_a_relay_that_does_not_confirm_is_named(place, sight, told):
    """
    Nothing that the sink has applied counts before the relay has confirmed.
    """
    place.slot.sight = sight

    assert told in place.missing()


def test_a_log_that_stands_still_is_nudged_once(place):
    """
    What is flushed and not yet streamed is brought on its way, soon and only once.
    """
    place.slot.sight = SlotSight(LSN - 8, True, LSN)
    place.missing(timeout_s=NUDGE_AFTER_S / 2)
    before = place.slot.nudged
    place.missing(timeout_s=NUDGE_AFTER_S * 5)

    assert (0, 1) == (before, place.slot.nudged)


def test_a_wait_needs_no_engine():
    """
    A client of the services can wait without Spark being there.
    """
    code = "import sys, towpath.sinks.wait; print('pyspark' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert "False" == done.stdout.strip()
