"""A sink is dropped completely, even after interruptions, and no other is touched."""

import errno
import tomllib
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from towpath.cli import app
from towpath.deploy.errors import SinkHeldError, SourceUnreachableError
from towpath.deploy.sinks import dropping
from towpath.deploy.sinks.dropping import without_sink
from towpath.deploy.snapshots.signals import SignalAnswer, TableProgress
from towpath.schemas.failure import ConfigurationError, UnavailableError, UsageError
from towpath.settings import load
from towpath.sinks.errors import SinkExistsError, UnknownSinkError
from towpath.sinks.state.declare import (
    DROPPING_FILE,
    changing,
    store_starting_offsets,
)
from towpath.sinks.state.files import lock_sink

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
CACHE = """
# Rows by key.
[[sink]]
name = "cache"  # the first
kind = "cache"
url = "redis://cache"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders"
[sink.route.rename]
"[[sink]]" = "odd"
"""
SEARCH = """
# Rows to be found.
[[sink]]
name = "search"
kind = "search"
url = "http://search"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders"
"""
TAIL = """
# How topics are made.
[topics]
partitions = 2
"""


class Clock:
    """A clock that advances only in ``wait``."""

    def __init__(self):
        self.now_s = 0.0

    def now(self):
        """Return a fixed time."""
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self):
        """Return the seconds waited."""
        return self.now_s

    def wait(self, delay_s):
        """Advance the clock."""
        self.now_s += delay_s


class Broker:
    """A broker that has topics and refuses to delete some of them."""

    def __init__(self, *names, kept=()):
        self._names = list(names)
        self._kept = kept

    def names(self):
        """List the topics."""
        return self._names

    def delete(self, names):
        """Delete topics, except for those that are kept."""
        gone = set(names) - set(self._kept)
        self._names = [name for name in self._names if name not in gone]
        return {name: "not allowed" for name in names if name in self._kept}


def drop(config, planned, erase=None, **services):
    """Drop a sink; return the report."""
    lines = []
    usual = {"broker": Broker(), "clock": Clock(), "forget": lambda _sink: None}
    parts = {**usual, "report": lines.append, **services}
    environ = parts.pop("environ", {})
    dropping.carry_out_drop(
        config, environ, planned, dropping.DropServices(erase, **parts)
    )
    return lines


@pytest.fixture
def config(tmp_path):
    """Write a configuration with two sinks and some state for both."""
    path = tmp_path / "towpath.toml"
    path.write_text(HEAD + CACHE + SEARCH + TAIL)
    for name in ("cache", "search"):
        (tmp_path / "state/sinks" / name / "checkpoint").mkdir(parents=True)
        (tmp_path / "state/sinks" / name / "progress.json").write_text("{}")
    return path


def unreachable(*_):
    """Fail like an unreachable target."""
    message = "no target"
    raise UnavailableError(message)


def plan(config, *, deletes_data=True, name="cache"):
    """Plan to drop a sink."""
    return dropping.plan_drop(load(config, {}), name, deletes_data=deletes_data)


def test_the_published_progress_of_a_sink_is_deleted_before_its_data(config):
    """
    Otherwise a reader would believe that the deleted data is still in the target.
    """
    seen = []
    erase = lambda *_: seen.append("data")  # noqa: E731 - one call
    drop(config, plan(config), erase, forget=seen.append)

    assert ["cache", "data"] == seen


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cache", HEAD + SEARCH + TAIL),
        ("search", HEAD + CACHE + TAIL),
    ],
)
def test_a_sinks_block_is_removed_with_its_comments(name, text):
    """
    Everything else remains verbatim, even text that only looks like a block.
    """
    whole = HEAD + CACHE + SEARCH + TAIL

    assert text.split() == without_sink(whole, name).split()


def test_the_last_block_can_be_removed():
    """A file without sinks is still valid TOML."""
    assert "sink" not in tomllib.loads(without_sink(HEAD + CACHE, "cache"))


def test_a_block_that_cannot_be_separated_is_left():
    """
    The sinks may be in a one-line list, for example.
    """
    inline = 'sink = [{name = "a"}, {name = "b"}]\n'
    with pytest.raises(UsageError, match="cannot be separated from the rest"):
        without_sink(inline, "a")


