"""The roles of the shop's services: each has its rights, and no others."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from support import compose_file
from support.rig import Rig
from support.rights import documented
from support.saga import SERVICES, Saga
from towpath.cli.app import run
from towpath.deploy.local import postgres
from towpath.deploy.local.part import StateFolder
from towpath.services.orders.app import migrate_shop
from towpath.services.plumbing.database import MissingRightsError, create_role
from towpath.services.plumbing.service import closing_engine
from towpath.sinks.wait.source import PostgresSlot

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

OWNERS = {
    "shop": "orders",
    "inventory": "inventory",
    "payments": "payments",
    "payment_provider": "payments",
    "shipping": "shipping",
    "towpath": "postgres",
}
# Tables and views, with the role that owns each.
RELATIONS = """
select n.nspname, n.nspname || '.' || quote_ident(c.relname),
       pg_get_userbyid(c.relowner)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'v') and n.nspname = any(%s)
"""
STATEMENTS = (
    "select from {}",
    "insert into {} default values",
    "delete from {}",
    "truncate {}",
    "alter table {} add column planted text",
    "create index on {} ((1))",
)
CUSTOMER = (
    "insert into shop.customers (id, name, email) values (gen_random_uuid(), 'Ada', '')"
)


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source without tables, and its broker."""
    stack.up("postgres", "kafka")
    rig = Rig(database, stack.kafka, unique, tmp_path)
    yield rig
    rig.close()


def is_refused(connection: psycopg.Connection, statement: str) -> bool:
    """Return whether a role may not run a statement; roll back its effects."""
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        return True
    except psycopg.Error:
        return False
    finally:
        connection.rollback()
    return False


def allowed_statements(dsn: str, relations: Iterable[str]) -> Iterator[str]:
    """Yield each statement on the relations that the server does not refuse."""
    with psycopg.connect(dsn) as connection:
        for relation in relations:
            for statement in (text.format(relation) for text in STATEMENTS):
                if not is_refused(connection, statement):
                    yield statement


def test_a_service_works_only_in_its_own_schema(rig: Rig):
    """
    Each service migrates its own tables, and has no rights on other services' tables.

    An order passes through all four services. A service can insert into the outbox,
    but neither read nor change its rows.
    """
    rig.configure(rig.outbox)
    saga = Saga(rig, {})
    try:
        for name in SERVICES:
            saga.run(name, "migrate", "--admin-dsn", rig.dsn)
        rig.init()
        saga.start()
        saga.settled(saga.check_out(), "completed")
        found = rig.execute(RELATIONS, [*OWNERS])
        allowed = {
            (name, statement)
            for name in SERVICES
            for statement in allowed_statements(
                saga.dsn_of(name),
                [relation for _, relation, owner in found if owner != name],
            )
        }
    finally:
        saga.close()
    inboxes = {relation for _, relation, _ in found if relation.endswith(".inbox")}

    assert 4 == len(inboxes)
    assert {(schema, owner) for schema, _, owner in found} == {*OWNERS.items()}
    event = "insert into towpath.outbox default values"
    assert {(name, event) for name in SERVICES} == allowed


def test_a_role_is_created_once_and_gets_the_password_of_its_address(
    database: str, unique: str
):
    """
    The server stores the hash, and a changed password replaces it.
    """
    stored = "select rolpassword from pg_authid where rolname = %s"
    hashes = []
    with psycopg.connect(database, autocommit=True) as connection:
        for secret in ("one", "two"):
            dsn = make_conninfo(database, user=unique, password=secret)
            with closing_engine(database) as engine:
                create_role(engine, dsn)
            hashes += connection.execute(stored, [unique]).fetchone()
        owned = connection.execute(
            "select has_database_privilege(%s, current_database(), 'create')", [unique]
        ).fetchone()
        connection.execute(f"drop owned by {unique}")
        connection.execute(f"drop role {unique}")

    assert (True,) == owned
    assert len(set(hashes)) == 2
    assert all(text.startswith("SCRAM-SHA-256$") for text in hashes)


