"""A source with order lines, its relay, and a driver whose sinks are added later."""

import os
import random
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

from support.command import towpath
from support.published import progress_of, wait_applied
from support.rig import Rig
from support.waiting import stretched, until
from support.writers import RandomWriters
from towpath.cli import app
from towpath.settings import load
from towpath.sinks.jars import java, store
from towpath.sinks.targets.cache.read import CacheReader

KEYS = 400
BLOCK = """
[[sink]]
name = "{name}"
kind = "cache"
driver = "serving"
url = "{url}"
trigger_ms = 100
[[sink.route]]
topic = "{prefix}.shop.lines"
name = "{name}"
"""
ROUTE = """\
exclude = ["secret"]
key = "order:{order_id}:no-{no}"
[sink.route.rename]
no = "line"
note = "remark"
[sink.route.constants]
region = "eu"
"""


_SCANS = """
    select seq_scan + idx_scan from pg_stat_user_tables
    where relid = 'towpath.signal'::regclass
"""
_IS_SENT = "select exists (select from towpath.signal where id = %s)"


class Writers(RandomWriters):
    """Sessions that insert, change and delete order lines."""

    pause_s = 0.01

    def change(self, connection, rng: random.Random):
        """Insert, update or delete one line at random."""
        key = (rng.randrange(1, self.highest), rng.randrange(3))
        if rng.random() < 0.2:
            connection.execute(
                "delete from shop.lines where order_id = %s and no = %s", key
            )
            return
        connection.execute(
            "insert into shop.lines values (%s, %s, %s, 's') on conflict"
            " (order_id, no) do update set note = excluded.note",
            (*key, f"{rng.randrange(1000)}"),
        )


class SinkPlace(Rig):
    """A source with order lines, its relay, and the driver of its sinks."""

    def __init__(self, stack, dsn: str, prefix: str, folder) -> None:
        super().__init__(dsn, stack.kafka, prefix, folder)
        self.url = stack.redis_url
        self.state = folder / "driver"

    def prepare(self):
        """Create the table, its rows and one sink, and start the relay."""
        self.execute("create schema shop")
        self.execute(
            "create table shop.lines (order_id int, no int, note text, secret text,"
            " primary key (order_id, no))"
        )
        self.execute(
            "insert into shop.lines select key, no, 'n' || key, 's'"
            " from generate_series(1, %s) key, generate_series(0, 2) no",
            KEYS,
        )
        self.configure(tables=["shop.lines"])
        text = self.config.read_text()
        self.config.write_text(text + self.block("plain"))
        self.init()
        self.start()
        self.wait_for(lambda: bool(self.logged("relay started")))

    def block(self, name, route=""):
        """Return a sink's block for the configuration."""
        block = BLOCK.format(name=name, url=self.url, prefix=self.prefix)
        return textwrap.dedent(block) + route

    def towpath(self, *arguments):
        """Run ``towpath sink`` with arguments; return its exit code."""
        return app.run(["sink", *arguments, "--config", str(self.config)])

    def add(self, name):
        """Add a sink from its block."""
        return self.towpath("add", str(self.write_block(name)))

    def add_by_hand(self, name, signal_id):
        """Add a sink, and send its signal with the SQL that the command prints."""
        block = str(self.write_block(name))
        command = ("sink", "add", block, "--signal", signal_id, "--config", self.config)
        with towpath(self.folder, *map(str, command)) as process:
            lines = (line.decode() for line in process.stdout)
            statement = next(line for line in lines if line.startswith("insert into"))
            before = self.one(_SCANS)
            until(lambda: self.one(_SCANS) > before + 1, "the command polls")
            assert not self.one(_IS_SENT, signal_id)
            self.execute(statement)
            remaining, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
        return statement, remaining.decode()

    def write_block(self, name):
        """Write a sink's block to a separate file."""
        path = self.folder / f"{name}.toml"
        path.write_text(self.block(name, ROUTE))
        return path

    def is_declared(self, name):
        """Return whether the configuration has the sink."""
        return load(self.config, {}).sink_named(name) is not None

    def catch_up(self, name):
        """Wait until a sink has applied everything committed so far."""
        self.confirm()
        settings = load(self.config, {})
        wait_applied(settings, name, stretched(60))

    def held(self, name):
        """Return the rows of a sink's cache, by id."""
        reader = CacheReader(self.url, self.prefix)
        rows = {row.key: row.fields for row in reader.rows(name) if not row.is_deleted}
        reader.close()
        return rows

    def source(self):
        """Return the rows that the added sink should have."""
        return {
            f"order:{order_id}:no-{no}": {
                "order_id": str(order_id),
                "line": str(no),
                "remark": note,
                "region": "eu",
            }
            for order_id, no, note, _ in self.execute("select * from shop.lines")
        }

    def plain(self):
        """Return the rows that the first sink should have."""
        return {
            f"{order_id}:{no}": {
                "order_id": str(order_id),
                "no": str(no),
                "note": note,
                "secret": secret,
            }
            for order_id, no, note, secret in self.execute("select * from shop.lines")
        }

    def progress(self, name):
        """Read a sink's progress."""
        return progress_of(load(self.config, {}), name)

    def start_driver(self):
        """Start the driver's process."""
        environment = {
            **os.environ,  # noqa: TID251 - a process of its own
            "JAVA_HOME": str(java.spark_home(self.folder / "java")),
            "TOWPATH_SPARK_JARS": str(store.of("spark")),
        }
        command = [sys.executable, "-m", "towpath.sinks", "--config", self.config]
        with (self.folder / "driver.log").open("ab") as file:
            return subprocess.Popen(
                [*command, "--driver", "serving"], env=environment, stderr=file
            )

    @contextmanager
    def driver(self):
        """Run the driver's process; it must end cleanly on SIGTERM."""
        process = self.start_driver()
        try:
            yield
            process.send_signal(signal.SIGTERM)
            log = self.folder / "driver.log"
            assert process.wait(60) == 0, log.read_text()[-4000:]
        finally:
            process.kill()
            process.wait(10)
