"""Tables and columns of any name, from the source through each kind of sink."""

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
# What a route of each kind of sink has to rename.
RENAMED = {"search": ("n0",)}
COLUMNS = {route: name.table for route, name in TABLES.items()}


class NamedPlace(SnapshotRig):
    """A source whose tables and columns are named oddly, and four sinks of them."""

    def prepare(self, stack, receiver):
        """Make the tables with a row each, and the file."""
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
        """Write the sinks, with columns renamed where a target cannot carry them."""
        blocks = [
            f'[[sink]]\nname = "{kind}"\nkind = "{kind}"\ndriver = "serving"\n'
            f"trigger_ms = 200\n{lines}" + self.routes(beginning, renamed.get(kind, ()))
            for kind, (lines, beginning) in self.kinds.items()
        ]
        self.config.write_text(self.head + "\n" + "".join(blocks))

    def routes(self, beginning, renamed):
        """Write the routes of one sink."""
        return "".join(
            f'[[sink.route]]\ntopic = "{table_topic(self.prefix, name)}"\n'
            f'name = "{beginning}{route}"\n'
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

    def towpath(self, *words):
        """Run a command; return its exit code."""
        return run([*words, "--config", str(self.config)])

    def catch_up_all(self):
        """Wait until every sink has all that was committed."""
        self.catch_up()
        settings = load(self.config, {})
        for kind in self.kinds:
            wait_applied(settings, kind, 120)

    def hooked(self, route):
        """Return the rows that the receiver of webhooks was given."""
        return [row for row in self.receiver.rows(route) if not row.is_deleted]

    def held(self, kind, renamed):
        """Return the values of both rows of each route, by route."""
        settings = load(self.config, {})
        _, beginning = self.kinds[kind]
        reader = reader_of(settings.sink_named(kind), settings)
        try:
            return {
                route: {
                    str(row.key): row.fields.get(
                        "renamed" if route in renamed.get(kind, ()) else column
                    )
                    for row in reader.rows(f"{beginning}{route}")
                    if not row.is_deleted
                }
                for route, column in COLUMNS.items()
            }
        finally:
            reader.close()


@pytest.fixture
def place(stack, database, unique, tmp_path):
    """Provide the place, prepared."""
    stack.up("postgres", "kafka", "redis", "opensearch")
    receiver = Receiver()
    found = NamedPlace(database, stack.kafka, unique, tmp_path)
    found.prepare(stack, receiver)
    found.receiver = receiver
    yield found
    found.close()
    receiver.close()


def test_tables_and_columns_of_any_name_reach_every_sink(place, capsys):
    """
    Names that a target cannot store are refused by `sink check`; the rest arrives.
    """
    place.declare({})
    place.init()
    place.start()
    place.wait_for(lambda: bool(place.logged("relay streaming")))
    place.catch_up()
    codes = [place.towpath("sink", "check")]
    printed = capsys.readouterr().out
    place.declare(RENAMED)
    codes.append(place.towpath("sink", "check"))
    with driver(place):
        for name in TABLES.values():
            place.write("update {t} set {c} = 'new' where id = 1", name)
            place.write("insert into {t} values (2, 'two')", name)
        place.signal("again", data_collections=[n.joined for n in TABLES.values()])
        answer = place.wait_for_answer("again")
        place.catch_up_all()
        verified = [place.towpath("verify", kind) for kind in READ]
        held = {kind: place.held(kind, RENAMED) for kind in READ}
        hooked = {
            route: {str(row.key): row.fields[column] for row in place.hooked(route)}
            for route, column in COLUMNS.items()
        }

    expected = {route: {"1": "new", "2": "two"} for route in TABLES}
    assert [1, 0] == codes
    assert 1 == printed.count("the column name 'a.b' has a dot"), printed
    assert {name.text for name in TABLES.values()} == set(answer["tables"])
    assert ([0] * len(READ), dict.fromkeys(READ, expected)) == (verified, held)
    assert expected == hooked
