"""The copies of a sink's state: content, owner, and the replacement of a folder."""

import os
import threading
from pathlib import Path

import orjson
import pytest

from support.relay_bench import Clock
from support.waiting import until
from towpath.sinks.errors import (
    BrokerUnavailableError,
    SinkRunsElsewhereError,
    SinkTakenOverError,
)
from towpath.sinks.state import copies
from towpath.sinks.state.copies import (
    BEAT_EVERY_S,
    SILENT_FOR_S,
    WRITES_FOR_S,
    StateCopies,
)
from towpath.sinks.state.progress import replace_file

APPLIED = {"p.shop.orders": {"0": 7}}


class Records:
    """The stored records, shared by the stores of all drivers."""

    def __init__(self):
        self.records = {}
        self.writes = 0
        self.writer = None


class Store:
    """A store of one driver."""

    def __init__(self, shared):
        self.shared = shared
        self.fails = False
        # If true, the answer is lost although the records are stored.
        self.loses_answer = False

    def read(self):
        return dict(self.shared.records)

    def end(self):
        return self.shared.writes

    def fence(self):
        self.shared.writer = self

    def write(self, records):
        if self.shared.writer is not self:
            message = "fenced"
            raise SinkTakenOverError(message)
        if self.fails:
            message = "no broker"
            raise BrokerUnavailableError(message)
        for key, value in records.items():
            if value is None:
                self.shared.records.pop(key, None)
            else:
                self.shared.records[key] = value
        self.shared.writes += 1
        if self.loses_answer:
            message = "no answer"
            raise BrokerUnavailableError(message)


class Machine:
    """A driver's folder for the sink, and its copies."""

    def __init__(self, folder: Path, shared, clock):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.clock = clock
        self.store = Store(shared)
        self.copies = StateCopies(folder, self.store, clock)

    def put(self, name, content=b"{}"):
        """Write a file of the state."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def files(self):
        """Return the files of the state."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        }

    def restarted(self):
        """Return the same machine with a new driver."""
        return Machine(self.folder, self.store.shared, self.clock)


@pytest.fixture
def clock():
    """Return a clock that advances only in ``wait``."""
    return Clock()


@pytest.fixture
def shared():
    """Return the stored records, which are empty at first."""
    return Records()


@pytest.fixture
def first(tmp_path, shared, clock):
    """Return a machine that has run the sink, and may still run it."""
    made = Machine(tmp_path / "first", shared, clock)
    made.put("progress.json", orjson.dumps({"batches": 3, "applied": APPLIED}))
    made.put("owed.json", b'{"a": 1}')
    made.put("unfilled/orders", b"")
    made.copies.claim()
    return made


@pytest.fixture
def second(tmp_path, shared, clock):
    """Return a machine with an empty folder."""
    return Machine(tmp_path / "second", shared, clock)


def taken_over(machine):
    """Claim the copies after their owner has been silent."""
    with pytest.raises(SinkRunsElsewhereError):
        machine.copies.claim()
    machine.clock.wait(SILENT_FOR_S)
    return machine.copies.claim()


def test_an_empty_folder_gets_every_file_and_resumes(first, second):
    """
    The query continues at the applied offsets, because no checkpoint is copied.
    """
    first.put("checkpoint/commits/0")
    first.put(".held")
    first.copies.save()
    expected = {
        name: content
        for name, content in first.files().items()
        if name != "checkpoint/commits/0"
    }

    assert taken_over(second)
    assert second.files() == expected | {"resumes.json": orjson.dumps(APPLIED)}


def test_a_sink_without_copies_stores_its_folder(second, shared):
    """
    The first driver with copies has nothing to replace.
    """
    second.put("progress.json")

    assert not second.copies.claim()
    assert b"{}" == shared.records["progress.json#0"]


def test_a_large_file_is_stored_in_several_records(first, second, shared, monkeypatch):
    """
    A record has a size limit; a file that shrinks leaves no extra records.
    """
    monkeypatch.setattr(copies, "PART_BYTES", 4)
    first.put("owed.json", b"0123456789")
    first.copies.save()
    assert {"owed.json#0", "owed.json#1", "owed.json#2"} <= shared.records.keys()
    first.put("owed.json", b"01234")
    first.copies.save()

    assert "owed.json#2" not in shared.records
    assert taken_over(second)
    assert b"01234" == second.files()["owed.json"]


def test_a_deleted_file_is_deleted_from_the_copies(first, second, shared):
    """
    A refetch that has ended must not reappear.
    """
    (first.folder / "unfilled" / "orders").unlink()
    first.copies.save()

    assert "unfilled/orders#0" not in shared.records
    assert taken_over(second)
    assert "unfilled/orders" not in second.files()


def test_only_changes_and_periodic_beats_are_stored(first, shared):
    """
    Beats show that an idle driver is alive.
    """
    before = shared.writes
    first.copies.save()
    assert before == shared.writes
    first.clock.wait(BEAT_EVERY_S)
    first.copies.save()
    assert before + 1 == shared.writes
    records = dict(shared.records)
    first.put("owed.json", b'{"b": 22}')
    first.copies.save()

    changed = {k for k, v in shared.records.items() if records.get(k) != v}
    assert {"owner", "owed.json#0"} == changed


