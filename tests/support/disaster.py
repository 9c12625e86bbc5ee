"""
A platform of real servers that a rehearsal breaks and repairs; each step is printed.

It has a Postgres of its own, which a rehearsal may stop, copy and lose; the worker's
Kafka, cache and index; a relay; a driver with its sinks; and a writer that never stops
writing: orders, and an event for each. A rehearsal ends with ``towpath verify``.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg

from support.driver_process import start as start_driver
from support.older_release import OlderRelease
from support.snapshots import SnapshotRig
from support.topics import headers_of
from support.waiting import CLOCK, until
from towpath.deploy.local.stack import LazyStack, Stack
from towpath.schemas.clock import Deadline
from towpath.settings import load

PATIENCE_S = 300.0

_DATABASE = "shop"
_TABLES = """
create schema shop;
create table shop.orders (id int primary key, status text not null, note text);
insert into shop.orders select n, 'placed', 'n' || n from generate_series(1, 300) n
"""
_SINK = """
[[sink]]
name = "{kind}"
kind = "{kind}"
driver = "serving"
url = "{url}"
{more}
[[sink.route]]
topic = "{prefix}.shop.orders"
name = "{route}"
"""
# By kind: the address in the stack, further lines of its block, the name of its route.
_KINDS = {
    "cache": (lambda stack: stack.redis_url, "trigger_ms = 100", "{prefix}-orders"),
    "search": (
        lambda stack: stack.opensearch_url,
        "trigger_ms = 100",
        "{prefix}-orders",
    ),
    "warehouse": (
        lambda stack: stack.dsn("warehouse"),
        'folder = "warehouse"',
        "{prefix}.orders",
    ),
}
# Fields of a log record that are of no use to its reader, or break the line.
_UNSHOWN = frozenset({"event", "level", "timestamp", "process", "pid", "logger"})


class Writer:
    """
    Changes orders and records an event for each, until the end of a ``with`` block.

    It reconnects after a failure, as an application does.

    Attributes:
        dsn: The address of the source; a failover changes it.
        events: The ids of the events whose commit the source has confirmed.
        pause_s: The pause between two transactions.
    """

    pause_s = 0.02

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.events: list[str] = []
        self._number = 1000
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the writer during the block."""
        with self._turn:
            yield

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(psycopg.Error), psycopg.connect(self.dsn) as connection:
                connection.autocommit = True
                while not self._stop.wait(self.pause_s):
                    with self._turn:
                        self._write(connection)
            self._stop.wait(0.2)

    def _write(self, connection: psycopg.Connection) -> None:
        """Insert an order, change one, delete one, and record an event."""
        self._number += 1
        number = self._number
        with connection.transaction():
            execute = connection.execute
            execute("insert into shop.orders values (%s, 'placed', 'new')", (number,))
            execute(
                "update shop.orders set status = 'paid', note = %s where id = %s",
                (f"{number}", number * 7 % 300 + 1),
            )
            execute("delete from shop.orders where id = %s", (number - 50,))
            row = execute(
                "insert into towpath.outbox"
                " (id, aggregate_type, aggregate_id, type, payload)"
                " values (gen_random_uuid(), 'order', %s, 'OrderPlaced', %s)"
                " returning id::text",
                (str(number), json.dumps({"number": number})),
            ).fetchone()
        self.events.append(row[0])


