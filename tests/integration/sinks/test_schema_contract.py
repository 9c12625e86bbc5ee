"""``towpath schema contract``: migrations on a real Postgres, judged by the catalog."""

import json
import sys
from pathlib import Path

import psycopg
import pytest

from towpath.cli.app import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

SCHEMA = """
create schema shop;
create type shop.state as enum ('placed', 'paid');
create table shop.orders (
    id bigint primary key,
    total numeric(10, 2) not null,
    count integer,
    note varchar(40),
    hidden text,
    state shop.state,
    placed_at timestamptz(3),
    constraint note_is_there check (note is not null)
);
create table shop.private (id bigint primary key, name text);
create schema towpath;
create table towpath.outbox (id uuid primary key, aggregate_type text,
    aggregate_id text, type text, payload jsonb, headers jsonb);
"""
CONFIG = """
version = 1

[[source]]
dsn = "postgresql://nowhere"
prefix = "shop"
tables = ['shop\\.o.*', 'shop\\.new.*']

[kafka]
bootstrap_servers = "nowhere:1"

[relay.rows]
exclude_columns = ['shop\\.orders\\.hidden.*']

[[sink]]
name = "cache"
kind = "cache"
url = "redis://nowhere"

[[sink.route]]
topic = "shop.shop.orders"
name = "orders"
rename = { note = "remark" }

[[sink]]
name = "search"
kind = "search"
url = "http://nowhere"

[[sink.route]]
topic = "shop.shop.orders"
name = "orders"
exclude = ["note"]

[[sink]]
name = "lake"
kind = "warehouse"
url = "postgresql://nowhere/lake"
folder = "lake"

[[sink.route]]
topic = "shop.shop.orders"
name = "shop.orders"

[[sink]]
name = "models"
kind = "postgres"
url = "postgresql://nowhere/models"

[[sink.route]]
topic = "shop.shop.orders"
name = "shop.orders"
include = ["id", "count", "note"]
"""


class Contract:
    """Runs the command on migrations of the shop."""

    def __init__(self, folder: Path, dsn: str, capsys) -> None:
        self.folder = folder
        self.dsn = dsn
        self._capsys = capsys
        self.config = folder / "towpath.toml"
        self.config.write_text(CONFIG, encoding="utf-8")
        self.schema = folder / "schema.sql"
        self.schema.write_text(SCHEMA, encoding="utf-8")

    def run(self, *arguments: object) -> tuple[int, str, str]:
        """Run the command; return its exit code and its output."""
        options = ("--dsn", self.dsn, "--config", self.config)
        code = run(["schema", "contract", *map(str, (*arguments, *options))])
        return code, *self._capsys.readouterr()

    def judge(self, migration: str, *options: object) -> tuple[int, list[dict]]:
        """Judge a migration of the shop; return the exit code and the findings."""
        file = self.folder / "migration.sql"
        file.write_text(migration, encoding="utf-8")
        code, out, err = self.run(file, "--schema", self.schema, "--json", *options)
        assert not err, err
        document = json.loads(out)
        assert document["refused"] is bool(code)
        return code, document["findings"]


@pytest.fixture
def contract(tmp_path, stack, capsys) -> Contract:
    """Provide the command with the shop's configuration."""
    return Contract(tmp_path, stack.dsn("postgres"), capsys)


TOPIC = "shop.shop.orders"
OTHER_STATE = """
create type shop.state2 as enum ('placed', 'sent');
alter table shop.orders alter column state type shop.state2 using 'placed'
"""
DEFERRABLE_KEY = """
alter table shop.orders drop constraint orders_pkey, add primary key (id) deferrable
"""
OTHER_KEY = """
alter table shop.orders drop constraint orders_pkey, add primary key (id, total)
"""


def short(findings: list[dict]) -> set[tuple[str, str, str]]:
    """Return the level, the place and the change of each finding."""
    return {(one["level"], one["place"], one["change"]) for one in findings}


def levels(findings: list[dict]) -> dict[str, str]:
    """Return the level of each sink's finding, by sink."""
    return {
        one["place"].split()[1].rstrip(","): one["level"]
        for one in findings
        if one["place"].startswith("sink")
    }


def test_an_added_nullable_column_is_fine(contract):
    """
    Every sink that takes the column gets it, and no row has to be read again.
    """
    code, found = contract.judge("alter table shop.orders add column gift boolean")

    assert 0 == code
    assert {"fine"} == {one["level"] for one in found}
    assert ("fine", TOPIC, "column added") in short(found)
    assert {"cache", "search", "lake"} == set(levels(found))


