"""
Record a stack in the middle of its work: ``python tests/data/recording/record.py``.

Source, topics and sinks are filled; then the relay and the driver are killed, the parts
are stopped, and their folders are packed into ``stack.tar.xz`` in this folder.
README.md describes the archive's contents and when to recreate it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
TESTS: Final = HERE.parents[1]
sys.path.insert(0, str(TESTS))

import psycopg  # noqa: E402 - below the line that makes the tests' support importable
import requests  # noqa: E402

from support.orders_service import Service  # noqa: E402
from support.recording import (  # noqa: E402
    ARCHIVE,
    CONFIG,
    FOLDER,
    PARTS,
    SINKS,
    WITNESS,
    driver,
    held_stack,
    pack,
    relay,
)
from support.topics import read_to_end  # noqa: E402
from support.waiting import until  # noqa: E402
from towpath.deploy.local import ports, postgres  # noqa: E402
from towpath.deploy.local.stack import Addresses, Stack  # noqa: E402
from towpath.sinks.jars import java, store  # noqa: E402

FAULTS: Final = TESTS / "faults/driver_with_fault.py"
COMMAND: Final = (sys.executable, "-m", "towpath.cli")
ORDERS: Final = (sys.executable, "-m", "towpath.services.orders")
LINE: Final = {"product_id": "0af76519-16cd-43dd-8448-eb211c80319c", "quantity": 2}
# Keep the files few and small: no WAL is kept or recycled, and no full-page images are
# written.
SMALL: Final = """
max_wal_size = 2MB
min_wal_size = 2MB
wal_recycle = off
full_page_writes = off
autovacuum = off
"""
TABLES: Final = """
create extension hstore;
create schema rich;
create type rich.mood as enum ('sad', 'ok', 'happy');
create type rich.size as (width int, height numeric(8, 2), note text);
create table rich.type (
    id bigint, region varchar(8), yes boolean, tiny smallint, ratio real, exact float8,
    price numeric(12, 2), any_number numeric, code char(4), raw bytea, day date,
    at_time time, since timestamp(3), seen timestamptz, span interval, uid uuid,
    body jsonb, mood rich.mood, numbers int[], words text[], size rich.size,
    tags hstore, address inet, fee money,
    primary key (region, id)
);
create table rich.document (id int primary key, title text, large text);
alter table rich.document alter large set storage external;
create table rich.emptied (id int primary key, note text);
create table rich.moment (id int primary key, at timestamptz, note text);
create table rich.page (id int primary key, title text);
"""
ROWS: Final = """
insert into rich.type
select n, case when n % 2 = 0 then 'eu' else 'añ"d' end, n % 3 = 0, n, n / 7.0,
       n / 11.0, n * 1.01, case when n % 5 = 0 then null else n * 1e12::numeric / 7 end,
       'c' || n,
       decode(lpad(to_hex(n), 4, '0'), 'hex'), date '2026-01-01' + n, time '10:11:12.5',
       timestamp '2026-01-01 10:00:00.123' + n * interval '1 hour',
       timestamptz '2026-01-01 10:00:00.654321+02' + n * interval '1 day',
       n * interval '1 month 2 days 03:04:05.6', md5(n::text)::uuid,
       jsonb_build_object('n', n, 'text', 'ü' || n, 'none', null),
       (array['sad', 'ok', 'happy'])[1 + n % 3]::rich.mood, array[n, null, n + 1],
       array['a,b', 'c"d', null], row(n, n / 3.0, 'x')::rich.size,
       hstore('k', 'v' || n), '10.0.0.1/24', n * 1.5
  from generate_series(1, 24) as n;
