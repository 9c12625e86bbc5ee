"""Columns that a source gains, renames or retypes reach the old rows of every sink."""

import json

import pytest

from support.sink_place import SinkPlace
from support.topics import read_to_end
from support.waiting import until
from towpath.settings import load
from towpath.sinks.kinds import reader_of
from towpath.sinks.state import incomplete
from towpath.sinks.state.progress import State

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

SINKS = ("cache", "postgres", "search", "warehouse")
BLOCK = """
[[sink]]
name = "{kind}"
kind = "{kind}"
driver = "serving"
url = "{url}"
trigger_ms = 100
{rest}
[[sink.route]]
topic = "{prefix}.shop.lines"
name = "{route}"
"""
RULES = {"search": '[sink.route.rename]\nno = "line"\n'}


class Rig(SinkPlace):
    """A table, its relay, and one sink of each kind."""

    def __init__(self, stack, dsn, prefix, folder):
        super().__init__(stack, dsn, prefix, folder)
        self.stack = stack

    def prepare(self):
        """Start the relay, let it stream some rows, and declare the sinks."""
        self.execute("create schema shop")
        self.execute(
            "create table shop.lines (no int primary key, note text, price int)"
        )
        self.configure(tables=["shop.lines"])
        urls = {
            "cache": self.stack.redis_url,
            # A different schema of the source's own database.
            "postgres": self.dsn,
            "search": self.stack.opensearch_url,
            "warehouse": self.stack.dsn("warehouse"),
        }
        blocks = [
            BLOCK.format(
                kind=kind,
                url=url,
                prefix=self.prefix,
                route=self.route(kind),
                rest='folder = "lake"' if kind == "warehouse" else "",
            )
            + RULES.get(kind, "")
            for kind, url in urls.items()
        ]
        self.config.write_text(self.config.read_text() + "".join(blocks))
        self.init()
        self.start()
        self.wait_for(lambda: bool(self.logged("relay started")))
        self.execute(
            "insert into shop.lines select no, 'n' || no, no"
            " from generate_series(1, 30) no"
        )

    def route(self, kind):
        """Return the name of a sink's route."""
        schemas = {"postgres": "models.", "warehouse": "shop."}
        return f"{schemas.get(kind, '')}{self.prefix}"

    def rows(self, kind):
        """Return a sink's rows by key; columns are strings, and nulls are left out."""
        settings = load(self.config, {})
        reader = reader_of(settings.sink_named(kind), settings)
        found = {
            row.key: as_strings(row.fields)
            for row in reader.rows(self.route(kind))
            if not row.is_deleted
        }
        reader.close()
        return found

    def source(self, kind):
        """Return the rows that a sink should have."""
        named = {"no": "line"} if kind == "search" else {}
        return {
            str(row["no"]): as_strings({named.get(k, k): v for k, v in row.items()})
            for (row,) in self.execute("select to_jsonb(l) from shop.lines l")
        }

    def is_equal(self, kind):
        """Return whether a sink has every row of the source with all its columns."""
        held = self.rows(kind)
        return not incomplete.routes(load(self.config, {}).state_folder, kind) and all(
            row.items() <= held.get(key, {}).items()
            for key, row in self.source(kind).items()
        )

    def requests(self):
        """
        Return the sink and the columns of each request to the relay so far, sorted.
        """
        requests = [
            json.loads(each.value())["data"]
            for each in read_to_end(self.kafka, f"{self.prefix}-signal")
        ]
        return sorted((each["target"], each.get("columns")) for each in requests)

    def read(self, sink):
        """Return how many rows each snapshot has read for a sink, in order."""
        found = self.execute(
            "select rows from towpath.snapshot where target = %s order by updated_at",
            sink,
        )
        return [rows for (rows,) in found]


def as_strings(fields):
    """Return columns as strings; a null counts as a missing column."""
    return {k: str(v) for k, v in fields.items() if v is not None}


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with its relay, and all targets."""
    stack.up("kafka", "redis", "opensearch")
    found = Rig(stack, database, unique, tmp_path)
    yield found
    found.close()


def test_altered_columns_reach_the_old_rows_of_every_sink(rig):
    """
    Each sink sends one request for each change, and only rows with a value are read.

    A default, a new name and a new type alter rows without a change in the stream. A
    column without a default alters no row, so nothing is delivered. A sink with typed
    fields keeps the old values of a retyped column and logs the remedy.
    """
    rig.prepare()
    alter = rig.execute

    def filled(*kinds):
        for kind in kinds or SINKS:
            until(lambda kind=kind: rig.is_equal(kind), f"{kind} filled", timeout_s=90)

    with rig.driver():
        until(
            lambda: all(rig.progress(k).state is State.RUNNING for k in SINKS),
            "all sinks run",
            timeout_s=240,
        )
        filled()
        alter("alter table shop.lines add channel text default 'web', add spare int")
        alter("update shop.lines set price = 0, spare = 7 where no = 1")
        filled()
        alter("alter table shop.lines rename note to remark")
        alter("insert into shop.lines values (31, 'new', 5)")
        filled()
        alter("update shop.lines set remark = null where no = 2")
        alter("alter table shop.lines alter price type text using '<' || price || '>'")
        alter("update shop.lines set spare = 8 where no = 3")
        filled("cache")
        log = (rig.folder / "driver.log").read_text()

    changed = [["channel", "spare"], ["remark"]]
    assert (
        sorted(
            [(kind, columns) for kind in SINKS for columns in changed]
            + [("cache", ["price"])]
        )
        == rig.requests()
    )
    assert [30, 31, 31] == rig.read("cache")
    assert "towpath sink rebuild search" in log