def test_a_dropped_sink_leaves_nothing_behind(config, tmp_path):
    """The other sink keeps its block and its state."""
    erased = []
    drop(
        config,
        plan(config),
        lambda sink, prefix: erased.append((sink.name, prefix)),
    )

    assert [("cache", "towpath")] == erased
    assert ["search"] == [sink.name for sink in load(config, {}).sink]
    assert ["search"] == [path.name for path in (tmp_path / "state/sinks").iterdir()]


def test_a_drop_continues_after_another_drop_removed_its_block(config, tmp_path):
    """
    Both drops read the file first; the second one deletes the remaining state.
    """
    second = plan(config)
    text = config.read_text()

    class Late(Clock):
        """A clock that ends the other drop while this one waits for the file."""

        def wait(self, delay_s):
            super().wait(delay_s)
            config.write_text(text.replace(CACHE, ""))
            first.close()

    first = ExitStack()
    first.enter_context(changing(config, Clock()))
    lines = drop(config, second, clock=Late())

    assert [] == [line for line in lines if "the block of" in line]
    assert ["search"] == [sink.name for sink in load(config, {}).sink]
    assert ["search"] == [path.name for path in (tmp_path / "state/sinks").iterdir()]


def test_an_interrupted_drop_is_completed_by_the_next(config, tmp_path):
    """
    The data is deleted even if the option is not repeated; a new sink must wait for it.
    """
    sink = load(config, {}).sink[0]
    with pytest.raises(UnavailableError):
        drop(config, plan(config), unreachable)
    assert (tmp_path / "state/sinks/cache/checkpoint").exists()
    with pytest.raises(
        SinkExistsError, match="cache is not fully dropped: run towpath"
    ):
        store_starting_offsets(load(config, {}), sink, None, Clock())
    again = plan(config, deletes_data=False)
    assert (sink, True) == (again.sink, again.deletes_data)
    drop(config, again, lambda *_: None)

    assert not (tmp_path / "state/sinks/cache").exists()


def test_a_linked_configuration_remains_a_link_to_a_private_file(config, tmp_path):
    """
    The block is removed from the linked file, which keeps its mode.
    """
    config.chmod(0o600)
    link = tmp_path / "etc" / "towpath.toml"
    link.parent.mkdir()
    link.symlink_to(config)
    drop(link, plan(link), lambda *_: None)

    assert (True, 0o600) == (link.is_symlink(), config.stat().st_mode & 0o777)
    assert 'name = "cache"' not in config.read_text()
    assert not (tmp_path / "state/sinks/cache").exists()


def test_the_remaining_steps_are_written_before_the_block_is_removed(config, tmp_path):
    """
    Only the owner may read the file, because an address may contain a password.
    """
    held = lock_sink(tmp_path / "state", "cache")
    with pytest.raises(SinkHeldError):
        drop(config, plan(config), lambda *_: None)
    held.release()
    steps_file = tmp_path / "state/sinks/cache" / DROPPING_FILE

    assert 0o600 == steps_file.stat().st_mode & 0o777


def test_nothing_is_dropped_while_the_driver_has_the_sink(config, tmp_path):
    """
    The drop waits for the driver, and reports a timeout.
    """
    held = lock_sink(tmp_path / "state", "cache")
    clock = Clock()
    with pytest.raises(SinkHeldError, match=r"did not release \w+ within 60 s"):
        drop(config, plan(config), lambda *_: pytest.fail("erased"), clock=clock)
    held.release()

    assert (tmp_path / "state/sinks/cache/checkpoint").exists()
    assert clock.now_s >= 60


def test_a_sink_folder_has_one_lock_holder(tmp_path):
    """
    A released lock can be taken by the next process.
    """
    first = lock_sink(tmp_path, "cache")
    second = lock_sink(tmp_path, "cache")
    first.release()
    third = lock_sink(tmp_path, "cache")
    third.release()

    assert (True, None, True) == (first is not None, second, third is not None)


