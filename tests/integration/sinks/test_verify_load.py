"""
The verifier while sessions write, a relay carries and a sink applies: no false alarm.

Everything is real but the engine: a thread carries the records into the sink.
"""

import json

import pytest
import redis

from support.follower import Follower
from support.snapshots import SnapshotRig
from support.writers import RandomWriters
from towpath.settings import load
from towpath.sinks.targets.cache.sink import CacheSink
from towpath.sinks.verify import __main__ as verifier
from towpath.sinks.verify.__main__ import VerifyOptions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 2_000


class Writers(RandomWriters):
    """Sessions that insert, update and delete, a few keys most of all."""

    pause_s = 0.005

    def change(self, connection, chance):
        is_hot = chance.random() < 0.3
        key = chance.randrange(3) if is_hot else chance.randrange(self.highest)
        if not is_hot and chance.random() < 0.2:
            connection.execute("delete from s.a where id = %s", [key])
            return
        connection.execute(
            "insert into s.a values (%s, %s, 'new')"
            " on conflict (id) do update set v = excluded.v, note = excluded.note",
            [key, chance.randrange(10**6)],
        )


class Rig(SnapshotRig):
    """A table, its relay and a cache."""

    def prepare(self, redis_url):
        """Make the table and write the configuration."""
        self.execute("create schema s")
        self.execute("create table s.a (id int primary key, v int, note text)")
        self.execute(
            "insert into s.a select g, g %% 7, 'old' from generate_series(1, %s) g",
            ROWS,
        )
        self.configure("[relay.snapshot]\nchunk_rows = 500\n", tables=("s.a",))
        self.config.write_text(
            self.config.read_text().replace(
                "version = 1", f'version = 1\nstate_folder = "{self.folder}"'
            )
            + f"""
[[sink]]
name = "it"
kind = "cache"
url = "{redis_url}"
[[sink.route]]
topic = "{self.prefix}.s.a"
name = "a"
"""
        )
        self.init()

    def ready(self):
        """Start the relay and let the cache be filled."""
        self.start()
        self.signal("fill", data_collections=["s.a"])
        self.wait_for_answer("fill")


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a relay that runs, and a cache that follows it."""
    stack.up("postgres", "kafka", "redis")
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.prepare(stack.redis_url)
    settings = load(made.config, {})
    (sink,) = settings.sink
    target = CacheSink(sink.url, unique, 3600)
    try:
        with Follower(settings, sink, target) as follower:
            made.follower = follower
            made.ready()
            made.wait_for(lambda: follower.applied_records >= ROWS)
            yield made
    finally:
        made.close()


@pytest.fixture
def hand(stack, unique):
    """Provide the hand that alters the cache."""
    with redis.Redis.from_url(stack.redis_url) as client:
        yield lambda verb, key, *words: getattr(client, verb)(
            f"{unique}:a:{key}", *words
        )


@pytest.fixture
def verify(rig, capsys):
    """Verify; return the exit code and the route's report."""

    def run(**options):
        code = verifier.verify(rig.config, "it", VerifyOptions(as_json=True, **options))
        printed = capsys.readouterr().out
        # In a test log lines go there too, before the document.
        (route,) = json.loads(printed[printed.index("{\n") :])["routes"]
        return code, route

    return run


def found(route):
    """Return kind and key of each difference."""
    return sorted((d["kind"], d["key"]) for d in route["first"])


def plant(hand):
    """Change, lose and invent rows that nobody writes."""
    hand("hset", 1901, "v", -1)
    hand("delete", 1902)
    hand("hset", 3000, "id", "3000")
    hand("hset", 3000, "_position", "0000000000000008.0000000000")
    hand("hset", 1903, "_x", "1")
    return [
        ("changed", "1901"),
        ("deleted", "1903"),
        ("extra", "3000"),
        ("missing", "1902"),
    ]


def test_nothing_is_alarmed_about_while_all_is_moving(rig, verify):
    """Pass after pass under load, whole and in samples, finds no difference."""
    with Writers(rig.dsn, 1900) as writers:
        codes = [verify()[0] for _ in range(2)]
        codes += [verify(sample=size)[0] for size in ("200", "20%")]
        writes = writers.writes

    assert ([0] * 4, True) == (codes, writes > 500)


@pytest.mark.soak
def test_defects_are_found_and_repaired_under_load(rig, verify, hand):
    """Just the planted ones, and after a repair through Kafka none."""
    with Writers(rig.dsn, 1900):
        planted = plant(hand)
        code, route = verify()
        repaired, after = verify(repairs=True)
        again, _ = verify()
    asked = rig.execute(
        "select target from towpath.snapshot where snapshot_id <> 'fill'"
    )

    assert (1, planted) == (code, found(route))
    assert (0, 4, 0, 0) == (repaired, after["repaired"], after["differences"], again)
    assert [("it",)] == asked


def test_what_claims_to_be_newer_is_not_repaired_by_what_is_older(verify, hand):
    """The guard refuses the row that is read again, and the report says so."""
    hand("hset", 7, "v", -1)
    hand("hset", 7, "_position", "f000000000000000.0000000000")
    code, route = verify(repairs=True)

    assert (1, [("changed", "7")], 0) == (code, found(route), route["repaired"])


def test_a_lost_update_is_found(rig, verify):
    """A sink that skips one change, and goes on, holds a stale version."""
    rig.follower.tamper = lambda changes: [c for c in changes if c.key != (11,)]
    rig.execute("update s.a set v = v + 1 where id in (11, 12)")
    code, route = verify()

    assert (1, [("changed", "11")]) == (code, found(route))