def test_rows_are_read_again_for_an_added_column_with_a_default(contract):
    """
    The change is accepted, and each sink's finding describes the steps.
    """
    statement = "alter table shop.orders add column gift boolean not null default false"
    code, found = contract.judge(statement)

    assert 0 == code
    assert {"cache": "notice", "search": "notice", "lake": "notice"} == levels(found)
    assert all(one["steps"] for one in found if one["level"] == "notice")


@pytest.mark.parametrize(
    ("migration", "place", "change"),
    [
        ("alter table shop.orders drop column count", TOPIC, "column dropped"),
        ("alter table shop.orders rename column count to n", TOPIC, "column renamed"),
        (
            "alter table shop.orders alter column count type smallint",
            TOPIC,
            "type shrunk",
        ),
        (
            "alter table shop.orders alter column note type varchar(10)",
            TOPIC,
            "type shrunk",
        ),
        (
            "alter table shop.orders alter column total type numeric(8, 2)",
            TOPIC,
            "type shrunk",
        ),
        ("alter table shop.orders alter column count type text", TOPIC, "type changed"),
        (
            "alter table shop.orders alter column total type numeric(12, 3)",
            TOPIC,
            "type changed",
        ),
        (
            "alter table shop.orders add column gift boolean not null",
            "source",
            "not null column added",
        ),
        (
            "alter table shop.orders alter column count set not null",
            "source",
            "not null added",
        ),
        (
            "alter type shop.state rename value 'paid' to 'settled'",
            TOPIC,
            "labels renamed",
        ),
        (
            "alter table shop.orders rename column hidden to shown",
            TOPIC,
            "column published",
        ),
        (OTHER_STATE, TOPIC, "labels removed"),
        ("alter table shop.orders rename to sales", TOPIC, "table renamed"),
        (
            "create schema s; alter table shop.orders set schema s",
            TOPIC,
            "table renamed",
        ),
        ("drop table shop.orders", TOPIC, "table dropped"),
        (
            "drop table shop.orders; create table shop.orders (id bigint primary key)",
            TOPIC,
            "table created again",
        ),
        ("alter table shop.orders rename column id to no", TOPIC, "key changed"),
        (OTHER_KEY, TOPIC, "key changed"),
        (
            "alter table shop.orders replica identity nothing",
            "source",
            "replica identity lost",
        ),
        (
            "alter table shop.orders drop constraint orders_pkey",
            "source",
            "replica identity lost",
        ),
        (
            DEFERRABLE_KEY,
            "source",
            "replica identity lost",
        ),
        ("create table shop.new (name text)", "source", "table added"),
        ("alter table towpath.outbox drop column payload", "relay", "columns gone"),
        ("drop table towpath.outbox", "relay", "table dropped or renamed"),
    ],
)
def test_a_change_that_breaks_readers_or_writers_is_refused(
    contract, migration, place, change
):
    """
    Each refusal has a sentence and numbered steps.
    """
    code, found = contract.judge(migration)
    refused = [
        one
        for one in found
        if (one["level"], one["place"], one["change"]) == ("refused", place, change)
    ]

    assert (1, 1) == (code, len(refused)), found
    assert refused[0]["sentence"].endswith(".")
    assert refused[0]["steps"]


@pytest.mark.parametrize(
    ("migration", "change"),
    [
        ("alter table shop.orders alter column count type bigint", "type grown"),
        ("alter table shop.orders alter column note type varchar(80)", "type grown"),
        ("alter table shop.orders alter column note type text", "type grown"),
        (
            "alter table shop.orders alter column total type numeric(12, 2)",
            "type grown",
        ),
        (
            "alter table shop.orders alter column placed_at type timestamptz",
            "type grown",
        ),
        ("alter table shop.orders alter column note set not null", "not null added"),
        ("alter table shop.orders drop column hidden", "column dropped"),
        ("alter table shop.orders rename column hidden to hidden2", "column renamed"),
        (
            "alter table shop.orders alter column total drop not null",
            "not null dropped",
        ),
        ("alter type shop.state add value 'sent'", "labels added"),
        ("create table shop.new (id bigint primary key)", "table added"),
        ("alter table shop.orders replica identity full", None),
        ("alter table shop.private drop column name", None),
        ("create index on shop.orders (total)", None),
        ("create index concurrently on shop.orders (total)", None),
    ],
)
def test_a_change_that_readers_survive_is_accepted(contract, migration, change):
    """
    Wider types, proven constraints and unpublished columns or tables are accepted.
    """
    code, found = contract.judge(migration)

    assert 0 == code, found
    assert ({change} if change else set()) == {one["change"] for one in found}