insert into rich.document
select n, 'title ' || n, repeat(md5(n::text), 80) from generate_series(1, 20) as n;
insert into rich.emptied select n, 'note ' || n from generate_series(1, 20) as n;
insert into rich.moment
select n, '2026-01-01 00:00:00+00', 'note ' || n from generate_series(1, 10) as n;
insert into rich.page select n, 'page ' || n from generate_series(1, 400) as n;
"""
CHANGES: Final = (
    "update rich.type set price = price + 1, body = null where id % 4 = 0",
    "delete from rich.type where id in (5, 6)",
    "update rich.type set id = id + 100 where id in (7, 8)",
    "update rich.document set title = title || ' again' where id <= 10",
    "delete from rich.document where id = 20",
    "truncate rich.emptied",
    "insert into rich.emptied select n, 'after' from generate_series(15, 25) as n",
    "update shop.customers set name = name || ' Jr.' where md5(id::text) < '8'",
    # A warehouse cannot represent infinity: these rows become dead letters, and later
    # changes wait behind them.
    "update rich.moment set at = 'infinity' where id in (1, 2, 3)",
    "update rich.moment set note = 'later' where id in (1, 2)",
    "update rich.moment set note = 'last' where id = 1",
)
# The changes that the relay publishes after the first driver has died.
BURST: Final = (
    "update rich.type set price = price + 1 where id % 4 = 1",
    "delete from rich.type where id = 9",
    "update rich.document set title = title || ' once more' where id between 5 and 12",
    "insert into rich.emptied select n, 'burst' from generate_series(30, 39) as n",
    "update rich.moment set note = 'burst' where id in (2, 4)",
    "update rich.page set title = title || ' burst' where id % 40 = 0",
)
# The changes that no relay has read.
BEHIND: Final = (
    "insert into rich.type (id, region, words) values (300, 'eu', '{behind}')",
    "update rich.document set title = 'behind' where id = 11",
    "delete from rich.emptied where id = 30",
    "delete from rich.page where id in (3, 399)",
    "update rich.page set title = title || ' behind' where id in (5, 398)",
)
EVENT: Final = (
    "insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload,"
    " headers) values (gen_random_uuid(), 'parcel', %s, 'ParcelSent', '{\"n\": 1}', %s)"
)


class Recorder:
    """Fills the stack."""

    def __init__(self, stack: Stack) -> None:
        self._addresses = stack.addresses()
        dsn = self._addresses.dsn("shop")
        self._source = psycopg.connect(dsn, autocommit=True)
        self._dsn = dsn

    def close(self) -> None:
        """Close the connection to the source."""
        self._source.close()

    def execute(self, *statements: str) -> None:
        """Run each statement in its own transaction."""
        for statement in statements:
            self._source.execute(statement)

    def one(self, statement: str) -> Any:
        """Return the first value of a statement's result."""
        row = self._source.execute(statement).fetchone()
        return row[0] if row else None

    def make_tables(self) -> None:
        """Create the tables and the rows that only a snapshot reads."""
        seed = ("seed", "--dsn", self._dsn, "--orders", "30", "--customers", "12")
        subprocess.run((*ORDERS, *seed), check=True)
        self.execute(TABLES, ROWS)

    def trade(self) -> None:
        """Place, pay for and cancel orders, as customers do."""
        port = ports.any_free()
        command = (*ORDERS, "serve", "--dsn", self._dsn, "--port", str(port))
        log = FOLDER / "logs" / "orders.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        service = Service(f"http://127.0.0.1:{port}", process, log)
        try:
            service.wait_until_live()
            for number in range(6):
                self._place(service, number)
        finally:
            process.terminate()
            process.wait()

    def publish_events(self) -> None:
        """Insert events that are published, and some that are parked."""
        for aggregate in ("one", "two", "three"):
            self._source.execute(EVENT, (aggregate, '{"region": "eu"}'))
        # Invalid headers: this row is parked, and later events of its aggregate wait.
        self._source.execute(EVENT, ("two", "[1]"))
        for _ in range(3):
            self._source.execute(EVENT, ("two", None))

    def catch_up(self) -> None:
        """Wait until each sink has applied everything that has been committed."""
        lsn = self.one("select pg_current_wal_insert_lsn()::text")
        for sink in SINKS:
            towpath("wait", "--lsn", lsn, "--sink", sink, "--timeout", "120")

    def snapshot_rows(self, snapshot_id: str) -> int:
        """Return how many rows a snapshot has delivered."""
        query = "select sum(rows) from towpath.snapshot where snapshot_id = %s"
        row = self._source.execute(query, (snapshot_id,)).fetchone()
        return int((row and row[0]) or 0)

    def wait_published(self, topic: str, text: bytes) -> None:
        """Wait until a topic has a record that contains these bytes."""
        kafka = self._addresses.kafka
        until(
            lambda: any(text in (m.value() or b"") for m in read_to_end(kafka, topic)),
            f"{topic} has {text!r}",
        )

    def _place(self, service: Service, number: int) -> None:
        email = f"buyer{number}@example.org"
        buyer = service.post("/customers", {"name": f"Buyer {number}", "email": email})
        lines = [LINE | {"unit_price": f"{number}.99"}]
        order = {"customer_id": buyer.json()["customer_id"], "lines": lines}
        placed = service.post("/orders", order).json()["order_id"]
        if number % 3:
            verb = "pay" if number % 3 == 1 else "cancel"
            _check(service.post(f"/orders/{placed}/{verb}", {}))


def main() -> None:
    """Make the recording."""
    with held_stack() as stack:
        stack.state.create()
        make_small_postgres(stack)
        addresses = stack.up(PARTS)
        configure(addresses, CONFIG, "stack")
        configure(addresses, WITNESS, "witness")
        recorder = Recorder(stack)
        running = [relay(), driver()]
        try:
            fill(recorder, *running)
        finally:
            for process in running:
                process.kill()
        finish(stack, recorder)
        pack(stack)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size:,} bytes")  # noqa: T201