def test_a_service_that_lacks_rights_names_the_remedy(database: str, unique: str):
    """
    If the role may not create tables, the error of the migration names the option.
    """
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"create role {unique} login")
        with (
            closing_engine(make_conninfo(database, user=unique)) as engine,
            pytest.raises(MissingRightsError, match="permission denied") as refused,
        ):
            migrate_shop(engine)
        connection.execute(f"drop role {unique}")

    assert "--admin-dsn" in refused.value.remedy


@pytest.fixture
def sql(database: str, unique: str):
    """Provide the documented statements, with the test's prefix in all names."""
    texts = [*documented("sql", "Postgres"), *documented("sql", "The shop's services")]
    named = []
    for text in texts:
        ours = text.replace("towpath_", f"{unique}_")
        ours = ours.replace("database shop", f"database {unique}")
        named.append(re.sub(r"\borders\b", f"{unique}_orders", ours))
    yield named
    roles = re.findall(r"create role (\w+)", "".join(named))
    with psycopg.connect(database, autocommit=True) as connection:
        for role in roles:
            connection.execute(f"drop owned by {role} cascade")
        for role in roles:
            connection.execute(f"drop role {role}")


def test_a_relay_with_its_own_role_captures_the_tables_of_a_service(
    sql: list[str], rig: Rig, unique: str, capsys
):
    """
    The owner publishes tables that a service owns; the relay reads and streams them.

    A table that the service adds later needs no further grant.
    """
    roles, _, service, defaults, events = sql
    for block in (roles, service, defaults):
        rig.execute(block)
    dsn = {
        name: make_conninfo(rig.dsn, user=f"{unique}_{name}")
        for name in ("owner", "relay", "operator", "orders")
    }
    with closing_engine(dsn["orders"]) as engine:
        migrate_shop(engine)
    tables = ["shop.customers"]
    administrator, rig.dsn = rig.dsn, dsn["owner"]
    rig.configure(tables=tables)
    rig.init()
    grants = sql[1].replace("shop", "public")
    with psycopg.connect(dsn["owner"], autocommit=True) as owner:
        owner.execute(grants)
        owner.execute(events)
    with psycopg.connect(dsn["orders"], autocommit=True) as orders:
        orders.execute(CUSTOMER)
        orders.execute("create table shop.added (id int primary key)")
        orders.execute("insert into shop.added values (7)")
        rig.configure(tables=[*tables, "shop.added"])
        rig.init()
        rig.dsn = dsn["relay"]
        rig.configure(tables=[*tables, "shop.added"])
        rig.start()
        rig.wait_for(lambda: bool(rig.logged("relay streaming")))
        orders.execute(CUSTOMER)
        code = run(
            ["snapshot", "start", "shop.added", "--wait", "--config", str(rig.config)]
        )
    rig.dsn = administrator

    assert 0 == code, capsys.readouterr().err
    assert 1 <= len(rig.read("shop.customers", at_least=1))
    assert 1 == len(rig.read("shop.added", at_least=1))


def test_the_storefronts_login_reads_the_slots_position_but_no_row(
    stack, database: str, unique: str
):
    """
    The script of compose.yaml creates the login, with the password in the environment.

    A wait for an LSN needs only the position, and may write a logical message.
    """
    script = compose_file.FOLDER / "postgres" / "storefront.sql"
    psql = postgres.home_of(StateFolder(stack.state_folder)).programs / "bin" / "psql"
    done = subprocess.run(
        [psql, "--set", "ON_ERROR_STOP=1", "--file", script, database],
        env={"STOREFRONT_PASSWORD": "it's secret"},
        capture_output=True,
        text=True,
        check=False,
    )
    dsn = make_conninfo(database, user="storefront")
    with psycopg.connect(database, autocommit=True) as connection:
        stored = connection.execute(
            "select rolpassword from pg_authid where rolname = 'storefront'"
        ).fetchone()
        connection.execute("create table towpath_rows (id int)")
        connection.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput')", [unique]
        )
        with closing(PostgresSlot(dsn, unique)) as slot:
            before = slot.status()
            slot.nudge()
            after = slot.status()
        allowed = [*allowed_statements(dsn, ["towpath_rows"])]
        connection.execute("drop role storefront")

    assert 0 == done.returncode, done.stderr
    assert stored[0].startswith("SCRAM-SHA-256$")
    assert before.log_end_lsn < after.log_end_lsn
    assert [] == allowed
