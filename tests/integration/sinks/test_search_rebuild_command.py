"""``towpath sink rebuild`` runs while others write and read, without affecting them."""

import os
import random
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException

from support.published import wait_applied, wait_running
from support.rig import Rig
from support.rights import documented
from support.waiting import until
from support.writers import RandomWriters
from towpath.cli import app
from towpath.settings import load
from towpath.sinks.jars import java, store
from towpath.sinks.targets.search.read import SearchReader

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

# The first keys are changed but never deleted: readers must always find all of them.
LASTING = 300
KEYS = 400


class Writers(RandomWriters):
    """
    Sessions that increment counts, and delete and insert rows above the lasting keys.
    """

    pause_s = 0.01

    def change(self, connection, rng: random.Random):
        """Change or delete one random row."""
        key = rng.randrange(1, self.highest + 1)
        if key > LASTING and rng.random() < 0.5:
            connection.execute("delete from shop.notes where id = %s", (key,))
            return
        connection.execute(
            "insert into shop.notes values (%s, 0, 'n') on conflict (id)"
            " do update set count = shop.notes.count + 1",
            (key,),
        )


class Reader:
    """Searches continuously; records missing documents, and counts that decreased."""

    def __init__(self, url, route):
        # A failure counts, and the client must not retry it silently.
        self._client = OpenSearch(hosts=[url], max_retries=0)
        self._route = route
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._seen = {}
        self.searches = 0
        self.wrong = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self._client.close()

    def _read(self):
        body = {"query": {"range": {"id": {"lte": LASTING}}}, "size": 2 * LASTING}
        while not self._stop.is_set():
            try:
                response = self._client.search(index=self._route, body=body)
            except OpenSearchException as error:
                self.wrong.append(str(error))
                continue
            rows = [hit["_source"] for hit in response["hits"]["hits"]]
            found = {row["id"]: row["count"] for row in rows}
            if len(found) != LASTING or len(rows) != LASTING:
                self.wrong.append(f"{len(rows)} documents of {len(found)} keys")
            for key, count in found.items():
                if count < self._seen.get(key, 0):
                    self.wrong.append(f"{key}: {count} after {self._seen[key]}")
            self._seen |= found
            self.searches += 1


class NotesRig(Rig):
    """A source with a table of notes, its relay, and the driver of the search sink."""

    def __init__(self, stack, dsn, prefix, folder):
        super().__init__(dsn, stack.kafka, prefix, folder)
        self.url = stack.opensearch_url
        self.search = OpenSearch(hosts=[self.url])

    @property
    def route(self):
        """The name of the route and of its alias."""
        return self.prefix

    def prepare(self):
        """Create the table and its rows, and start the relay."""
        self.execute("create schema shop")
        self.execute(
            "create table shop.notes (id int primary key, count bigint, note text)"
        )
        self.configure(tables=["shop.notes"])
        block = f"""
[[sink]]
name = "search"
kind = "search"
driver = "serving"
url = "{self.url}"
trigger_ms = 100
[[sink.route]]
topic = "{self.prefix}.shop.notes"
name = "{self.route}"
"""
        self.config.write_text(self.config.read_text() + block)
        self.init()
        self.start()
        self.wait_for(lambda: bool(self.logged("relay started")))
        self.execute(
            "insert into shop.notes select key, 0, 'n' from generate_series(1, %s) key",
            KEYS,
        )

    @contextmanager
    def driver(self):
        """Run the driver's process; it must exit with 0 on SIGTERM."""
        environment = {
            **os.environ,  # noqa: TID251 - a process of its own
            "JAVA_HOME": str(java.spark_home(self.folder / "java")),
            "TOWPATH_SPARK_JARS": str(store.of("spark")),
        }
        command = [
            "-m",
            "towpath.sinks",
            "--config",
            self.config,
            "--driver",
            "serving",
        ]
        log = self.folder / "driver.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, *command], env=environment, stderr=file
            )
        try:
            wait_running(load(self.config, {}), "search", 150)
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()[-4000:]
        finally:
            process.kill()
            process.wait(10)

    def catch_up(self):
        """Wait until the sink has everything that has been committed."""
        self.confirm()
        wait_applied(load(self.config, {}), "search", 120)

    def rebuild(self):
        """Run the command; return its exit code."""
        return app.run(["sink", "rebuild", "search", "--config", str(self.config)])

    def operator(self):
        """
        Make a role with the operator's documented rights; return its connection string.
        """
        role = f"{self.prefix}_operator"
        self.execute(f"create role {role} login")
        _, grants = documented("sql", "Postgres")
        for line in grants.splitlines():
            grant, _, roles = line.partition(" to ")
            if "towpath_operator" in roles:
                self.execute(f"{grant} to {role}")
        return self.dsn.replace("postgres@", f"{role}@")

    def kill_a_rebuild(self):
        """Run the command until the rebuild has begun, and kill it."""
        command = ["sink", "rebuild", "search", "--config", str(self.config)]
        process = subprocess.Popen(
            [sys.executable, "-m", "towpath.cli", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        following = f"{self.route}-next"
        until(
            lambda: self.search.indices.exists_alias(name=following),
            "the rebuild has begun",
        )
        process.kill()
        process.wait()

    def indexes(self):
        """Return the indexes of the route's alias."""
        return list(self.search.indices.get_alias(name=self.route))

    def held(self):
        """Read the counts in the index, by key."""
        reader = SearchReader(self.url)
        rows = [r.fields for r in reader.rows(self.route) if not r.is_deleted]
        reader.close()
        return {row["id"]: row["count"] for row in rows}

    def source(self):
        """Return the counts that the index should have, by key."""
        return dict(self.execute("select id, count from shop.notes"))

    def close(self):
        """Drop the role, and close the connections."""
        role = f"{self.prefix}_operator"
        self.execute(f"drop owned by {role}")
        self.execute(f"drop role {role}")
        self.search.close()
        super().close()


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with its relay, a broker and a search index."""
    stack.up("kafka", "opensearch")
    found = NotesRig(stack, database, unique, tmp_path)
    yield found
    found.close()


def test_an_index_is_rebuilt_while_it_is_written_and_searched(rig, capsys, monkeypatch):
    """
    No search misses a row or an update, and the new index ends up equal to the source.

    The first attempt is killed as soon as the new index exists; the second continues
    with it, as a role with only the rights documented in docs/rights.md.
    """
    rig.prepare()
    operator = rig.operator()
    with rig.driver():
        rig.catch_up()
        rig.search.indices.refresh(index=rig.route)
        with (
            Writers(rig.dsn, KEYS, count=2),
            Reader(rig.url, rig.route) as reader,
        ):
            rig.kill_a_rebuild()
            monkeypatch.setenv("TOWPATH_SOURCE__DSN", operator)
            before = reader.searches
            assert 0 == rig.rebuild(), capsys.readouterr()
            after = reader.searches
            monkeypatch.delenv("TOWPATH_SOURCE__DSN")
            until(lambda: reader.searches > after + 5, "searches continue")
        rig.catch_up()

        assert rig.source() == rig.held()
        assert ([], True) == (reader.wrong[:5], after > before)
    printed = capsys.readouterr().out

    assert ([f"{rig.route}-2"], True) == (
        rig.indexes(),
        "continues to fill" in printed,
    )
