"""A sink is added, refilled, dropped and added again while everything else runs."""

import pytest

from support.sink_place import KEYS, ROUTE, SinkPlace, Writers
from support.valkey import Valkey
from support.waiting import until
from towpath.deploy.sinks import lifecycle
from towpath.settings import Kafka, load
from towpath.sinks.kafka.client import Topics
from towpath.sinks.state.progress import State, sink_folder
from towpath.sinks.targets.cache.client import connect

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with its relay, a broker and a cache."""
    stack.up("kafka", "redis")
    found = SinkPlace(stack, database, unique, tmp_path)
    yield found
    found.close()


@pytest.fixture
def other(rig):
    """Provide a cache that is down; once started, it outlives the driver."""
    server = Valkey(rig.folder / "other")
    yield server
    server.kill()


def spoil(rig):
    """Delete a row of the added sink, and plant a row that the source does not have."""
    client = connect(rig.url)
    lost = next(iter(client.scan_iter(f"{rig.prefix}:extra:*")))
    client.delete(lost)
    planted = {"_position": "0000000000000001.0000000000", "order_id": "0"}
    client.hset(f"{rig.prefix}:extra:order:0:no-0", mapping=planted)
    client.close()


def check_that_a_target_is_accepted_once_it_is_up(rig, server):
    """Configure a target that is down: its block is refused until the target is up."""
    before, url, after = rig.config.read_text().rpartition(rig.url)
    assert url
    rig.config.write_text(before + server.url + after)
    log = rig.folder / "driver.log"
    until(
        lambda: "sink block refused" in log.read_text(),
        "the block is refused",
        timeout_s=30,
    )
    server.start()
    until(lambda: server.client.dbsize() > KEYS, "the target is filled", timeout_s=90)


def sinks_with_topics(rig):
    """Return the sinks that have topics of their own."""
    names = {
        name.rpartition(".")[::2]
        for name in Topics(Kafka(bootstrap_servers=rig.kafka)).names()
    }
    return {
        sink
        for topic, sink in names
        if topic in {f"{rig.prefix}.dead", f"{rig.prefix}.shop.lines.backfill"}
    } - {"relay"}


@pytest.mark.soak
def test_a_sink_is_added_refilled_dropped_and_added_again(
    rig, other, monkeypatch, capsys
):
    """
    The sink always ends up equal to its source, and the other sink is not affected.

    A dropped sink leaves no topic behind. The first attempt to add the sink finds no
    driver; the second continues the first. A refill restores lost rows and removes
    planted ones. The sink's data is dropped while writers change the source. The sink
    is added again by hand: an operator runs the signal's INSERT, which the command
    prints. A target that was down when it was configured is used once it is up, without
    another change to the file.
    """
    rig.prepare()
    monkeypatch.setattr(lifecycle, "RUNNING_WITHIN_S", 0.1)
    until(lambda: rig.add("extra") == 3 and rig.is_declared("extra"), "declared")
    monkeypatch.setattr(lifecycle, "RUNNING_WITHIN_S", 150.0)
    with rig.driver():
        with Writers(rig.dsn, KEYS + 50, count=2):
            assert 0 == rig.add("extra"), capsys.readouterr()
            assert 2 == rig.add("extra")
            assert 0 == rig.towpath("refill", "plain")
            spoil(rig)
            assert 0 == rig.towpath("refill", "extra")
            assert "order:0:no-0" not in rig.held("extra")
            assert 0 == rig.towpath("check"), capsys.readouterr().out
            before = rig.progress("plain").batches

            assert 0 == rig.towpath("drop", "extra", "--data", "--yes")
            assert ({}, 0) == (rig.held("extra"), rig.progress("extra").batches)
            assert {"plain"} == sinks_with_topics(rig)
            until(
                lambda: rig.progress("plain").batches > before,
                "the other sink continues",
            )
            statement, printed = rig.add_by_hand("extra", "it's-mine")
            assert "'it''s-mine'" in statement
            assert "extra is ready" in printed
            until(lambda: rig.progress("extra").state is State.READY, "ready")
        rig.catch_up("extra")
        rig.catch_up("plain")
        check_that_a_target_is_accepted_once_it_is_up(rig, other)

    assert "sink failed" not in (rig.folder / "driver.log").read_text()
    assert rig.source() == rig.held("extra")
    assert rig.plain() == rig.held("plain")


def test_routes_that_do_not_fit_are_reported_before_anything_is_added(rig, capsys):
    """
    The file is not changed; all mistakes are reported, with the nearest names.
    """
    rig.prepare()
    rig.execute("update shop.lines set note = 'x' where order_id = 1")
    rig.confirm()
    before = rig.config.read_text()
    route = ROUTE.replace('["secret"]', '["secert", "order_id"]').replace("{no}", "1")
    path = rig.folder / "bad.toml"
    path.write_text(rig.block("bad", route))
    code = rig.towpath("add", str(path))
    printed = capsys.readouterr().err

    assert before == rig.config.read_text()
    assert (3, 3) == (code, sum(text in printed for text in _MISTAKES)), printed


WITHOUT_VIEW = """
[[sink]]
name = "bad"
kind = "search"
driver = "serving"
url = "{url}"
[[sink.route]]
topic = "outbox.event.order"
name = "bad"
kind = "aggregate"
state_types = ["OrderPlaced"]
"""


def test_a_sink_that_cannot_be_filled_is_not_declared(rig, monkeypatch, capsys):
    """
    The table is not captured, the aggregate has no view, or no relay is running.

    The file is not changed, and the sink leaves nothing behind.
    """
    monkeypatch.setattr(lifecycle, "RUNNING_WITHIN_S", 0.1)
    rig.prepare()
    rig.execute("create table shop.other (id int primary key)")
    before, path = rig.config.read_text(), rig.folder / "bad.toml"
    blocks = [
        (rig.block("bad").replace("shop.lines", "shop.other"), "shop.other"),
        (WITHOUT_VIEW.format(url="http://127.0.0.1:9"), "outbox.event.order"),
    ]
    outcomes = []
    for block, name in blocks:
        path.write_text(block)
        code = rig.towpath("add", str(path))
        outcomes.append((code != 0, name in capsys.readouterr().err))
    rig.kill()
    path.write_text(rig.block("bad", ROUTE))
    until(lambda: not rig.one(_ACTIVE, rig.prefix), "the slot is free")
    outcomes.append(
        (rig.towpath("add", str(path)), "no relay" in capsys.readouterr().err)
    )

    assert [(True, True), (True, True), (3, True)] == outcomes
    assert before == rig.config.read_text()
    assert not sink_folder(load(rig.config, {}).state_folder, "bad").exists()


_ACTIVE = "select active from pg_replication_slots where slot_name = %s"
_MISTAKES = (
    "exclude: no column secert; did you mean 'secret'?",
    "the key column order_id is left out",
    "in key order: {order_id}:{no}",
)
