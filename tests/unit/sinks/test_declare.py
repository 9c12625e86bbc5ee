"""A new sink is declared in an order that loses nothing."""

import errno
import threading
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from support.published import OneDriver
from towpath.schemas.failure import ConfigurationError, UnavailableError, UsageError
from towpath.settings import load
from towpath.sinks.errors import SinkExistsError, SinkNotRunningError, UnknownSinkError
from towpath.sinks.state import declare
from towpath.sinks.state.progress import (
    Progress,
    State,
    progress_path,
    stored_progress,
)

CONFIG = """\
version = 1
state_folder = "state"
[[source]]
dsn = "postgresql://shop"
[kafka]
bootstrap_servers = "kafka:9092"
[registry]
url = "http://registry"
[[sink]]
name = "cache"
kind = "cache"
url = "redis://cache"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders"
"""
BLOCK = """
[[sink]]
name = "search2"
kind = "search"
url = "http://search"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders2"
"""


class Cluster:
    """Topics with fixed ends; records which topics were created."""

    def __init__(self, *, fail=False):
        self._fail = fail
        self.made = []
        self.has_answered = False

    def create(self, name, _settings):
        """Make a topic."""
        self.made.append(name)

    def names(self):
        """List the topics."""
        if self._fail:
            message = "no broker"
            raise UnavailableError(message)
        return ["towpath.shop.orders", "towpath.shop.orders.backfill.cache"]

    def topic_ids(self, names):
        """Return their ids, or none once their ends have been requested."""
        return {name: f"{name}'s" for name in names if not self.has_answered}

    def end_offsets(self, names):
        """Return the ends."""
        self.has_answered = True
        return {name: {"0": 40, "1": 2} for name in names}


