"""The sinks that a driver starts, restarts and stops when its file changes."""

import errno
import threading
from datetime import UTC, datetime

import pytest
import structlog

from towpath.schemas.failure import ConfigurationError, UnavailableError
from towpath.settings import load
from towpath.sinks import __main__ as main
from towpath.sinks.engine import driver as module
from towpath.sinks.engine.driver import (
    EXECUTORS_WITHIN_S,
    Driver,
    ExecutorWatch,
    SinkSelection,
)
from towpath.sinks.engine.query import FINISH_WITHIN_S
from towpath.sinks.engine.session import Engine, settings_of
from towpath.sinks.engine.supervisor import SupervisorParts
from towpath.sinks.errors import SinkUnfitError
from towpath.sinks.state import files
from towpath.sinks.state.files import lock_sink
from towpath.sinks.state.progress import (
    Progress,
    progress_path,
    stored_progress,
    write_progress,
)

HEAD = """\
version = 1
state_folder = "state"
[[source]]
dsn = "postgresql://shop"
[kafka]
bootstrap_servers = "kafka:9092"
[registry]
url = "http://registry"
"""
SINK = """
[[sink]]
name = "{name}"
kind = "cache"
driver = "{driver}"
url = "redis://cache"
trigger_ms = {trigger_ms}
[[sink.route]]
topic = "towpath.shop.orders"
name = "{name}"
"""


class Clock:
    """A clock that the test sets."""

    now_s = 0.0

    def now(self):
        """Return a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self):
        """Return the test's time."""
        return self.now_s


class Supervisor:
    """A supervisor that runs nothing, and ends when the test requests it."""

    made: list["Supervisor"]

    def __init__(self, _spark, plan, parts, report, stop):
        self.sink = plan.sink
        self.plan = plan
        self.clock = parts.clock
        self.ends_at_s = None
        self.report = report
        self.stop = stop
        self.has_ended = False
        self.made.append(self)

    def start(self):
        """Begin."""

    def join(self, timeout_s):
        """Return whether it has ended; wait for an end that is scheduled."""
        if self.stop.is_set() and self.ends_at_s is not None:
            self.clock.now_s = min(self.clock.now_s + timeout_s, self.ends_at_s)
            return self.clock.now_s >= self.ends_at_s
        return self.has_ended

    def end(self):
        """End after a request to stop."""
        assert self.stop.is_set()
        self.has_ended = True


class DriverBench:
    """A driver, its file, and the results of its checks."""

    def __init__(self, folder):
        self.state = folder / "state"
        self.path = folder / "towpath.toml"
        self.checked = []
        self.answers = []
        self.clock = Clock()
        parts = SupervisorParts(None, None, None, None, self.clock, check=self._check)
        self.stop = threading.Event()
        choice = SinkSelection((), "serving")
        self.path.write_text(HEAD)
        started = load(self.path, {})
        self.driver = Driver(None, choice, started, self, parts, self.stop)
        self._is_new = False

    def write(self, *sinks, head=HEAD):
        """Write the file with sinks: names, or names with further options."""
        given = [one if isinstance(one, tuple) else (one, {}) for one in sinks]
        blocks = [
            SINK.format(**{"driver": "serving", "trigger_ms": 1} | more, name=name)
            for name, more in given
        ]
        self.path.write_text(head + "".join(blocks))
        self._is_new = True

    def changed(self):
        """Read the file if it has changed."""
        is_new, self._is_new = self._is_new, False
        return load(self.path, {}) if is_new else None

    def reload(self, *sinks):
        """Write the file and make the driver check it; return the running sinks."""
        if sinks:
            self.write(*sinks)
        self.driver._check_configuration()
        return [(one.sink.name, one.sink.trigger_ms) for one in running()]

    def _check(self, sink):
        self.checked.append(sink.name)
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer


def running():
    """List the supervisors without a request to stop."""
    return [one for one in Supervisor.made if not one.stop.is_set()]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Return a driver without an engine."""
    Supervisor.made = []
    monkeypatch.setattr(module, "Supervisor", Supervisor)
    made = DriverBench(tmp_path)
    yield made
    for left in made.driver._running.values():
        left.lock.release()


def test_added_and_removed_sinks_leave_others_running(bench):
    """
    The folder of a removed sink is free only once the sink has ended.
    """
    assert [("a", 1), ("b", 1)] == bench.reload("a", "b", ("x", {"driver": "other"}))
    assert [("b", 1), ("c", 1)] == bench.reload("b", "c")
    assert lock_sink(bench.state, "a") is None
    Supervisor.made[0].end()
    bench.reload()
    free = lock_sink(bench.state, "a")
    free.release()

    assert ["a", "b", "c"] == [one.sink.name for one in Supervisor.made]


def test_a_driver_keeps_its_state_folder_and_its_brokers(bench):
    """
    A sink that starts later uses the same state folder and brokers as the others.
    """
    moved = HEAD.replace('"state"', '"elsewhere"').replace("kafka:9092", "other:9092")
    bench.write("a", "b", head=moved)
    with structlog.testing.capture_logs() as logs:
        bench.reload()

    assert [(bench.state, "kafka:9092")] * 2 == [
        (one.plan.state_folder, one.plan.kafka.bootstrap_servers)
        for one in Supervisor.made
    ]
    assert not bench.state.with_name("elsewhere").exists()
    assert [["state_folder", "kafka"]] == [
        each["names"] for each in logs if "names" in each
    ]


@pytest.mark.parametrize("name", ["spark.sql.catalog.lake", "spark.eventLog.dir"])
def test_an_engine_with_a_configured_catalog_has_tables(tmp_path, name):
    """
    A sink from a package may use the catalog.
    """
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "one.jar").touch()
    path = tmp_path / "towpath.toml"
    path.write_text(f'{HEAD}[spark.settings]\n"{name}" = "x"\n')
    environ = {"JAVA_HOME": str(tmp_path)}
    engine = main.engine_for("a", load(path, {}), (), environ, tmp_path)

    assert engine.has_tables == name.startswith("spark.sql")


def test_new_settings_keep_the_state_folder_and_the_brokers(tmp_path):
    """
    Copies and repairs use the newest file, but must find the running sinks.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(HEAD)
    newest = main.NewestSettings(path, {}, load(path, {}))
    edited = HEAD.replace('"state"', '"elsewhere"').replace("kafka:9092", "other:9092")
    path.write_text(edited + SINK.format(name="a", driver="serving", trigger_ms=1))
    found = newest()

    assert (tmp_path / "state", "kafka:9092", ["a"]) == (
        found.state_folder,
        found.kafka.bootstrap_servers,
        [sink.name for sink in found.sink],
    )


def test_a_changed_sink_is_not_a_change_to_the_driver(bench):
    """
    The log names only settings that need a restart.
    """
    bench.reload("a")
    with structlog.testing.capture_logs() as logs:
        bench.reload("a", "b")

    assert [] == [each for each in logs if "names" in each]


@pytest.mark.parametrize(("more_s", "abandoned"), [(0, []), (60, ["a"])])
def test_a_stopping_driver_waits_as_long_as_a_stop_may_take(bench, more_s, abandoned):
    """
    A batch gets time to finish, and then the engine gets time to stop the query.
    """
    bench.reload("a")
    engine = Engine("a", (), bench.path.parent, "1g", {}, has_tables=False)
    stops_within = settings_of(engine, {})["spark.sql.streaming.stopTimeout"]
    stops_within_s = float(stops_within.removesuffix("s"))
    Supervisor.made[0].ends_at_s = FINISH_WITHIN_S + stops_within_s + more_s
    bench.stop.set()
    with structlog.testing.capture_logs() as logs:
        bench.driver.run()

    assert abandoned == [
        record["sink"] for record in logs if "abandoning it" in record["event"]
    ]