@pytest.mark.parametrize(
    ("column", "type_", "expected"),
    [
        (
            "count",
            "bigint",
            {"cache": "notice", "search": "notice", "lake": "fine", "models": "fine"},
        ),
        (
            "count",
            "text",
            {"cache": "notice", "search": "notice", "lake": "refused"}
            | {"models": "notice"},
        ),
        (
            "count",
            "smallint",
            {"cache": "notice", "search": "notice", "lake": "fine", "models": "fine"},
        ),
        (
            "total",
            "numeric(12, 2)",
            {"cache": "notice", "search": "fine", "lake": "fine"},
        ),
        (
            "total",
            "numeric(8, 2)",
            {"cache": "notice", "search": "fine", "lake": "notice"},
        ),
        (
            "total",
            "numeric",
            {"cache": "notice", "search": "fine", "lake": "refused"},
        ),
        ("note", "text", {"cache": "notice", "lake": "fine", "models": "fine"}),
    ],
)
def test_each_sink_judges_a_type_by_its_own_column(contract, column, type_, expected):
    """
    Search judges by field, the warehouse by Iceberg's promotions, Postgres by type.
    """
    statement = f"alter table shop.orders alter column {column} type {type_}"
    _, found = contract.judge(statement)

    assert expected == levels(found)


def test_a_sink_judges_a_column_as_its_route_transforms_it(contract):
    """
    A cast in the route keeps the sink's type; so does a computed column.
    """
    text = contract.config.read_text(encoding="utf-8")
    transforms = """
[[sink.route.transforms]]
cast = "count"
type = "bigint"

[[sink.route.transforms]]
template = "{count} of {total}"
to = "summary"
"""
    lake = 'name = "shop.orders"\n\n[[sink]]\nname = "models"'
    assert 1 == text.count(lake)
    changed = lake.replace("\n\n", f"\n{transforms}\n", 1)
    contract.config.write_text(text.replace(lake, changed), encoding="utf-8")
    statement = "alter table shop.orders alter column count type text"
    _, found = contract.judge(statement)
    lakes = [one for one in found if one["place"].startswith("sink lake")]

    assert ["fine", "fine"] == [one["level"] for one in lakes]
    assert "stays bigint" in lakes[0]["sentence"]
    assert "stays string" in lakes[1]["sentence"]


@pytest.mark.parametrize(
    "type_",
    [
        *("shop.state[]", "shop.states", "shop.one_state", "shop.one_state[]"),
        *("shop.step", "shop.step[]", "shop.path"),
    ],
)
def test_labels_within_another_type_are_compared(contract, type_):
    """
    Labels of an enum inside an array, a domain or a composite are values of the column.
    """
    made = (
        "create domain shop.one_state as shop.state;"
        " create domain shop.states as shop.state[];"
        " create type shop.step as (at date, states shop.states);"
        " create type shop.path as (steps shop.step[], note text);"
        f" create table shop.ours (id bigint primary key, values {type_});"
    )
    contract.schema.write_text(SCHEMA + made, encoding="utf-8")
    _, added = contract.judge("alter type shop.state add value 'sent'")
    _, renamed = contract.judge("alter type shop.state rename value 'paid' to 'done'")
    topic = "shop.shop.ours"

    assert ("notice", topic, "labels added") in short(added)
    assert ("refused", topic, "labels renamed") in short(renamed)


def test_an_array_of_the_same_enum_is_a_different_type(contract):
    """
    The values of an array are lists.
    """
    code, found = contract.judge(
        "alter table shop.orders alter column state type shop.state[]"
        " using array[state]"
    )

    assert (1, True) == (code, ("refused", TOPIC, "type changed") in short(found))


def test_the_oldest_unique_index_is_the_key_of_a_table_without_a_primary_key(contract):
    """
    As in the relay, the name of an index does not matter.
    """
    made = (
        "create table shop.ours (a int not null, b int not null);"
        " alter table shop.ours replica identity full;"
        " create unique index z on shop.ours (a);"
        " create unique index y on shop.ours (b);"
    )
    contract.schema.write_text(SCHEMA + made, encoding="utf-8")
    _, kept = contract.judge("drop index shop.y")
    _, changed = contract.judge("drop index shop.z")

    assert set() == short(kept)
    assert ("refused", "shop.shop.ours", "key changed") in short(changed)