class Clock:
    """A clock that advances only in ``wait``."""

    def __init__(self):
        self._now_s = 0.0

    def now(self):
        """Return a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self):
        """Return the seconds waited."""
        return self._now_s

    def wait(self, delay_s):
        """Advance the clock."""
        self._now_s += delay_s


class WaitingClock(Clock):
    """A clock that signals the beginning of a wait, and really waits."""

    def __init__(self, begun):
        super().__init__()
        self._begun = begun

    def wait(self, delay_s):
        """Advance the clock, signal the wait, and wait briefly."""
        super().wait(delay_s)
        self._begun.set()
        threading.Event().wait(0.01)


@pytest.fixture
def config(tmp_path):
    """Write a configuration with one sink."""
    path = tmp_path / "towpath.toml"
    path.write_text(CONFIG)
    return path


def test_a_declared_sink_has_its_offsets_and_its_block(config, tmp_path):
    """The backfill topics of other sinks are not among its topics."""
    sink = declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())
    stored = tmp_path / "state/sinks/search2/starting_offsets.json"

    assert ("search2", ["cache", "search2"], {"towpath.shop.orders": [40, 2]}) == (
        sink.name,
        [s.name for s in load(config, {}).sink],
        {
            topic: list(partitions.values())
            for topic, partitions in orjson.loads(stored.read_bytes()).items()
        },
    )


def test_a_linked_configuration_remains_a_link_to_a_private_file(config, tmp_path):
    """
    The file gets the new block and keeps its mode; the state folder is beside it.
    """
    config.chmod(0o600)
    link = tmp_path / "etc" / "towpath.toml"
    link.parent.mkdir()
    link.symlink_to(config)
    declare.declare_sink(link, BLOCK, {}, Cluster(), Clock())

    assert (True, 0o600) == (link.is_symlink(), config.stat().st_mode & 0o777)
    assert ["cache", "search2"] == [s.name for s in load(config, {}).sink]
    assert (tmp_path / "state/sinks/search2/starting_offsets.json").exists()
    assert {"etc", "state", config.name} == {each.name for each in tmp_path.iterdir()}


def test_a_folder_that_cannot_be_written_gives_one_clear_error(config, monkeypatch):
    """
    A configuration in /etc, for example, is owned by root.
    """

    def closed(_path, **_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "touch", closed)
    with pytest.raises(UsageError, match="cannot be replaced: Permission denied"):
        declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())

    assert CONFIG == config.read_text()


def other_sink(number):
    """Return the block of a sink that another command adds."""
    return BLOCK.replace("search2", f"search{number}").replace("orders2", f"o{number}")


def test_concurrent_commands_keep_each_others_changes(config):
    """
    The second command reads the file only after the first has replaced it.
    """
    threads, begun = [], threading.Event()

    def check(*_):
        if not threads:
            again = (config, other_sink(3), {}, Cluster(), WaitingClock(begun))
            threads.append(threading.Thread(target=declare.declare_sink, args=again))
            threads[0].start()
            assert begun.wait(10)

    declare.declare_sink(config, BLOCK, {}, Cluster(), Clock(), check)
    threads[0].join(10)

    assert ["cache", "search2", "search3"] == [s.name for s in load(config, {}).sink]


def test_a_file_that_remains_locked_gives_one_error(config):
    """
    The second command changes nothing, and deletes no file of the first.
    """
    with (
        declare.changing(config, Clock()),
        pytest.raises(UsageError, match="another command is changing"),
    ):
        declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())

    assert CONFIG == config.read_text()
    assert [config.name] == [each.name for each in config.parent.iterdir()]


def test_a_lock_that_cannot_be_taken_is_named(config):
    """
    For example, another user's command that was killed may have left the lock.
    """
    config.with_name(f".{config.name}.lock").mkdir()
    with pytest.raises(UsageError, match=r"replaced: .*\.toml\.lock: Is a directory"):
        declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())

    assert CONFIG == config.read_text()


def test_a_variable_may_override_the_new_sink(config):
    """
    The variable is valid only for a file that has the block.
    """
    environ = {"TOWPATH_SINK__SEARCH2__URL": "http://other:9200"}
    sink = declare.declare_sink(config, BLOCK, environ, Cluster(), Clock())

    assert "http://other:9200" == sink.url


def test_a_declared_sink_stores_the_ids_of_its_topics(config, tmp_path):
    """
    The offsets do not apply to a topic that is recreated before the sink's first start.
    """
    declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())
    stored = (tmp_path / "state/sinks/search2/topic_ids.json").read_bytes()

    assert {"towpath.shop.orders": "towpath.shop.orders's"} == orjson.loads(stored)


@pytest.mark.parametrize(
    ("block", "cluster", "error"),
    [
        (BLOCK.replace("search2", "cache"), Cluster(), SinkExistsError),
        (BLOCK.replace("url", "address"), Cluster(), ConfigurationError),
        (BLOCK.replace('"search2"', '"search2'), Cluster(), ConfigurationError),
        (BLOCK + f"x = {'9' * 5_000}", Cluster(), ConfigurationError),
        (BLOCK + f"x = {'[' * 5_000}", Cluster(), ConfigurationError),
        ("standby = true\n" + BLOCK, Cluster(), ConfigurationError),
        ('constants = { region = "eu" }\n' + BLOCK, Cluster(), ConfigurationError),
        ("transforms = []\n" + BLOCK, Cluster(), ConfigurationError),
        ("sink = 1", Cluster(), ConfigurationError),
        ("", Cluster(), SinkExistsError),
        (BLOCK + BLOCK.replace("2", "3"), Cluster(), SinkExistsError),
        (BLOCK, Cluster(fail=True), UnavailableError),
    ],
)
def test_an_invalid_block_changes_nothing(config, block, cluster, error):
    """
    The configuration is unchanged, and no temporary file is left in its folder.
    """
    with pytest.raises(error):
        declare.declare_sink(config, block, {}, cluster, Clock())

    assert (CONFIG, [config]) == (
        config.read_text(),
        [path for path in config.parent.iterdir() if path.is_file()],
    )


def test_a_backfill_topic_exists_before_the_query_starts(config):
    """
    The engine fails if a topic appears between its listing of topics and its start.
    """
    cluster = Cluster()
    declare.declare_sink(config, BLOCK, {}, cluster, Clock())

    assert ["towpath.shop.orders.backfill.search2"] == cluster.made


def test_an_already_declared_sink_is_resumed(config, tmp_path):
    """
    Adding it again after a crash changes nothing, even after the sink has run.
    """
    first = declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())
    text = config.read_text()
    (tmp_path / "state/sinks/search2/checkpoint").mkdir(parents=True)
    cluster = Cluster()
    again = declare.declare_sink(config, f"# later\n{BLOCK}", {}, cluster, Clock())

    assert (first, text, []) == (again, config.read_text(), cluster.made)


def test_a_filled_sink_is_not_added_again(config):
    """
    A refill has a command of its own.
    """
    declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())
    declare.mark_ready(load(config, {}), "search2")

    with pytest.raises(SinkExistsError, match="is already declared and filled"):
        declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())


def test_a_different_sink_with_a_declared_name_is_refused(config):
    """
    The declared sink is unchanged.
    """
    declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())

    with pytest.raises(SinkExistsError, match="is declared with a different block"):
        declare.declare_sink(
            config, BLOCK.replace("orders2", "orders3"), {}, Cluster(), Clock()
        )


def test_a_declared_sink_has_applied_records_below_its_start(config):
    """
    These records count as applied even before its first batch.
    """
    declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())
    settings = load(config, {})
    progress = stored_progress(
        progress_path(settings.state_folder, "search2"), "search2"
    )
    ends = declare.sink_ends(settings, "search2", Cluster())

    assert (State.STARTING, 0) == (
        progress.state,
        declare.records_between(progress.applied, ends),
    )


def test_a_name_with_an_old_checkpoint_is_refused(config, tmp_path):
    """
    Its query would continue from the old checkpoint, not from the declared offsets.
    """
    (tmp_path / "state/sinks/search2/checkpoint").mkdir(parents=True)

    with pytest.raises(SinkExistsError, match="has run before"):
        declare.declare_sink(config, BLOCK, {}, Cluster(), Clock())


def driver(state=State.RUNNING, **fields):
    """Return the driver of a sink."""
    progress = {
        name: fields.pop(name) for name in ("applied", "error") if name in fields
    }
    return OneDriver(Progress("cache", state, **progress), **fields)


@pytest.mark.parametrize("state", [State.RUNNING, State.READY])
def test_the_wait_for_a_declared_sink_ends_when_it_runs(config, state):
    """Both states mean that the query is running."""
    clock = Clock()
    declare.wait_running(load(config, {}), "cache", driver(state), clock, 10)

    assert clock.monotonic_s() == 0


def test_a_declared_sink_that_does_not_run_reports_its_error(config):
    """
    The wait ends with the sink's own error.
    """
    failed = driver(State.FAILED, error="the cache does not answer")

    with pytest.raises(SinkNotRunningError, match="the cache does not answer"):
        declare.wait_running(load(config, {}), "cache", failed, Clock(), 10)


@pytest.mark.parametrize(
    "ended", [driver(silent_s=99), driver(is_running=False), OneDriver()]
)
def test_progress_of_an_earlier_driver_does_not_count_as_running(config, ended):
    """
    Otherwise a snapshot would be requested for a sink that no driver runs.
    """
    with pytest.raises(SinkNotRunningError, match="no driver runs it: run towpath"):
        declare.wait_running(load(config, {}), "cache", ended, Clock(), 10)


@pytest.mark.parametrize(
    "ended",
    [
        driver(applied={"a": {"0": 9}}, silent_s=99),
        driver(applied={"a": {"0": 9}}, is_running=False),
        driver(applied={"a": {"0": 9}}, is_open=False),
    ],
)
def test_records_applied_by_an_earlier_driver_do_not_count(ended):
    """
    Otherwise a new index would replace the old one before it is filled.
    """
    with pytest.raises(SinkNotRunningError, match="9 records behind"):
        declare.wait_applied("cache", {"a": {"0": 9}}, ended, Clock(), 1)


def test_a_lagging_sink_reports_its_lag():
    """
    The records that were not applied in time are counted.
    """
    lagging = driver(applied={"a": {"0": 7}})

    with pytest.raises(SinkNotRunningError, match="5 records behind"):
        declare.wait_applied("cache", {"a": {"0": 9, "1": 3}}, lagging, Clock(), 1)


def test_the_wait_continues_while_a_sink_makes_progress():
    """
    The limit applies to the time between two batches, not to the total.
    """
    one = driver(applied={"a": {"0": 0}})

    class ApplyingClock(Clock):
        def wait(self, delay_s):
            super().wait(delay_s)
            applied = {"a": {"0": int(self.monotonic_s())}}
            one.set(Progress("cache", State.RUNNING, applied))

    clock = ApplyingClock()
    declare.wait_applied("cache", {"a": {"0": 9}}, one, clock, 1.5)

    assert clock.monotonic_s() >= 9


def test_the_wait_survives_an_outage_of_the_broker():
    """
    A fill takes hours; a restart of Kafka must not abort it.
    """
    one, outages = driver(applied={"a": {"0": 9}}), []

    class RestartingDriver(OneDriver):
        def read(self, sink):
            if len(outages) < 3:
                outages.append(sink)
                message = "Kafka does not answer"
                raise UnavailableError(message)
            return one.read(sink)

    declare.wait_applied("cache", {"a": {"0": 9}}, RestartingDriver(), Clock(), 1)
    outages.clear()
    with pytest.raises(SinkNotRunningError, match="behind: Kafka does not answer"):
        declare.wait_applied("cache", {"a": {"0": 9}}, RestartingDriver(), Clock(), 0.3)


@pytest.mark.parametrize(
    ("has_answered", "count"), [(True, "2"), (False, "an unknown number of")]
)
def test_an_outage_does_not_change_the_count_of_a_lagging_sink(has_answered, count):
    """
    The last known count remains; without any, the message says that it is unknown.
    """

    class UnavailableDriver(OneDriver):
        def read(self, sink):
            if self.progress is None:
                message = "Kafka does not answer"
                raise UnavailableError(message)
            received, self.progress = super().read(sink), None
            return received

    known = Progress("cache", State.RUNNING, {"a": {"0": 7}})
    source = UnavailableDriver(known if has_answered else None)

    reason = f"is {count} records behind: Kafka does not answer"
    with pytest.raises(SinkNotRunningError, match=reason):
        declare.wait_applied("cache", {"a": {"0": 9}}, source, Clock(), 1)


def test_applied_topics_end_the_wait_immediately():
    """
    Topics outside the request do not count.
    """
    ahead = driver(applied={"a": {"0": 9}, "b": {"0": 1}})
    clock = Clock()
    declare.wait_applied("cache", {"a": {"0": 9}}, ahead, clock, 1)

    assert clock.monotonic_s() == 0


def test_the_remaining_work_is_counted_in_records(config):
    """
    Topics that exist and were never read are counted in full.
    """
    ends = declare.sink_ends(load(config, {}), "cache", Cluster())
    applied = {"towpath.shop.orders": {"0": 30}}

    assert 10 + 2 + 42 == declare.records_between(applied, ends)


def test_the_error_for_an_unknown_sink_lists_the_known_sinks(config):
    """
    The operator sees immediately which names are valid.
    """
    with pytest.raises(UnknownSinkError, match=r"no sink is named cash; .*: cache"):
        declare.sink_named(load(config, {}), "cash")


def test_a_filled_sink_is_marked_ready(config, tmp_path):
    """
    The mark is a file that the driver reads.
    """
    declare.mark_ready(load(config, {}), "cache")

    assert (tmp_path / "state/sinks/cache/ready").exists()
