"""The doctor's checks of tables, keys, views, slots and rights, made to fail."""

from contextlib import ExitStack, closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from support.examined_source import Source, examined, ids
from towpath.deploy.doctor.servers import source_findings
from towpath.schemas.clock import SystemClock

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

UNSENT = "alter publication towpath set (publish_generated_columns = none);"
REMOVED = UNSENT + "drop table note; "
GENERATED_KEY = (
    REMOVED + "create table note (a int not null,"
    " id int generated always as (a) stored primary key)"
)
GENERATED_IDENTITY = (
    REMOVED + "create table note (id int primary key, a int not null,"
    " g int generated always as (a) stored not null);"
    "create unique index note_g on note (g);"
    "alter table note replica identity using index note_g"
)
OTHER_IDENTITY = (
    "alter table note add other int not null unique;"
    "alter table note replica identity using index note_other_key"
)
GENERATED = "table-identity-generated"
PUBLISHED = "; alter publication towpath add table note"
INSERTS_ONLY = (
    "alter publication towpath set (publish = 'insert');"
    "alter table note replica identity nothing"
)
LISTED = (
    "alter publication towpath set table note (id), day, towpath.signal;"
    "alter table note replica identity full"
)
NEWER_PUBLICATION = (
    "drop publication towpath_outbox; create publication towpath_outbox"
    " for table towpath.outbox with (publish = 'insert')"
)
CALLING_VIEW = """
create function one(bigint) returns text stable language sql as 'select ''State''';
create view notes as
  select id::bigint as aggregate_id, one(id) as type, to_json(n) as payload from note n
"""
VIEW = '[[relay.outbox.view]]\naggregate_type = "note"\nview = "public.notes"\n'


@pytest.mark.parametrize(
    ("statements", "finding"),
    [
        ("select pg_drop_replication_slot('{name}')", "error slot-missing"),
        (NEWER_PUBLICATION, "warning slot-before-publication"),
        (
            "alter database {name} set logical_decoding_work_mem = '1MB'",
            "warning postgres-decoding-memory",
        ),
        (
            UNSENT + "alter table note add g int generated always as (id + 1) stored",
            "warning table-generated-columns",
        ),
        (GENERATED_KEY + PUBLISHED, "error table-generated-key"),
        (GENERATED_IDENTITY + PUBLISHED, "error table-identity-generated"),
        (OTHER_IDENTITY, "error table-identity-lacks-key"),
        (INSERTS_ONLY, "warning table-identity-inserts-only"),
        (LISTED, "error table-identity-column-list"),
    ],
)
def test_an_altered_table_or_slot_is_found(
    source: Source, statements: str, finding: str
):
    """
    Each finding is absent until the source is altered (B32, B61, B73, B81).
    """
    before = examined(source)
    source.execute(statements)

    assert finding not in before
    assert finding in examined(source)


def test_a_generated_column_outside_a_column_list_needs_a_longer_list(source: Source):
    """
    The server ignores publish_generated_columns for a table with a column list.
    """
    listed = "alter publication towpath set table note ({0}), day, towpath.signal"
    source.execute(GENERATED_IDENTITY + PUBLISHED, listed.format("id, a"))
    source.execute("alter publication towpath set (publish_generated_columns = stored)")
    found = list(source_findings(source.configure(), SystemClock()))
    source.execute(listed.format("id, a, g"))

    assert [True] == ["column list" in f.cure for f in found if f.id == GENERATED]
    assert f"error {GENERATED}" not in examined(source)


@pytest.mark.parametrize(
    ("statements", "finding"),
    [
        ("select 1", "error view-unreadable"),
        (CALLING_VIEW, "warning view-functions"),
    ],
)
def test_an_aggregate_view_that_cannot_be_trusted_is_found(
    source: Source, statements: str, finding: str
):
    """
    One declared view does not exist; the other calls a function that hides its tables.
    """
    before = examined(source)
    source.execute(statements)

    assert finding not in before
    assert finding in examined(source, VIEW)


def test_a_server_without_a_free_slot_is_found(bare: Source):
    """
    Other slots use up the limit before relay init has created its own slot.
    """
    before = examined(bare)
    bare.execute(
        "select pg_create_physical_replication_slot('{name}_' || n) from"
        " generate_series(1, current_setting('max_replication_slots')::int"
        " - (select count(*) from pg_replication_slots)::int) n"
    )

    assert "error postgres-slots-taken" not in before
    assert "error postgres-slots-taken" in examined(bare)


def test_a_server_without_a_free_wal_sender_is_found(source: Source):
    """
    Every WAL sender serves a different connection, such as a standby or a backup.
    """
    before = examined(source)
    with psycopg.connect(source.dsn) as connection:
        query = "select current_setting('max_wal_senders')::int"
        (limit,) = connection.execute(query).fetchone()
    with ExitStack() as senders:
        for _ in range(limit):
            stream = psycopg.connect(source.dsn, replication="database")
            senders.enter_context(closing(stream))
        found = examined(source)
    full = {"error postgres-senders-taken", "error postgres-replication-connection"}

    assert full & before == set()
    assert full <= found


def test_a_database_with_an_unsuitable_encoding_is_found(bare: Source, unique: str):
    """
    Records must be UTF-8; text in an SQL_ASCII database may not be.
    """
    other = f"{unique}_ascii"
    bare.execute(
        f"create database {other} encoding 'SQL_ASCII' template template0 locale 'C'"
    )
    original = bare.dsn
    try:
        bare.dsn = make_conninfo(original, dbname=other)
        found = examined(bare)
    finally:
        bare.dsn = original
        bare.execute(f"drop database {other}")

    assert "error postgres-encoding" not in examined(bare)
    assert "error postgres-encoding" in found


def test_a_role_without_the_rights_of_a_relay_is_found(source: Source, unique: str):
    """
    The role can read, but can neither replicate nor write to the relay's tables.
    """
    role = f"{unique}_r"
    source.execute(
        f"create role {role} login",
        f"grant usage on schema towpath to {role}",
        f"grant select on all tables in schema public, towpath to {role}",
    )
    owner = source.dsn
    try:
        source.dsn = make_conninfo(owner, user=role)
        found = ids(source_findings(source.configure(), SystemClock()))
    finally:
        source.dsn = owner
        source.execute(f"drop owned by {role}", f"drop role {role}")

    assert {
        "error postgres-role-replication",
        "error postgres-replication-connection",
        "error postgres-rights",
    } <= found
