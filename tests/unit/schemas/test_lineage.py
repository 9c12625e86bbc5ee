"""
The reporting of runs to catalogs: when it is off, and when it falls behind.
"""

import threading
import weakref

import pytest

from support.waiting import until
from towpath.schemas.clock import SystemClock
from towpath.schemas.lineage import (
    NO_REPORTER,
    BackgroundReporter,
    Job,
    JobDatasets,
    RunState,
    lineage_folders,
    start_lineage,
)


@pytest.mark.parametrize(
    "environ",
    [
        {"OPENLINEAGE_URL": "no-address"},
        {"OPENLINEAGE__TRANSPORT__TYPE": "unknown"},
        {"OPENLINEAGE__TRANSPORT__TYPE": "kafka"},
    ],
)
def test_reporting_with_settings_that_openlineage_refuses_is_off(
    monkeypatch, tmp_path, environ
):
    """
    The process starts, and the reason is reported.
    """
    monkeypatch.chdir(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = []
    reporter = start_lineage(environ, [tmp_path], found.append)

    assert (NO_REPORTER, 1) == (reporter, len(found))


def test_a_folder_that_cannot_be_read_has_no_lineage_file(monkeypatch, tmp_path):
    """
    With ProtectHome, a service cannot read its user's home.
    """

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.stat", refuse)

    assert NO_REPORTER is start_lineage({}, [tmp_path], pytest.fail)


def test_without_a_home_directory_only_one_lineage_folder_is_searched(monkeypatch):
    """
    For example, the user of a container may be a number without a passwd entry.
    """
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 9)

    assert 1 == len(lineage_folders())


class RunId(str):
    """A run's id that can be weakly referenced."""

    __slots__ = ("__weakref__",)


class CountedIds:
    """Makes the ids of runs, and tracks those that are still in use."""

    def __init__(self):
        self.alive = weakref.WeakSet()
        self.count = 0

    def __call__(self):
        """Return itself in place of a UUID."""
        return self

    def __str__(self):
        self.count += 1
        made = RunId(self.count)
        self.alive.add(made)
        return made


def test_a_run_whose_events_are_all_lost_is_forgotten(monkeypatch):
    """
    Nothing keeps an ended run in memory until the process ends.
    """
    ids, may_send, sent, problems = CountedIds(), threading.Event(), [], []
    monkeypatch.setattr("uuid.uuid4", ids)

    def send(event, _datasets):
        may_send.wait()
        sent.append((event.job.name, event.state))

    reporter = BackgroundReporter(send, problems.append, running_every_s=0.01)
    reporter.start(Job("running", "RELAY", JobDatasets))
    known = reporter.start(Job("known", "SNAPSHOT", JobDatasets))
    while not problems:
        reporter.start(Job("short", "SNAPSHOT", JobDatasets)).end()
    for _ in range(3):
        reporter.start(Job("lost", "SNAPSHOT", JobDatasets)).end()
    known.end()
    may_send.set()
    until(lambda: ("running", RunState.RUNNING) in sent, "the queue is empty")
    reporter.close()
    del known

    assert {"running"} == {name for name, state in sent if state is RunState.RUNNING}
    assert 1 == len(ids.alive)


def test_a_full_queue_is_sent_when_the_process_stops():
    """
    A slow receiver gets the events within the time that a stop may take.
    """
    may_send, sent, problems = threading.Event(), [], []

    def send(event, _datasets):
        may_send.wait()
        SystemClock().wait(0.001)
        sent.append(event.run_id)

    reporter = BackgroundReporter(send, problems.append)
    started = 0
    while not problems:
        reporter.start(Job("a", "SNAPSHOT", JobDatasets))
        started += 1
    closing = threading.Thread(target=reporter.close)
    closing.start()
    # Without the wait for space in the queue, the thread would have ended by now.
    closing.join(0.05)
    may_send.set()
    closing.join()

    assert started - reporter.lost == len(sent)
