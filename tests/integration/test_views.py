"""Aggregate views on a real server: their descriptions, and reasons to refuse them."""
# ruff: noqa: ISC004, S608 - the tests' own SQL, in strings over several lines

from collections.abc import Iterator

import psycopg
import pytest

from towpath.relay.postgres.tables import TableRefusedError
from towpath.relay.postgres.views import describe_view, view_findings
from towpath.relay.snapshot.shape import DeclaredView
from towpath.relay.wal.messages import Column
from towpath.schemas.findings import Severity
from towpath.settings.outbox import AggregateView

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

TABLES = """
create schema s;
create table s.o (id bigint primary key, u uuid, t text, doc jsonb, at timestamptz);
create table s.line (order_id bigint, number int, sku text);
create table s.parent (id bigint, t text) partition by list (id);
create table s.child partition of s.parent default;
"""
STATE = "'State'::text as type, to_jsonb(o) as payload"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    """Provide a connection to a database with tables for views."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def declared(**fields: object) -> AggregateView:
    """Return the declaration of a view."""
    values = {"aggregate_type": "order", "view": "s.v"}
    return AggregateView.model_validate(values | fields)


def refusal(connection: psycopg.Connection, view: AggregateView) -> str:
    """Return the reason why a view is refused."""
    with pytest.raises(TableRefusedError) as refused:
        describe_view(connection, view)
    return str(refused.value)


def test_a_view_is_a_collection_with_three_columns_and_the_id_as_key(connection):
    """
    The order of the view's own columns does not matter; it may select from a view.
    """
    connection.execute(
        "create view s.base as select * from s.o order by id limit 100;"
        "create view s.v as select (select jsonb_agg(to_jsonb(l) order by number)"
        " from s.line l where order_id = id) as payload, 'State'::text as type,"
        " id as aggregate_id from s.base"
    )

    shape = describe_view(connection, declared(id_form="integer"))

    oid = connection.execute("select 's.v'::regclass::oid::bigint").fetchone()[0]
    relation = shape.relation
    expected = (
        Column("aggregate_id", 20, -1),
        Column("type", 25, -1),
        Column("payload", 3802, -1),
    )
    assert (relation.oid, relation.name, relation.key) == (oid, "outbox.order", (0,))
    assert shape.key_types == ("bigint",)
    assert DeclaredView("order", "s.v") == shape.view

    assert expected == relation.columns


KEYS = {
    "text": ("t", "text", "text"),
    "varchar": ("t::varchar(9)", "text", "character varying(9)"),
    "uuid": ("u", "uuid", "uuid"),
    "uuid as text": ("u", "text", "uuid"),
    "smallint": ("id::smallint", "integer", "smallint"),
    "integer as text": ("id", "text", "bigint"),
    "a collation": ('t collate "C"', "text", "text"),
}


@pytest.mark.parametrize("name", KEYS)
def test_the_type_of_an_id_must_fit_the_declared_form(connection, name):
    """
    A form accepts each type whose text, as the server writes it, has that form.
    """
    column, form, type_name = KEYS[name]
    connection.execute(
        f"create view s.v as select {column} as aggregate_id, {STATE} from s.o o"
    )

    shape = describe_view(connection, declared(id_form=form))

    assert (type_name,) == shape.key_types


REFUSED = {
    "an extra column": ("id as aggregate_id, 1 as n, ", "columns must be"),
    "numeric id": ("id::numeric as aggregate_id, ", "aggregate_id is numeric"),
    "text for integers": ("t as aggregate_id, ", "id_form integer it must be smallint"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_view_with_different_columns_is_refused(connection, name):
    """
    The reason names the column and the types that it may have.
    """
    columns, reason = REFUSED[name]
    connection.execute(f"create view s.v as select {columns}{STATE} from s.o o")

    assert reason in refusal(connection, declared(id_form="integer"))


def test_an_event_type_or_a_payload_of_the_wrong_type_is_refused(connection):
    """
    A payload must not be an array, and an event type must not be a number.
    """
    connection.execute(
        "create view s.v as select id as aggregate_id, 1 as type, '{}'::json as payload"
        " from s.o; create view s.w as select id as aggregate_id, ''::text as type,"
        " array[1] as payload from s.o"
    )

    reasons = [refusal(connection, declared(view=name)) for name in ("s.v", "s.w")]

    assert [reason.split(",")[0] for reason in reasons] == [
        "type is integer",
        "payload is integer[]",
    ]


def test_a_nondeterministic_collation_is_refused(connection):
    """
    Two ids could be equal for the server, but different keys in Kafka.
    """
    connection.execute(
        'create collation s.loose from "C"; update pg_collation set'
        " collisdeterministic = false where collname = 'loose';"
        f"create view s.v as select t collate s.loose as aggregate_id, {STATE}"
        " from s.o o"
    )

    assert "not deterministic" in refusal(connection, declared())


BELOW = {
    "a materialized view": (
        "create materialized view s.m as select * from s.o; create view s.base as"
        " select * from s.m",
        "s.m, a materialized view",
    ),
    "a foreign table": (
        "create foreign data wrapper w; create server f foreign data wrapper w;"
        "create foreign table s.far (id bigint, t text) server f;"
        "create view s.base as select * from s.far",
        "s.far, a foreign table",
    ),
    "a foreign partition": (
        "create foreign data wrapper w; create server f foreign data wrapper w;"
        "create foreign table s.far partition of s.parent for values in (1) server f;"
        "create view s.base as select * from s.parent",
        "s.far, a foreign table",
    ),
    "an unlogged table": (
        "create unlogged table s.fast (id bigint, t text);"
        "create view s.base as select * from s.fast",
        "s.fast, which is unlogged",
    ),
    "an unlogged table in a subquery": (
        "create unlogged table s.fast (id bigint, t text); create view s.base as"
        " select *, (with f as (select * from s.fast) select count(*) from f) from s.o",
        "s.fast, which is unlogged",
    ),
    "a sequence": (
        "create sequence s.n; create view s.base as select id, last_value from s.o,"
        " s.n",
        "s.n, a sequence",
    ),
    "the catalog": (
        "create view s.base as select oid::bigint as id from pg_class",
        "pg_catalog.pg_class, which changes",
    ),
    "a volatile function": (
        "create view s.base as select id from s.o where random() < 2",
        "it calls random(), which is volatile",
    ),
    "a volatile operator": (
        "create function s.f(bigint, bigint) returns bool language sql as 'select"
        " true'; create operator s.@@@ (leftarg = bigint, rightarg = bigint, function"
        " = s.f); create view s.base as select id from s.o where id operator(s.@@@) 1",
        "it calls s.f(), which is volatile: alter function",
    ),
    "the time": (
        "create view s.base as select id from s.o where at < now()",
        "it calls now(), which returns the time",
    ),
    "an age": (
        "create view s.base as select id, age(at) from s.o",
        "it calls age(), which returns the time",
    ),
    "the current date": (
        "create view s.base as select id from s.o where at < current_date",
        "it uses the current date",
    ),
    "a sample": (
        "create view s.base as select id from s.o tablesample system (10)",
        "a random sample",
    ),
    "locks": (
        "create view s.base as select id from s.o for update",
        "it locks rows",
    ),
}


@pytest.mark.parametrize("name", BELOW)
def test_a_view_whose_rows_change_without_events_is_refused(connection, name):
    """
    The forbidden relation or function may be in a view that the view selects from.
    """
    statements, reason = BELOW[name]
    connection.execute(statements)
    connection.execute(
        "create view s.v as select id as aggregate_id, 'State'::text as type,"
        " to_json(b) as payload from s.base b"
    )

    assert reason in refusal(connection, declared())


def test_a_relation_that_is_not_a_view_is_refused(connection):
    """
    The relation may be a table, a materialized view, or missing.
    """
    connection.execute("create materialized view s.m as select * from s.o")

    reasons = [
        refusal(connection, declared(view=name)) for name in ("s.o", "s.m", "s.gone")
    ]

    assert [
        "s.o is not a view",
        "s.m is a materialized view, whose rows change when it is refreshed",
        "there is no view s.gone",
    ] == reasons


def test_stable_functions_and_the_role_are_allowed(connection):
    """
    Their results change only if the tables of the view change.
    """
    connection.execute(
        "create function s.f(bigint) returns text stable language sql as"
        " 'select ''State'''; create view s.v as select id as aggregate_id,"
        " s.f(id) as type, jsonb_build_object('t', t, 'age', age(at, at), 'n',"
        " current_setting('TimeZone'), 'who', current_user, 'all', array(select"
        " generate_series(1, id)))  as payload from s.o"
    )

    shape = describe_view(connection, declared())

    assert "outbox.order" == shape.relation.name


def test_findings_name_missing_views_and_warn_about_user_functions(connection):
    """
    The view without either problem gives no finding.
    """
    connection.execute(
        "create function s.f(bigint) returns text stable language sql as"
        " 'select ''State'''; create view s.v as select id as aggregate_id,"
        f" s.f(id) as type, to_json(o) as payload from s.o o; create view s.w as"
        f" select id as aggregate_id, {STATE} from s.o o"
    )
    views = [declared(view=name) for name in ("s.v", "s.w", "s.gone")]

    found = view_findings(connection, views)

    assert "the view s.v calls s.f()" == found[0].what
    assert "the view s.gone cannot be read: there is no view s.gone" == found[1].what
    assert [Severity.WARNING, Severity.ERROR] == [each.level for each in found]


def test_a_view_that_the_role_may_not_read_is_refused(connection):
    """
    SELECT on the view and USAGE on its schema are sufficient.
    """
    connection.execute(
        f"create view s.v as select id as aggregate_id, {STATE} from s.o o"
    )
    role = f"r_{connection.info.dbname}"
    connection.execute(f"create role {role}; set role {role}")
    try:
        reason = refusal(connection, declared())
        connection.execute(
            f"reset role; grant usage on schema s to {role};"
            f"grant select on s.v to {role}; set role {role}"
        )
        shape = describe_view(connection, declared())
    finally:
        connection.execute(f"reset role; drop owned by {role}; drop role {role}")

    assert "the relay's role may not read s.v: grant" in reason

    assert "outbox.order" == shape.relation.name