def test_a_sink_whose_folder_cannot_be_locked_does_not_end_the_driver(
    bench, monkeypatch
):
    """
    Without locks, as on some network file systems, the sink is retried and logged once.
    """

    def refuse(_file, _how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with structlog.testing.capture_logs() as logs:
        assert [] == bench.reload("a")
        assert [] == bench.reload()
    monkeypatch.undo()

    assert ["sink not started: retrying"] == [log["event"] for log in logs]


def test_a_sink_moved_to_another_driver_is_stopped(bench):
    """
    Its folder is then free for the other driver.
    """
    bench.reload("a")
    bench.reload(("a", {"driver": "other"}))
    Supervisor.made[0].end()
    bench.reload()
    free = lock_sink(bench.state, "a")

    assert free is not None
    free.release()


def test_a_changed_sink_is_restarted_once_the_old_one_has_ended(bench):
    """
    The two never run concurrently; other sinks continue. A change is handled once.
    """
    bench.reload("a", "b")
    changed = ("a", {"trigger_ms": 9})
    assert [("b", 1)] == bench.reload(changed, "b")
    assert [("b", 1)] == bench.reload()
    Supervisor.made[0].end()

    assert [("b", 1), ("a", 9)] == bench.reload()
    assert [("b", 1), ("a", 9)] == bench.reload(changed, "b")
    assert ["a"] == bench.checked


def test_an_invalid_block_leaves_the_sink_unchanged(bench):
    """
    The block's mistakes are logged once; the next change is checked again.
    """
    bench.reload("a")
    bench.answers = [SinkUnfitError("no column x\nno column y")]
    with structlog.testing.capture_logs() as logs:
        assert [("a", 1)] == bench.reload(("a", {"trigger_ms": 9}))
        assert [("a", 1)] == bench.reload()
    found = [log["mistakes"] for log in logs if log["log_level"] == "error"]

    assert [["no column x", "no column y"]] == found
    assert [] == bench.reload(("a", {"trigger_ms": 10}))


def test_a_refused_block_is_checked_again_after_a_while(bench):
    """
    Its target may be repaired while the file is unchanged; the refusal is logged once.
    """
    bench.reload("a")
    bench.answers = [SinkUnfitError("no cache"), SinkUnfitError("no cache")]
    seen = []
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            seen.append(bench.reload(("a", {"trigger_ms": 9})))
            seen.append(bench.reload())
            bench.clock.now_s += 11

    assert [[("a", 1)]] * 4 + [[], []] == seen
    assert (["a"] * 3, 1) == (
        bench.checked,
        sum(log["log_level"] == "error" for log in logs),
    )


def test_a_refused_block_is_shown_in_the_sinks_progress(bench):
    """
    The refusal remains there while the sink runs, until a valid block replaces it.
    """
    shown = []

    def note():
        shown.append(stored_progress(progress_path(bench.state, "a"), "a").refused)

    bench.reload("a")
    note()
    for block in ("a", ("a", {"trigger_ms": 10})):
        bench.answers = [SinkUnfitError("no column x\nno column y")]
        bench.reload(("a", {"trigger_ms": 9}))
        Supervisor.made[0].report.running()
        note()
        bench.reload(block)
        note()
    text = f"no column x; no column y. {SinkUnfitError.remedy}"

    assert [None, text, None, text, None] == shown


def test_a_new_driver_forgets_a_refused_block(bench):
    """
    The current file is in effect from the start of the new driver on.
    """
    path = progress_path(bench.state, "a")
    write_progress(path, Progress("a", refused="no column x."))
    bench.reload("a")

    assert stored_progress(path, "a").refused is None


def test_a_withdrawn_block_is_refused_again_when_it_returns(bench):
    """
    A block that is written twice is checked twice.
    """
    bench.reload("a")
    for _ in range(2):
        bench.answers = [SinkUnfitError("no column x")]
        bench.reload(("a", {"trigger_ms": 9}))
        bench.reload("a")

    assert ["a", "a"] == bench.checked


def test_a_block_that_cannot_be_checked_is_checked_again(bench):
    """
    An unavailable broker does not mean that the block is invalid.
    """
    bench.reload("a")
    bench.answers = [UnavailableError("no broker")]

    assert [("a", 1)] == bench.reload(("a", {"trigger_ms": 9}))
    assert [] == bench.reload()


def test_a_failing_sink_accepts_any_block(bench):
    """
    A failing sink has nothing to lose, and reports the remaining mistakes itself.
    """
    bench.reload("a")
    Supervisor.made[0].report.failed("no cache", remedy="Start it.", retry_after_s=1)
    bench.answers = [SinkUnfitError("no column x")]

    assert [] == bench.reload(("a", {"trigger_ms": 9}))
    assert [] == bench.checked


def test_a_supervisor_that_ended_by_itself_is_restarted(bench):
    """
    The sink shows the failure until it runs again; its folder remains locked.
    """
    bench.reload("a", "b")
    Supervisor.made[0].has_ended = True
    bench.reload()
    progress = stored_progress(progress_path(bench.state, "a"), "a")

    assert ["a", "b", "a"] == [one.sink.name for one in Supervisor.made]
    assert ("failed", True) == (progress.state, "ended unexpectedly" in progress.error)
    assert lock_sink(bench.state, "a") is None


def test_sinks_are_restarted_while_the_configuration_file_is_missing(bench):
    """
    Each check of the missing file fails; the last configuration remains in effect.
    """
    bench.reload("a", "b")
    bench.path.unlink()
    Supervisor.made[0].has_ended = True
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            bench._is_new = True
            bench.reload()

    assert ["a", "b", "a"] == [one.sink.name for one in Supervisor.made]
    assert 1 == [log["event"] for log in logs].count(
        "configuration not loaded: it has mistakes"
    )


def test_a_sink_whose_folder_cannot_be_created_is_retried(bench):
    """
    The other sinks run in the meantime.
    """
    in_the_way = bench.state / "sinks" / "a"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    with structlog.testing.capture_logs() as logs:
        assert [("b", 1)] == bench.reload("a", "b")
        assert [("b", 1)] == bench.reload()
    in_the_way.unlink()

    assert [("b", 1), ("a", 1)] == bench.reload()
    assert 1 == [log["event"] for log in logs].count("sink not started: retrying")


def test_a_sink_that_cannot_be_made_does_not_end_the_driver(bench, monkeypatch):
    """
    The other sinks run, and its folder is free for the next attempt.
    """
    bench.reload("a")

    def refuse(*_):
        raise ConfigurationError(["kafka.client: no such property"])

    monkeypatch.setattr(module, "Supervisor", refuse)
    with structlog.testing.capture_logs() as logs:
        assert [("a", 1)] == bench.reload("a", "b")
        assert [("a", 1)] == bench.reload()
    monkeypatch.setattr(module, "Supervisor", Supervisor)

    assert [("a", 1), ("b", 1)] == bench.reload()
    assert 1 == [log["event"] for log in logs].count("sink not started: retrying")


def test_a_sink_that_cannot_be_recreated_does_not_end_the_driver(bench, monkeypatch):
    """
    Its supervisor has ended; this is reported once, and the other sinks run.
    """
    bench.reload("a", "b")
    Supervisor.made[0].has_ended = True

    def refuse(*_):
        raise ConfigurationError(["kafka.client: no such property"])

    monkeypatch.setattr(module, "Supervisor", refuse)
    with structlog.testing.capture_logs() as logs:
        bench.reload()
        bench.reload()
    monkeypatch.setattr(module, "Supervisor", Supervisor)
    bench.reload()
    events = [log["event"] for log in logs]

    assert ["sink failed: retrying", "sink not started: retrying"] == events
    assert ["a", "b", "a"] == [one.sink.name for one in Supervisor.made]


def test_missing_executors_are_logged_once_and_so_is_the_end_of_the_wait():
    """
    A wait of half a minute for executors is logged; a shorter one is not.
    """
    clock = Clock()
    watch = ExecutorWatch(clock)
    seen = []
    # The time of each turn, and whether jobs are waiting.
    turns = (
        *((0, True), (EXECUTORS_WITHIN_S - 1, False), (EXECUTORS_WITHIN_S, True)),
        *((2 * EXECUTORS_WITHIN_S - 1, True), (2 * EXECUTORS_WITHIN_S, True)),
        *((70, True), (71, False), (72, False)),
    )
    for now_s, is_waiting in turns:
        clock.now_s = now_s
        with structlog.testing.capture_logs() as logs:
            watch.observe(is_waiting=is_waiting)
        seen.append([record["event"].partition(":")[0] for record in logs])

    logged = ["executor missing"], [], ["executor no longer awaited"], []
    assert [[], [], [], [], *logged] == seen