def test_a_change_that_breaks_a_route_is_refused(contract):
    """
    The route names the column, so the sink would halt at its next start.
    """
    code, found = contract.judge("alter table shop.orders rename column note to remark")
    broken = {
        one["place"]: one["sentence"] for one in found if "broken" in one["change"]
    }

    assert 1 == code
    assert {
        "sink cache, route orders",
        "sink search, route orders",
        "sink models, route shop.orders",
    } == set(broken)
    assert "rename: no column note" in broken["sink cache, route orders"]


def test_a_name_that_the_warehouse_reserves_is_refused(contract):
    """
    The column is fine for other sinks.
    """
    code, found = contract.judge("alter table shop.orders add column _pos bigint")

    assert 1 == code
    assert {("refused", "sink lake, route shop.orders", "name refused")} == {
        one for one in short(found) if one[0] == "refused"
    }


def test_a_refused_change_may_be_accepted_by_name(contract):
    """
    The name is a column or a table; a name without a refused change is an error.
    """
    migration = "alter table shop.orders drop column count"
    code, found = contract.judge(migration, "--accept", "shop.orders.count")

    assert 1 == code  # The route of ``models`` still names the column.
    assert ("accepted", TOPIC, "column dropped") in short(found)

    options = ("--accept", "shop.orders.count", "--accept", "shop.orders")
    code, found = contract.judge(migration, *options)
    assert 0 == code
    assert "refused" not in {one["level"] for one in found}

    code, _, err = contract.run(
        *(contract.folder / "migration.sql", "--schema", contract.schema),
        *("--accept", "shop.orders.none"),
    )
    assert (2, True) == (code, "no change to shop.orders.none is refused" in err)


def test_the_findings_are_printed_with_their_steps(contract):
    """
    The text has the level, the place, the sentence, numbered steps, and the counts.
    """
    file = contract.folder / "migration.sql"
    file.write_text("alter table shop.orders drop column total", encoding="utf-8")
    code, out, _ = contract.run(file, "--schema", contract.schema)

    assert 1 == code
    assert "refused: shop.orders.total: column dropped (shop.shop.orders)\n" in out
    assert "  1. Deploy an application that does not use total.\n" in out
    assert out.endswith("3 notice, 1 refused\n")


@pytest.mark.parametrize(
    ("migration", "message"),
    [
        ("alter table shop.none drop column a", 'relation "shop.none" does not exist'),
        (None, "migration.sql cannot be read"),
        (b"-- caf\xe9", "migration.sql is not UTF-8: unexpected end of data at byte 6"),
    ],
)
def test_a_migration_that_fails_is_reported(contract, migration, message):
    """
    The error names the file and the server's reason; the scratch database is dropped.
    """
    file = contract.folder / "migration.sql"
    if migration is not None:
        text = migration if isinstance(migration, bytes) else migration.encode()
        file.write_bytes(text)
    code, _, err = contract.run(file, "--schema", contract.schema)
    with psycopg.connect(contract.dsn) as connection:
        left = connection.execute(
            "select datname from pg_database where datname like 'towpath_contract%'"
        ).fetchall()

    assert (2, True) == (code, message in err), err
    assert [] == left


def test_the_dump_of_a_schema_needs_no_changes(contract):
    """
    pg_dump writes psql commands, and empties the search path of its session.
    """
    text = contract.schema.read_text(encoding="utf-8")
    contract.schema.write_text(
        "\\restrict abc\nselect pg_catalog.set_config('search_path', '', false);\n"
        f"{text}\\unrestrict abc\n",
        encoding="utf-8",
    )
    code, _ = contract.judge("create table public.other (id integer)")

    assert 0 == code


def test_an_unreachable_server_has_its_own_error(contract):
    """
    A CI step neither passes nor blames the migration.
    """
    contract.dsn = "postgresql://127.0.0.1:1/postgres"
    file = contract.folder / "migration.sql"
    file.write_text("select 1", encoding="utf-8")
    code, _, err = contract.run(file)

    assert (3, True) == (code, "the server given by --dsn cannot be reached" in err)


ENV = """
import os
from alembic import context
from sqlalchemy import create_engine, make_url
url = make_url(context.config.get_main_option("sqlalchemy.url"))
assert url == make_url(os.environ["SHOP_URL"])
with create_engine(url.set(drivername="postgresql+psycopg")).connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
REVISION = """
from alembic import op
revision, down_revision = {0!r}, {1!r}
def upgrade():
    op.execute({2!r})