class CommandResult(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    text: str


class Disaster(SnapshotRig):
    """
    The platform of one rehearsal.

    Attributes:
        own: The Postgres of this rehearsal.
        writer: Writes while the platform runs.
        driver: The driver's process; None while it is not running.
        folder: The folder of configuration, state and logs.
    """

    def __init__(self, stack: LazyStack, own: Stack, prefix: str, folder: Path) -> None:
        self.shared = stack
        self.own = own
        dsn = own.up(["postgres"]).dsn(_DATABASE)
        super().__init__(dsn, stack.kafka, prefix, folder)
        self.writer = Writer(dsn)
        self.driver: subprocess.Popen[bytes] | None = None
        self._release: OlderRelease | None = None

    def prepare(self, *kinds: str, relay: str = "") -> None:
        """Make tables, configuration and slot; each sink is named after its kind."""
        self.execute(_TABLES)
        # A heartbeat each second: a page shows a recovery as soon as it has happened.
        usual = f"heartbeat_interval_s = 1\n{relay}\n{self.outbox}"
        self.configure(usual, tables=["shop.orders"])
        blocks = [self._block(kind) for kind in kinds]
        text = self.config.read_text() + "".join(blocks)
        self.config.write_text(
            text.replace("version = 1", 'version = 1\nstate_folder = "state"')
        )
        if self._release is None:
            self.init()
        else:
            self.towpath("relay", "init")

    def _block(self, kind: str) -> str:
        """Return the lines of a sink with one route."""
        url, more, route = _KINDS[kind]
        return _SINK.format(
            kind=kind,
            url=url(self.shared),
            more=more,
            prefix=self.prefix,
            route=route.format(prefix=self.prefix),
        )

    @contextmanager
    def running(
        self, *kinds: str, relay: str = "", release: OlderRelease | None = None
    ) -> Iterator[Self]:
        """
        Run everything; yield once the writer is running and each sink has applied rows.

        Args:
            kinds: The sinks, by default a cache.
            relay: Further lines of ``[relay]``.
            release: The code that runs until ``upgrade``; by default the current code.
        """
        self._release = release
        self.prepare(*(kinds or ("cache",)), relay=relay)
        self.start(*self._python("towpath.relay"), str(self.config))
        self.start_driver()
        self.towpath("snapshot", "start", "--wait", is_shown=False)
        with self.writer:
            for sink in load(self.config, {}).sink:
                until(
                    lambda name=sink.name: self.has_applied(name),
                    f"{sink.name} has the first rows",
                    timeout_s=PATIENCE_S,
                )
            yield self

    def close(self) -> None:
        """End the processes; the Postgres is purged by its fixture."""
        self.stop_driver()
        self.kill()
        self.connection.close()

    def upgrade(self) -> None:
        """Make commands and processes that start from now on run the current code."""
        self._release = None

    def _python(self, module: str) -> tuple[str, ...]:
        """Return Python's arguments for running a module of the platform."""
        if self._release is None:
            return "-m", module
        return self._release.module(module)

    def start_driver(self) -> None:
        """Start the driver."""
        self.driver = start_driver(self, *self._python("towpath.sinks"))

    def stop_driver(self) -> None:
        """Kill the driver, if it is running."""
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait(10)
            self.driver = None

    def has_applied(self, sink: str) -> bool:
        """Return whether a sink has applied at least one record."""
        return self.applied_offsets(sink) > 0

    def applied_offsets(self, sink: str) -> int:
        """Return the sum of the offsets up to which a sink has applied its topics."""
        path = self.folder / "state" / "sinks" / sink / "progress.json"
        with suppress(FileNotFoundError, json.JSONDecodeError):
            progress = json.loads(path.read_text(encoding="utf-8"))
            topics = progress.get("applied", {}).values()
            return sum(offset for topic in topics for offset in topic.values())
        return 0

    def reconnect(self, dsn: str) -> None:
        """Make everything except the relay use a different address of the source."""
        self.connection.close()
        self.dsn = self.writer.dsn = dsn
        self.connection = psycopg.connect(dsn, autocommit=True)

    def move(self, dsn: str) -> None:
        """Point the configuration, the writer and this connection at another server."""
        text = self.config.read_text(encoding="utf-8")
        self.config.write_text(text.replace(self.dsn, dsn), encoding="utf-8")
        self.reconnect(dsn)

    def step(self, text: str) -> None:
        """Print a step of the rehearsal."""
        print_lines(f"\n== {text}")

    def towpath(self, *arguments: str, is_shown: bool = True) -> CommandResult:
        """Run a command of the platform, and print it as an operator sees it."""
        if is_shown:
            print_lines(f"$ towpath {' '.join(arguments)}")
        program = (sys.executable, *self._python("towpath.cli"))
        done = subprocess.run(
            [*program, *arguments, "--config", str(self.config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if is_shown:
            print_lines(*done.stdout.splitlines(), f"[exit {done.returncode}]")
        return CommandResult(done.returncode, done.stdout)

    def wait_for_relay_log(self, event: str, more_than: int = 0) -> dict[str, Any]:
        """Wait for more than this many log records of an event; print the last one."""
        return self._await_record("relay", lambda: self.logged(event), more_than)

    def wait_for_driver_log(self, event: str) -> dict[str, Any]:
        """Wait for a log record of the driver; print it."""
        return self._await_record("driver", lambda: self._driver_logged(event), 0)

    def _driver_logged(self, event: str) -> list[dict[str, Any]]:
        path = self.folder / "driver.log"
        lines = path.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        # The engine also prints JSON objects of its own.
        return [record for record in records if record.get("event") == event]

    def _await_record(
        self, part: str, read: Callable[[], list[dict[str, Any]]], more_than: int
    ) -> dict[str, Any]:
        deadline = Deadline(CLOCK, PATIENCE_S)
        while len(read()) <= more_than:
            assert not deadline.passed(), self.tail()
            CLOCK.wait(0.05)
        record = read()[-1]
        print_lines(f"{part} log: {shown(record)}")
        return record

    def wait_for_snapshots(self) -> None:
        """Wait until each snapshot has ended."""
        unfinished = (
            "select exists (select from towpath.snapshot"
            " where state in ('queued', 'running'))"
        )
        until(
            lambda: not self.one(unfinished),
            "each snapshot has ended",
            timeout_s=PATIENCE_S,
        )

    def tail(self) -> str:
        """Return the ends of both logs."""
        path = self.folder / "driver.log"
        driver = path.read_text(encoding="utf-8") if path.exists() else ""
        return f"{self.printed()[-4000:]}\n--- driver\n{driver[-4000:]}"

    def published_events(self) -> list[str]:
        """Return the ids of the events in their topic, including repeated ones."""
        return [headers_of(each)["id"] for each in self.records("event.order")]

    def verify(self, *sinks: str) -> None:
        """Run ``towpath verify`` during writes; each sink must equal the source."""
        self.step("verify, while the application writes")
        for sink in sinks or ("cache",):
            done = self.towpath("verify", sink)
            assert (0, True) == (done.code, "equal" in done.text), self.tail()

    def verify_events(self) -> None:
        """Fail unless each confirmed event is published, and none twice."""
        assert (0, 0) == self.count_lost_events()

    def count_lost_events(self) -> tuple[int, int]:
        """Count the confirmed events that are not published, and the repeated ones."""
        written = set(self.writer.events)
        self.confirm()
        found = self.published_events()
        lost, twice = len(written - set(found)), len(found) - len(set(found))
        print_lines(
            f"{len(written)} events written: {lost} lost, {twice} published twice"
        )
        return lost, twice


def print_lines(*lines: str) -> None:
    """Print lines immediately, so that ``make rehearse`` shows each as it happens."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def shown(record: Mapping[str, Any]) -> str:
    """Write a log record as its event and its fields."""
    fields = {name: value for name, value in record.items() if name not in _UNSHOWN}
    text = ", ".join(f"{name}={json.dumps(value)}" for name, value in fields.items())
    return f"{record['event']} ({text})"