def test_a_file_that_changes_while_it_is_read_is_read_again(first, second, monkeypatch):
    """
    Pending refetches are stored before the progress: a copy contains both or neither.
    """
    read = Path.read_bytes

    def change_meanwhile(path):
        found = read(path)
        if path.name == "owed.json":
            monkeypatch.setattr(Path, "read_bytes", read)
            first.put("owed.json", b'{"refetch": "of the next batch"}')
            first.put("progress.json", orjson.dumps({"applied": {"t": {"0": 99}}}))
        return found

    first.put("owed.json", b'{"old": 1}')
    monkeypatch.setattr(Path, "read_bytes", change_meanwhile)
    first.copies.save()
    monkeypatch.setattr(Path, "read_bytes", read)

    assert taken_over(second)
    assert b'{"refetch": "of the next batch"}' == second.files()["owed.json"]
    assert b'{"t":{"0":99}}' == second.files()["resumes.json"]


def test_the_sink_of_a_driver_that_beats_is_not_taken_over(first, second):
    """
    The other machine's clock does not matter: this machine measures the silence.
    """
    for _ in range(5):
        with pytest.raises(SinkRunsElsewhereError):
            second.copies.claim()
        first.clock.wait(SILENT_FOR_S - 1)
        first.copies.save()

    with pytest.raises(SinkRunsElsewhereError):
        second.copies.claim()


def test_a_released_sink_is_taken_over_immediately(first, second):
    """
    There is no need to wait for a driver that was stopped.
    """
    first.copies.release()

    assert second.copies.claim()


def test_a_driver_that_was_taken_over_stores_nothing(first, second, shared):
    """
    The driver was believed dead, but continues to run.
    """
    taken_over(second)
    records = dict(shared.records)
    first.put("progress.json", orjson.dumps({"applied": {"t": {"0": 1}}}))

    with pytest.raises(SinkTakenOverError):
        first.copies.save()
    assert records == shared.records
    with pytest.raises(SinkRunsElsewhereError):
        first.copies.claim()


def test_the_folder_of_a_machine_that_returns_is_replaced(first, second):
    """
    The folder is older than the copies, whatever was applied after its last copy.
    """
    taken_over(second)
    second.put("progress.json", orjson.dumps({"applied": {"t": {"0": 50}}}))
    second.copies.release()
    first.put("checkpoint/commits/9")
    first.put("shapes.json", b"[]")

    assert first.restarted().copies.claim()
    files = first.files()
    assert b'{"t":{"0":50}}' == files["resumes.json"]
    assert {"checkpoint/commits/9", "shapes.json"}.isdisjoint(files)


def test_the_folder_of_a_machine_that_returns_after_a_loss_of_the_topic_is_replaced(
    first, second
):
    """
    After the loss, a different owner numbers the copies from the start again.
    """
    first.put("owed.json", b'{"former": 1}')
    first.copies.save()
    first.store.shared.records.clear()
    second.put("owed.json", b'{"newer": 1}')
    second.copies.claim()
    second.copies.release()

    assert first.restarted().copies.claim()
    assert b'{"newer": 1}' == first.files()["owed.json"]


def test_the_owners_own_folder_is_kept(first):
    """
    A restart on the same machine does not wait, and keeps its checkpoint.
    """
    first.put("checkpoint/commits/9")
    first.put("progress.json", orjson.dumps({"applied": {"t": {"0": 8}}}))

    assert not first.restarted().copies.claim()
    assert "checkpoint/commits/9" in first.files()


def test_a_record_of_another_program_replaces_no_folder(first):
    """
    After a loss of the topic, the other program's record is its only record.
    """
    first.put("checkpoint/commits/9")
    first.store.shared.records = {"\ufffd": b"x"}

    assert not first.restarted().copies.claim()
    assert "checkpoint/commits/9" in first.files()


def test_a_restored_backup_of_the_owners_folder_is_replaced(first):
    """
    Its id is the owner's, but its number is lower.
    """
    backup = {
        path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()
    }
    first.put("owed.json", b'{"later": 1}')
    first.copies.save()
    for path, content in backup.items():
        path.write_bytes(content)

    assert first.restarted().copies.claim()
    assert b'{"later": 1}' == first.files()["owed.json"]


@pytest.mark.parametrize("is_stored", [False, True])
def test_an_unanswered_copy_is_decided_by_the_next_claim(first, is_stored):
    """
    Until then, nothing is stored, so the driver claims before its next batch.
    """
    first.store.fails, first.store.loses_answer = not is_stored, is_stored
    first.put("owed.json", b'{"new": 1}')
    with pytest.raises(BrokerUnavailableError):
        first.copies.save()
    first.store.fails = first.store.loses_answer = False
    with pytest.raises(BrokerUnavailableError):
        first.copies.save()

    assert first.copies.claim() == is_stored
    assert b'{"new": 1}' == first.files()["owed.json"]
    assert b'{"new": 1}' == first.store.shared.records["owed.json#0"]