"""


@pytest.fixture
def alembic(contract) -> tuple[str, ...]:
    """Write three revisions: the schema, a good one, a bad one; return the options."""
    folder = contract.folder / "migrations"
    (folder / "versions").mkdir(parents=True)
    ini = contract.folder / "alembic.ini"
    ini.write_text(f"[alembic]\nscript_location = {folder}\n", encoding="utf-8")
    (folder / "env.py").write_text(ENV, encoding="utf-8")
    statements = {
        "0001": SCHEMA,
        "0002": "alter table shop.orders add column gift boolean",
        "0003": "alter table shop.orders rename column gift to present",
    }
    previous = None
    for name, statement in statements.items():
        text = REVISION.format(name, previous, statement)
        (folder / "versions" / f"v{name}.py").write_text(text, encoding="utf-8")
        previous = name
    return (
        *("--alembic-config", str(ini), "--url-variable", "SHOP_URL"),
        *("--python", sys.executable, "--json"),
    )


@pytest.mark.parametrize(
    ("revisions", "code", "changes"),
    [
        ("0001:0002", 0, {"column added"}),
        ("0002:head", 1, {"column renamed"}),
        ("0001:0003", 0, {"column added"}),
        ("base:0001", 0, {"table added"}),
    ],
)
def test_alembic_revisions_are_judged(contract, alembic, revisions, code, changes):
    """
    Revisions before the range build the schema; those in it count as one migration.
    """
    found, out, err = contract.run("--alembic", revisions, *alembic)

    assert code == found, err
    assert changes == {one["change"] for one in json.loads(out)["findings"]}


def test_an_unknown_range_is_reported(contract, alembic):
    """
    The message contains Alembic's own reason.
    """
    code, _, err = contract.run("--alembic", "0001:0009", *alembic)

    assert (2, True) == (code, "alembic upgrade 0009: " in err), err


@pytest.mark.parametrize(
    "arguments", [("--alembic", "0002"), ("a.sql", "--alembic", "1:2"), ()]
)
def test_a_migration_is_either_files_or_revisions(contract, arguments):
    """
    Files with a range, a single revision, and no migration at all are rejected.
    """
    code, _, err = contract.run(*arguments)

    assert (2, True) == (code, "START:END" in err), err


ON_ROWS = """
create role {role};
grant usage on schema shop to {role};
grant select, update on shop.orders to {role};
set role {role};
update shop.orders set note = 'x' where id = 7;
reset role;
set search_path to shop;
do $$ begin delete from orders; delete from orders where total = 0; end $$;
truncate private;
do $$ begin
    truncate orders;
    raise exception 'given up';
exception when others then null;
end $$;
drop owned by {role};
drop role {role};
"""


def test_statements_that_change_captured_rows_cause_a_notice(contract, unique):
    """
    Each kind is reported once, for any role; rollbacks and other tables are ignored.
    """
    code, found = contract.judge(ON_ROWS.format(role=unique))
    _, truncated = contract.judge("truncate shop.orders, shop.private cascade")
    _, untouched = contract.judge("select count(*) from shop.orders")

    assert 0 == code
    assert {
        ("notice", TOPIC, "rows deleted"),
        ("notice", TOPIC, "rows updated"),
    } == short(found)
    assert {("notice", TOPIC, "table truncated")} == short(truncated)
    assert [] == untouched


def test_a_statement_on_a_partition_counts_for_its_table(contract):
    """
    The table is captured, and the rows of its partitions are published under its name.
    """
    schema = contract.schema.read_text(encoding="utf-8")
    parts = (
        "create table shop.parts (id int primary key, v int) partition by range (id);"
        "create table shop.parts_1 partition of shop.parts for values from (0) to (9)"
        " partition by range (id);"
        "create table shop.parts_11 partition of shop.parts_1"
        " for values from (0) to (5);"
    )
    contract.schema.write_text(schema + parts, encoding="utf-8")
    text = contract.config.read_text().replace("tables = [", "tables = ['shop.parts', ")
    contract.config.write_text(text)
    _, found = contract.judge("update shop.parts_11 set v = 1; truncate shop.parts_1")

    assert {
        ("notice", "shop.shop.parts", "rows updated"),
        ("notice", "shop.shop.parts", "table truncated"),
    } == short(found)


def test_the_table_that_records_statements_is_not_reported(contract):
    """
    This holds even if every table is captured.
    """
    text = contract.config.read_text().replace("tables = [", "tables = ['.*\\..*', ")
    contract.config.write_text(text)
    _, found = contract.judge("update shop.private set name = 'x'")

    assert {("notice", "shop.shop.private", "rows updated")} == short(found)
