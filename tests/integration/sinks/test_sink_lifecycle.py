"""A sink is added, refilled, dropped and added again, while all else goes on."""

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
def place(stack, database, unique, tmp_path):
    """Provide a source with its relay, a broker and a cache."""
    stack.up("kafka", "redis")
    found = SinkPlace(stack, database, unique, tmp_path)
    yield found
    found.close()


@pytest.fixture
def other(place):
    """Provide a cache that is down; once started, it outlives the driver."""
    server = Valkey(place.folder / "other")
    yield server
    server.kill()


def spoil(place):
    """Lose a row of the added sink, and plant one that the source does not have."""
    client = connect(place.url)
    lost = next(iter(client.scan_iter(f"{place.prefix}:extra:*")))
    client.delete(lost)
    planted = {"_position": "0000000000000001.0000000000", "order_id": "0"}
    client.hset(f"{place.prefix}:extra:order:0:no-0", mapping=planted)
    client.close()


def takes_a_target_once_it_serves(place, server):
    """Name a target that is down: its block is refused, and taken when it is up."""
    before, url, after = place.config.read_text().rpartition(place.url)
    assert url
    place.config.write_text(before + server.url + after)
    log = place.folder / "driver.log"
    until(
        lambda: "sink block refused" in log.read_text(), "it is refused", timeout_s=30
    )
    server.start()
    until(lambda: server.client.dbsize() > KEYS, "taken", timeout_s=90)


def sinks_with_topics(place):
    """Name the sinks that have topics of their own."""
    names = {
        name.rpartition(".")[::2]
        for name in Topics(Kafka(bootstrap_servers=place.kafka)).names()
    }
    return {
        sink
        for topic, sink in names
        if topic in {f"{place.prefix}.dead", f"{place.prefix}.shop.lines.backfill"}
    } - {"relay"}


@pytest.mark.soak
def test_a_sink_comes_is_filled_again_goes_and_comes_back(
    place, other, monkeypatch, capsys
):
    """
    It ends equal each time, as its route says; the other sink never notices.

    What goes leaves no topic behind. The first attempt to add it finds no driver: the
    second goes on with it. What was lost and what was planted is put right by a refill.
    Its data is dropped while the source is written to. It comes back by a row of SQL
    that a person inserts, as the command shows it. A target that was down when the
    file named it is taken once it serves, with nobody touching the file.
    """
    place.prepare()
    monkeypatch.setattr(lifecycle, "_RUNNING_WITHIN_S", 0.1)
    until(lambda: place.add("extra") == 3 and place.is_declared("extra"), "declared")
    monkeypatch.setattr(lifecycle, "_RUNNING_WITHIN_S", 150.0)
    with place.driver():
        with Writers(place.dsn, KEYS + 50, count=2):
            assert 0 == place.add("extra"), capsys.readouterr()
            assert 2 == place.add("extra")
            assert 0 == place.towpath("refill", "plain")
            spoil(place)
            assert 0 == place.towpath("refill", "extra")
            assert "order:0:no-0" not in place.held("extra")
            assert 0 == place.towpath("check"), capsys.readouterr().out
            before = place.progress("plain").batches

            assert 0 == place.towpath("drop", "extra", "--data", "--yes")
            assert ({}, 0) == (place.held("extra"), place.progress("extra").batches)
            assert {"plain"} == sinks_with_topics(place)
            until(lambda: place.progress("plain").batches > before, "others go on")
            statement, said = place.add_by_hand("extra", "it's-mine")
            assert "'it''s-mine'" in statement
            assert "extra is ready" in said
            until(lambda: place.progress("extra").state is State.READY, "ready")
        place.catch_up("extra")
        place.catch_up("plain")
        takes_a_target_once_it_serves(place, other)

    assert "sink failed" not in (place.folder / "driver.log").read_text()
    assert place.source() == place.held("extra")
    assert place.plain() == place.held("plain")


def test_routes_that_do_not_fit_are_reported_before_anything_is_added(place, capsys):
    """
    The file stays as it was; all mistakes are reported, with the nearest names.
    """
    place.prepare()
    place.execute("update shop.lines set note = 'x' where order_id = 1")
    place.confirm()
    before = place.config.read_text()
    route = ROUTE.replace('["secret"]', '["secert", "order_id"]').replace("{no}", "1")
    path = place.folder / "bad.toml"
    path.write_text(place.block("bad", route))
    code = place.towpath("add", str(path))
    printed = capsys.readouterr().err

    assert before == place.config.read_text()
    assert (3, 3) == (code, sum(text in printed for text in _MISTAKES)), printed


UNVIEWED = """
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


def test_a_sink_that_nobody_can_fill_is_not_declared(place, monkeypatch, capsys):
    """
    A table that is not captured, an aggregate without a view, and no relay at all.

    The file stays as it was, and nothing of the sink is left behind.
    """
    monkeypatch.setattr(lifecycle, "_RUNNING_WITHIN_S", 0.1)
    place.prepare()
    place.execute("create table shop.other (id int primary key)")
    before, path = place.config.read_text(), place.folder / "bad.toml"
    blocks = [
        (place.block("bad").replace("shop.lines", "shop.other"), "shop.other"),
        (UNVIEWED.format(url="http://127.0.0.1:9"), "outbox.event.order"),
    ]
    outcomes = []
    for block, name in blocks:
        path.write_text(block)
        code = place.towpath("add", str(path))
        outcomes.append((code != 0, name in capsys.readouterr().err))
    place.kill()
    path.write_text(place.block("bad", ROUTE))
    until(lambda: not place.one(_ACTIVE, place.prefix), "the slot is free")
    outcomes.append(
        (place.towpath("add", str(path)), "no relay" in capsys.readouterr().err)
    )

    assert [(True, True), (True, True), (3, True)] == outcomes
    assert before == place.config.read_text()
    assert not sink_folder(load(place.config, {}).state_folder, "bad").exists()


_ACTIVE = "select active from pg_replication_slots where slot_name = %s"
_MISTAKES = (
    "exclude: no column secert; did you mean 'secret'?",
    "the key column order_id is left out",
    "in key order: {order_id}:{no}",
)
