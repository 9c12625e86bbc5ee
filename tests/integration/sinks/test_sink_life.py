"""A sink is added, refilled, dropped and added again, while all else goes on."""

import pytest

from support.sink_place import KEYS, ROUTE, SinkPlace, Writers
from support.waiting import until
from towpath.deploy.cli import sink_life
from towpath.settings import Kafka
from towpath.sinks.cache.client import connect
from towpath.sinks.kafka import Topics
from towpath.sinks.progress import State

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.fixture
def place(stack, database, unique, tmp_path):
    """Lend a source with its relay, a broker and a cache."""
    stack.up("kafka", "redis")
    found = SinkPlace(stack, database, unique, tmp_path)
    yield found
    found.close()


def spoil(place):
    """Lose a row of the added sink, and plant one that the source does not have."""
    client = connect(place.url)
    lost = next(iter(client.scan_iter(f"{place.prefix}:extra:*")))
    client.delete(lost)
    planted = {"_position": "0000000000000001.0000000000", "order_id": "0"}
    client.hset(f"{place.prefix}:extra:order:0:no-0", mapping=planted)
    client.close()


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


def test_a_sink_comes_is_filled_again_goes_and_comes_back(place, monkeypatch, capsys):
    """
    It ends equal each time, as its route says; the other sink never notices.

    What goes leaves no topic behind. The first attempt to add it finds no driver: the
    second goes on with it. What was lost and what was planted is put right by a refill.
    Its data is dropped while the source is written to.
    """
    place.prepare()
    monkeypatch.setattr(sink_life, "_RUNNING_WITHIN_S", 0.1)
    until(lambda: place.add("extra") == 3 and place.is_declared("extra"), "declared")
    monkeypatch.setattr(sink_life, "_RUNNING_WITHIN_S", 150.0)
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
            assert 0 == place.add("extra"), capsys.readouterr()
            until(lambda: place.progress("extra").state is State.READY, "ready")
        place.catch_up("extra")
        place.catch_up("plain")

    assert "sink failed" not in (place.folder / "driver.log").read_text()
    assert place.source() == place.held("extra")
    assert place.plain() == place.held("plain")


def test_routes_that_do_not_fit_are_told_before_anything_is_added(place, capsys):
    """
    The file stays as it was; all mistakes are told, with the nearest names.
    """
    place.prepare()
    place.execute("update shop.lines set note = 'x' where order_id = 1")
    place.confirm()
    before = place.config.read_text()
    route = ROUTE.replace('["secret"]', '["secert", "order_id"]').replace("{no}", "1")
    path = place.folder / "bad.toml"
    path.write_text(place.block("bad", route))
    code = place.towpath("add", str(path))
    told = capsys.readouterr().err

    assert before == place.config.read_text()
    assert (3, 3) == (code, sum(text in told for text in _MISTAKES)), told


_MISTAKES = (
    "exclude: no column secert; did you mean 'secret'?",
    "the column order_id of the key is left out",
    "in key order: {order_id}:{no}",
)