def make_small_postgres(stack: Stack) -> None:
    """
    Initialize the cluster with small WAL segments, before the stack initializes it.
    """
    home = postgres.home_of(stack.state)
    postgres.create_home(home, stack.state)
    initdb = (
        *(
            str(home.programs / "bin" / "initdb"),
            "-D",
            str(home.data),
            "-U",
            "postgres",
        ),
        *("-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--wal-segsize=1"),
    )
    user = home.user
    subprocess.run(
        initdb,
        cwd="/",
        check=True,
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
        stdout=subprocess.DEVNULL,
    )
    with (home.data / "postgresql.conf").open("a", encoding="utf-8") as file:
        file.write(SMALL)
    (home.folder / "made").touch()
    addresses = stack.up(("postgres",))
    with psycopg.connect(addresses.dsn("postgres"), autocommit=True) as connection:
        # Files that are copies of others add almost nothing to the archive.
        for name in ("shop", "warehouse"):
            connection.execute(f"drop database {name}")
            connection.execute(f"create database {name} strategy file_copy")
        connection.execute(
            "update pg_database set datistemplate = false where datname = 'template0'"
        )
        connection.execute("drop database template0")


def configure(addresses: Addresses, path: Path, prefix: str) -> None:
    """Write a configuration in which a stack that takes over can replace the ports."""
    template = (HERE / "stack.toml").read_text(encoding="utf-8")
    names = ("postgres", "kafka", "registry", "opensearch", "redis")
    known = " ".join(f"{n}={getattr(addresses, f'{n}_port')}" for n in names)
    text = template.format(
        ports=known,
        prefix=prefix,
        state="." if path == CONFIG else prefix,
        source=addresses.dsn("shop"),
        warehouse=addresses.dsn("warehouse"),
        kafka=addresses.kafka,
        redis=addresses.redis_url,
        opensearch=addresses.opensearch_url,
    )
    path.write_text(text, encoding="utf-8")


def fill(recorder: Recorder, relay: Any, driver: Any) -> None:
    """
    Fill the sinks with rows, changes and events, then kill the relay and the driver.
    """
    recorder.make_tables()
    towpath("relay", "init")
    towpath("relay", "init", config=WITNESS)
    relay.begin()
    driver.begin()
    towpath("snapshot", "start", "--id", "finished", "--wait", "--answer-within", "60")
    recorder.trade()
    recorder.execute(*CHANGES)
    recorder.publish_events()
    recorder.catch_up()
    options = ("--id", "unfinished", "--max-rows-per-second", "40")
    towpath("snapshot", "start", "rich.page", *options)
    until(lambda: recorder.snapshot_rows("unfinished") >= 60, "some rows are read")
    driver.kill()
    recorder.execute(*BURST)
    recorder.wait_published("stack.rich.page", b" burst")
    relay.kill()
    assert recorder.snapshot_rows("unfinished") < 400
    # This driver dies once the cache has a batch that Spark has not committed to its
    # checkpoint.
    os.environ["JAVA_HOME"] = str(java.spark_home(FOLDER / "java"))  # noqa: TID251
    os.environ["TOWPATH_SPARK_JARS"] = str(store.of("spark"))  # noqa: TID251
    driver.begin(
        *(str(FAULTS), "written", "cache", "--config", str(CONFIG)),
        *("--driver", "sinks"),
    )
    code = driver.ended()
    assert code < 0, driver.printed()[-3000:]
    # A command that no sink has executed: it stays pending until one does.
    discard = ("discard", "--sink", "warehouse", "--key", "3", "--timeout", "1")
    towpath("dead-letters", *discard, may_fail=True)
    recorder.execute(*BEHIND)


def finish(stack: Stack, recorder: Recorder) -> None:
    """Shrink the files, and stop the parts."""
    url = stack.addresses().opensearch_url
    _check(requests.post(f"{url}/_forcemerge?max_num_segments=1", timeout=60))
    _check(requests.post(f"{url}/_flush?force=true", timeout=60))
    recorder.execute("checkpoint")
    recorder.close()
    stack.down()


def towpath(*arguments: str, may_fail: bool = False, config: Path = CONFIG) -> None:
    """Run a Towpath command on the stack."""
    command = (*COMMAND, *arguments, "--config", str(config))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    print(" ".join(arguments), done.returncode)  # noqa: T201
    assert may_fail or done.returncode == 0, done.stdout + done.stderr


def _check(response: requests.Response) -> None:
    assert response.ok, json.dumps(response.text)


if __name__ == "__main__":
    main()