def test_an_unknown_sink_is_not_dropped(config):
    """The error lists the known sinks."""
    with pytest.raises(UnknownSinkError, match="cache, search"):
        plan(config, name="cash")


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "cache/checkpoint", "/tmp"])  # noqa: S108 - not used
def test_a_name_that_leads_to_a_different_folder_drops_nothing(name, config):
    """
    Otherwise an empty variable in a script would delete the state of all sinks.
    """
    with pytest.raises(UnknownSinkError, match="no sink can be named"):
        plan(config, name=name, deletes_data=False)


def test_state_left_behind_is_dropped(config, tmp_path):
    """
    After the block was removed by hand, only the state can be dropped, not the data.
    """
    config.write_text(HEAD + SEARCH + TAIL)
    with pytest.raises(UnknownSinkError):
        plan(config)
    drop(config, plan(config, deletes_data=False))

    assert not (tmp_path / "state/sinks/cache").exists()


def test_data_that_a_second_sink_also_writes_is_kept(config):
    """
    Two webhooks may have the same route names, but they then share the same data.
    """
    hook = SEARCH.replace('"search"', '"webhook"').replace("http:", "https:")
    hook = hook.replace(
        "[[sink.route]]",
        f"[sink.webhook]\nsecrets = ['whsec_{'QUJD' * 8}']\n[[sink.route]]",
    )
    twin = hook.replace('"webhook"', '"twin"', 1)
    config.write_text(config.read_text() + hook + twin)

    with pytest.raises(UsageError, match="twin also writes to orders"):
        plan(config, name="webhook")
    assert "webhook" == plan(config, name="webhook", deletes_data=False).sink.name


def test_a_table_that_a_second_warehouse_also_writes_is_kept(config, tmp_path):
    """Even an interrupted drop keeps it: the table has had a new writer since."""
    lake = SEARCH.replace('"search"', '"warehouse"').replace('"orders"', '"s.orders"')
    lake = lake.replace("http://search", "postgresql://lake")
    one, twin = (
        lake.replace('name = "warehouse"', f'name = "{name}"').replace(
            "[[sink.route]]", f'folder = "{name}"\n[[sink.route]]'
        )
        for name in ("lake", "twin")
    )
    config.write_text(HEAD + one + TAIL)
    (tmp_path / "state/sinks/lake").mkdir()
    with pytest.raises(UnavailableError):
        drop(config, plan(config, name="lake"), unreachable)
    config.write_text(HEAD + twin + TAIL)

    with pytest.raises(UsageError, match=r"twin also writes to s\.orders"):
        plan(config, name="lake")


def test_an_invalid_file_is_left_unchanged(config, tmp_path):
    """
    For example, an override of the dropped sink makes the file invalid.
    """
    text = config.read_text()
    environ = {"TOWPATH_SINK__CACHE__URL": "redis://other"}
    with pytest.raises(ConfigurationError):
        drop(config, plan(config), environ=environ)

    assert text == config.read_text()
    assert not (tmp_path / "state/sinks/cache" / DROPPING_FILE).exists()


def test_a_file_in_an_unwritable_folder_gives_one_clear_error(config, monkeypatch):
    """
    A configuration below /etc belongs to root.
    """

    def closed(_path, **_):
        raise PermissionError(errno.EACCES, "Permission denied")

    text = config.read_text()
    monkeypatch.setattr(Path, "touch", closed)
    with pytest.raises(UsageError, match="cannot be replaced: Permission denied"):
        drop(config, plan(config))

    assert text == config.read_text()


OWN = (
    "towpath.dead.cache",
    "towpath.shop.lines.backfill.cache",
    "towpath.shop.orders.backfill.cache",
)
OTHERS = (
    "other.shop.orders.backfill.cache",
    "towpath.dead.relay",
    "towpath.dead.search",
    "towpath.eu.shop.orders.backfill.cache",
    "towpath.shop.orders",
    "towpath.shop.orders.backfill.cache2",
    "towpath.shop.orders.backfill.search",
)