def test_an_interrupted_replacement_is_repeated(first, second, monkeypatch):
    """
    A half-replaced folder belongs to no owner.
    """
    replace = copies.replace_file
    written = []

    def die(path, content, **options):
        if written:
            message = "killed"
            raise KeyboardInterrupt(message)
        written.append(path)
        replace(path, content, **options)

    first.copies.release()
    monkeypatch.setattr(copies, "replace_file", die)
    with pytest.raises(KeyboardInterrupt):
        second.copies.claim()
    monkeypatch.setattr(copies, "replace_file", replace)

    assert second.restarted().copies.claim()
    assert first.files().keys() <= second.files().keys()


def test_an_owner_without_an_answer_begins_no_call_when_another_takes_over(
    first, second
):
    """
    It has not heard of the other driver, so its own clock decides.
    """
    with pytest.raises(SinkRunsElsewhereError):
        second.copies.claim()
    first.clock.wait(WRITES_FOR_S - 1)
    first.copies.check()
    first.clock.wait(1)
    with pytest.raises(SinkRunsElsewhereError, match="no state was stored"):
        first.copies.check()
    with pytest.raises(SinkRunsElsewhereError):
        second.copies.claim()


def test_an_owner_with_an_answer_may_write_again(first):
    """
    If no other driver has taken over meanwhile, a beat is enough.
    """
    first.clock.wait(SILENT_FOR_S)
    first.copies.beat()
    first.copies.check()


def test_the_time_to_write_counts_from_before_the_copy(first, monkeypatch):
    """
    The other driver may see the copy immediately, while the answer takes a long time.
    """
    write = first.store.write

    def write_slowly(records):
        write(records)
        first.clock.wait(WRITES_FOR_S)

    monkeypatch.setattr(first.store, "write", write_slowly)
    first.put("owed.json")
    first.copies.save()

    with pytest.raises(SinkRunsElsewhereError):
        first.copies.check()


@pytest.mark.parametrize("call", ["save", "check"])
def test_a_failed_beat_is_reported_by_the_next_call(first, call):
    """
    Batches must not continue without copies.
    """
    first.store.fails = True
    first.clock.wait(BEAT_EVERY_S)
    with pytest.raises(BrokerUnavailableError):
        first.copies.beat()
    first.store.fails = False
    with pytest.raises(BrokerUnavailableError):
        getattr(first.copies, call)()
    first.copies.claim()

    getattr(first.copies, call)()


def test_a_driver_beats_during_all_work_and_releases_at_the_end(
    first, second, shared, monkeypatch
):
    """
    The driver may wait for its first topic, or maintain its target, for a long time.
    """
    monkeypatch.setattr(copies, "BEAT_EVERY_S", 0.01)

    def has_beaten(before):
        first.clock.wait(1)
        return shared.writes > before

    with first.copies.kept():
        for before in (shared.writes, shared.writes + 1):
            until(lambda before=before: has_beaten(before), "it beats")
    second.copies.claim()

    assert not second.copies.was_running


def test_an_earlier_driver_may_have_calls_in_flight_unless_it_has_released(
    first, second, tmp_path, shared, clock
):
    """
    Floors wait for such calls.
    """
    taken_over(second)
    second.copies.release()
    third = Machine(tmp_path / "third", shared, clock)
    third.copies.claim()

    assert [False, True, False] == [
        machine.copies.was_running for machine in (first, second, third)
    ]


def test_copies_of_two_threads_are_stored_one_after_the_other(
    first, shared, monkeypatch
):
    """
    Otherwise the older state might be stored last.
    """
    seen, write, moment = [], first.store.write, copies._moment
    reads = threading.Event()

    def read(*given):
        seen.append("read")
        if len(seen) > 1:
            reads.set()
        return moment(*given)

    other = threading.Thread(target=first.copies.save)

    def write_while_the_other_reads(records):
        monkeypatch.setattr(first.store, "write", write)
        other.start()
        # The other thread must not read meanwhile: this wait is expected to time out.
        reads.wait(0.5)
        write(records)
        seen.append("written")

    monkeypatch.setattr(copies, "_moment", read)
    monkeypatch.setattr(first.store, "write", write_while_the_other_reads)
    first.put("owed.json", b"1")
    first.copies.save()
    other.join()

    assert ["read", "written", "read"] == seen
    assert b"1" == shared.records["owed.json#0"]


def test_a_file_that_is_replaced_by_one_of_equal_size_and_time_is_stored(first, shared):
    """
    The clock of a file system advances only every few milliseconds.
    """
    path = first.folder / "sweeps.json"
    for content in (b"[1]", b"[2]"):
        replace_file(path, content)
        os.utime(path, ns=(0, 0))
        first.copies.save()

    assert b"[2]" == shared.records["sweeps.json#0"]
