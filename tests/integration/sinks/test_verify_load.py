"""
The verifier raises no false alarm while sessions write and a sink applies changes.

Everything is real except the engine: a thread applies the records to the sink.
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
    """Sessions that insert, update and delete rows; three keys are hot."""

    pause_s = 0.005

    def change(self, connection, rng):
        is_hot = rng.random() < 0.3
        key = rng.randrange(3) if is_hot else rng.randrange(self.highest)
        if not is_hot and rng.random() < 0.2:
            connection.execute("delete from s.a where id = %s", [key])
            return
        connection.execute(
            "insert into s.a values (%s, %s, 'new')"
            " on conflict (id) do update set v = excluded.v, note = excluded.note",
            [key, rng.randrange(10**6)],
        )


class Rig(SnapshotRig):
    """A table, its relay and a cache."""

    def prepare(self, redis_url):
        """Create the table, and write the configuration."""
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

    def fill(self):
        """Start the relay, and fill the cache."""
        self.start()
        self.signal("fill", data_collections=["s.a"])
        self.wait_for_answer("fill")


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a running relay, and a cache that follows it."""
    stack.up("postgres", "kafka", "redis")
    made = Rig(database, stack.kafka, unique, tmp_path)
    made.prepare(stack.redis_url)
    settings = load(made.config, {})
    (sink,) = settings.sink
    target = CacheSink(sink.url, unique, 3600)
    try:
        with Follower(settings, sink, target) as follower:
            made.follower = follower
            made.fill()
            made.wait_for(lambda: follower.applied_records >= ROWS)
            yield made
    finally:
        made.close()


@pytest.fixture
def edit(stack, unique):
    """Provide a function that alters the cache, bypassing the sink."""
    with redis.Redis.from_url(stack.redis_url) as client:
        yield lambda verb, key, *arguments: getattr(client, verb)(
            f"{unique}:a:{key}", *arguments
        )


@pytest.fixture
def verify(rig, capsys):
    """
    Provide a function that verifies; it returns the exit code and the route's report.
    """

    def run(**options):
        code = verifier.verify(rig.config, "it", VerifyOptions(as_json=True, **options))
        printed = capsys.readouterr().out
        # In a test, the output also has the log, before the document.
        (route,) = json.loads(printed[printed.index("{\n") :])["routes"]
        return code, route

    return run


def found(route):
    """Return the kind and the key of each difference."""
    return sorted((d["kind"], d["key"]) for d in route["first"])


def plant(edit):
    """Plant defects at keys that no session writes; return the expected differences."""
    edit("hset", 1901, "v", -1)
    edit("delete", 1902)
    edit("hset", 3000, "id", "3000")
    edit("hset", 3000, "_position", "0000000000000008.0000000000")
    edit("hset", 1903, "_x", "1")
    return [
        ("changed", "1901"),
        ("deleted", "1903"),
        ("extra", "3000"),
        ("missing", "1902"),
    ]


def test_no_difference_is_reported_under_load(rig, verify):
    """Repeated passes under load, complete and with samples, find no difference."""
    with Writers(rig.dsn, 1900) as writers:
        codes = [verify()[0] for _ in range(2)]
        codes += [verify(sample=size)[0] for size in ("200", "20%")]
        writes = writers.writes

    assert ([0] * 4, True) == (codes, writes > 500)


@pytest.mark.soak
def test_defects_are_found_and_repaired_under_load(rig, verify, edit):
    """Only the planted defects are found, and none after a repair through Kafka."""
    with Writers(rig.dsn, 1900):
        planted = plant(edit)
        code, route = verify()
        repaired, after = verify(repairs=True)
        again, _ = verify()
    targets = rig.execute(
        "select target from towpath.snapshot where snapshot_id <> 'fill'"
    )

    assert (1, planted) == (code, found(route))
    assert (0, 4, 0, 0) == (repaired, after["repaired"], after["differences"], again)
    assert [("it",)] == targets


def test_a_row_with_a_newer_position_is_not_repaired(verify, edit):
    """The guard rejects the row that is read again, and the report says so."""
    edit("hset", 7, "v", -1)
    edit("hset", 7, "_position", "f000000000000000.0000000000")
    code, route = verify(repairs=True)

    assert (1, [("changed", "7")], 0) == (code, found(route), route["repaired"])


def test_a_lost_update_is_found(rig, verify):
    """A sink that skips one change and continues has a stale version."""
    rig.follower.tamper = lambda changes: [c for c in changes if c.key != (11,)]
    rig.execute("update s.a set v = v + 1 where id in (11, 12)")
    code, route = verify()

    assert (1, [("changed", "11")]) == (code, found(route))