@pytest.fixture
def signals(monkeypatch):
    """Return the open snapshots, and the signals that were sent."""
    open_, sent = [], []
    module = dropping.signals
    monkeypatch.setattr(module, "progress", lambda _, own: open_ if own else [])
    monkeypatch.setattr(
        module, "send", lambda _, kind, fields: sent.append((kind, fields)) or "s1"
    )

    def answer(*_):
        sent.append("answered")
        return SignalAnswer("completed", {})

    monkeypatch.setattr(dropping, "wait_answer", answer)
    return open_, sent


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("deletes_data", [True, False])
def test_the_sinks_own_topics_are_deleted_and_listed(config, tmp_path, deletes_data):
    """
    Topics of its earlier routes are deleted; those of others are kept.
    """
    broker = Broker(*OWN, *OTHERS)
    outcome = drop(
        config, plan(config, deletes_data=deletes_data), lambda *_: None, broker=broker
    )

    assert list(OTHERS) == broker.names()
    assert [
        f"deleted: the block of cache in {config}",
        "deleted: all data of orders (cache)",
        *(f"deleted: topic {topic}" for topic in OWN),
        f"deleted: {tmp_path / 'state/sinks/cache'}",
    ] == outcome


def test_a_topic_that_the_broker_keeps_is_reported_with_its_reason(config):
    """
    The sink is dropped even without permission to delete topics.
    """
    broker = Broker(OWN[0], kept=OWN)
    outcome = drop(config, plan(config), broker=broker)

    assert f"kept: topic {OWN[0]}: not allowed" in outcome


def test_snapshots_for_a_sink_are_stopped_before_its_topics_are_deleted(
    config, signals
):
    """
    Otherwise the relay would hold rows for a deleted topic.
    """
    open_, sent = signals
    table = ("shop.orders", "cache")
    for number, state in enumerate(("running", "paused", "queued", "completed")):
        open_.append(
            TableProgress(f"f{number}", *table, state, 0, 0, None, None, None, None)
        )
    other = TableProgress("f9", "shop.orders", "search", "running", 0, 0, *[None] * 4)
    open_.append(other)
    broker = Broker(*OWN)
    broker.delete = lambda names: sent.append(sorted(names)) or {}
    drop(config, plan(config), broker=broker)
    stops = [("stop-snapshot", {"snapshot-id": f"f{number}"}) for number in range(3)]

    assert [part for stop in stops for part in (stop, "answered")] + [list(OWN)] == sent


def test_a_snapshot_that_the_relay_does_not_stop_is_not_reported_as_stopped(
    config, signals, monkeypatch
):
    """
    It may have ended between the listing and the signal; the relay gives the reason.
    """
    table = ("f1", "shop.orders", "cache", "running")
    signals[0].append(TableProgress(*table, 0, 0, *[None] * 4))
    refused = SignalAnswer("rejected", {"reason": "no open table"})
    monkeypatch.setattr(dropping, "wait_answer", lambda *_: refused)
    outcome = drop(config, plan(config), broker=Broker(*OWN))

    assert ["not stopped: snapshot f1: no open table"] == [
        line for line in outcome if "stopped" in line
    ]


def test_an_unavailable_source_does_not_prevent_a_drop(config, monkeypatch):
    """
    No snapshot can read from it, either; the outage is reported.
    """

    def fail(*_, **__):
        message = "the source does not answer"
        raise SourceUnreachableError(message)

    monkeypatch.setattr(dropping.signals, "progress", fail)
    broker = Broker(*OWN)
    outcome = drop(config, plan(config), broker=broker)

    assert [] == broker.names()
    assert any("could not be listed: the source does not answer" in t for t in outcome)


def test_a_closed_input_does_not_confirm_a_drop(config, monkeypatch, capsys):
    """
    Ctrl-D at the prompt means no.
    """

    def ended(_question):
        raise EOFError

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", ended)

    assert 1 == app.run(["sink", "drop", "cache", "--config", str(config)])
    assert "cache is kept" in capsys.readouterr().out


def test_a_multi_line_string_is_kept_verbatim():
    """
    Its empty lines are not treated as those between blocks.
    """
    select = "select 1\n\n\n\nfrom shop.orders"
    snapshot = f'[[relay.snapshot.select]]\ntable = "a.b"\nselect = """\n{select}"""\n'
    kept = tomllib.loads(without_sink(HEAD + CACHE + snapshot, "cache"))

    assert select == kept["relay"]["snapshot"]["select"][0]["select"]
