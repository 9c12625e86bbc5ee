"""
Tables and columns with arbitrary names, from the source to each kind of sink.
"""

import psycopg
import pytest
from psycopg import sql

from support.driver_process import driver
from support.published import wait_applied
from support.snapshots import SnapshotRig
from support.webhook_receiver import SECRET, Receiver
from towpath.cli.app import run
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import table_topic
from towpath.settings import load
from towpath.sinks.kinds import reader_of

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

NAMES = (
    *("a.b", 'UPPER with space quo"te back\\slash pi|pe', "x" * 63),
    "per%cent dol$lar bra{ce}[0] new\nline emo😀ji",
)
TABLES = {f"n{at}": TableName(name, name) for at, name in enumerate(NAMES)}
READ = ("cache", "search", "warehouse")
# The routes in which each kind of sink must rename a column.
RENAMED = {"search": ("n0",)}
COLUMNS = {route: name.table for route, name in TABLES.items()}


class NamedRig(SnapshotRig):
    """A source with oddly named tables and columns, and four sinks."""

    def prepare(self, stack, receiver):
        """Create the tables with one row each, and begin the configuration."""
        for name in TABLES.values():
            self.write("create schema {s}", name)
            self.write("create table {t} (id int primary key, {c} text)", name)
            self.write("insert into {t} values (1, 'old')", name)
        self.configure(
            'heartbeat_interval_s = 0.5\n[relay.snapshot]\nmode = "initial"\n',
            tables=[name.entry for name in TABLES.values()],
        )
        text = self.config.read_text().replace(
            "version = 1", f'version = 1\nstate_folder = "{self.folder}"'
        )
        kinds = {
            "cache": (f'url = "{stack.redis_url}"\n', ""),
            "search": (f'url = "{stack.opensearch_url}"\n', f"{self.prefix}-"),
            "warehouse": (
                f'url = "{stack.dsn("warehouse")}"\nfolder = "lake"\n',
                f"{self.prefix}.",
            ),
            "webhook": (
                f'url = "{receiver.url}"\n[sink.webhook]\nsecrets = ["{SECRET}"]\n',
                "",
            ),
        }
        self.head = text
        self.kinds = kinds

    def declare(self, renamed):
        """Write the sinks; columns that a target cannot store are renamed."""
        blocks = [
            f'[[sink]]\nname = "{kind}"\nkind = "{kind}"\ndriver = "serving"\n'
            f"trigger_ms = 200\n{lines}" + self.routes(prefix, renamed.get(kind, ()))
            for kind, (lines, prefix) in self.kinds.items()
        ]
        self.config.write_text(self.head + "\n" + "".join(blocks))

    def routes(self, prefix, renamed):
        """Write the routes of one sink."""
        return "".join(
            f'[[sink.route]]\ntopic = "{table_topic(self.prefix, name)}"\n'
            f'name = "{prefix}{route}"\n'
            + (
                f'rename = {{ "{name.table}" = "renamed" }}\n'
                if route in renamed
                else ""
            )
            for route, name in TABLES.items()
        )

    def write(self, template, name):
        """Run a statement on a table; `{s}`, `{t}`, `{c}` are its quoted names."""
        with psycopg.ClientCursor(self.connection) as cursor:
            cursor.execute(
                sql.SQL(template).format(
                    s=sql.Identifier(name.schema),
                    t=sql.Identifier(name.schema, name.table),
                    c=sql.Identifier(name.table),
                )
            )

    def towpath(self, *arguments):
        """Run a Towpath command; return its exit code."""
        return run([*arguments, "--config", str(self.config)])

    def catch_up_all(self):
        """Wait until every sink has everything that is committed."""
        self.catch_up()
        settings = load(self.config, {})
        for kind in self.kinds:
            wait_applied(settings, kind, 120)

    def delivered(self, route):
        """Return the live rows that the webhook receiver has."""
        return [row for row in self.receiver.rows(route) if not row.is_deleted]

    def held(self, kind, renamed):
        """Return the values of both rows of each route, by route."""
        settings = load(self.config, {})
        _, prefix = self.kinds[kind]
        reader = reader_of(settings.sink_named(kind), settings)
        try:
            return {
                route: {
                    str(row.key): row.fields.get(
                        "renamed" if route in renamed.get(kind, ()) else column
                    )
                    for row in reader.rows(f"{prefix}{route}")
                    if not row.is_deleted
                }
                for route, column in COLUMNS.items()
            }
        finally:
            reader.close()


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide the prepared source and sinks."""
    stack.up("postgres", "kafka", "redis", "opensearch")
    receiver = Receiver()
    found = NamedRig(database, stack.kafka, unique, tmp_path)
    found.prepare(stack, receiver)
    found.receiver = receiver
    yield found
    found.close()
    receiver.close()


def test_tables_and_columns_of_any_name_reach_every_sink(rig, capsys):
    """
    `sink check` rejects names that a target cannot store; all others arrive.
    """
    rig.declare({})
    rig.init()
    rig.start()
    rig.wait_for(lambda: bool(rig.logged("relay streaming")))
    rig.catch_up()
    codes = [rig.towpath("sink", "check")]
    printed = capsys.readouterr().out
    rig.declare(RENAMED)
    codes.append(rig.towpath("sink", "check"))
    with driver(rig):
        for name in TABLES.values():
            rig.write("update {t} set {c} = 'new' where id = 1", name)
            rig.write("insert into {t} values (2, 'two')", name)
        rig.signal("again", data_collections=[n.joined for n in TABLES.values()])
        answer = rig.wait_for_answer("again")
        rig.catch_up_all()
        verified = [rig.towpath("verify", kind) for kind in READ]
        held = {kind: rig.held(kind, RENAMED) for kind in READ}
        delivered = {
            route: {str(row.key): row.fields[column] for row in rig.delivered(route)}
            for route, column in COLUMNS.items()
        }

    expected = {route: {"1": "new", "2": "two"} for route in TABLES}
    assert [1, 0] == codes
    assert 1 == printed.count("the column name 'a.b' has a dot"), printed
    assert {name.text for name in TABLES.values()} == set(answer["tables"])
    assert ([0] * len(READ), dict.fromkeys(READ, expected)) == (verified, held)
    assert expected == delivered
