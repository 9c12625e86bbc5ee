"""Errors of the database: their classes and remedies, and the values they hide."""

from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from towpath.schemas.failure import UsageError
from towpath.services.inventory.repository import seed_products, seed_reservations
from towpath.services.orders.__main__ import seed_shop
from towpath.services.orders.app import MIGRATIONS
from towpath.services.plumbing.database import (
    DatabaseBusyError,
    DatabaseUnavailableError,
    MissingRightsError,
    MissingTableError,
    NewerTablesError,
    UnitOfWork,
    _upgrade,
    create_role,
    failure_of,
    make_engine,
)


def error_with(
    state: str | None, kind=psycopg2.DatabaseError, text="some text"
) -> DBAPIError:
    """Make an error as SQLAlchemy raises it, around an error with this SQLSTATE."""

    class Named(kind):
        pgcode = state

    return DBAPIError("select 1", {}, Named(text))


def lost_connection() -> DBAPIError:
    """Make the error of a connection that the server has ended."""
    return error_with("57P01", psycopg2.OperationalError)


@pytest.mark.parametrize(
    ("state", "failure"),
    [
        ("08006", DatabaseUnavailableError),
        ("57P01", DatabaseUnavailableError),
        ("57P03", DatabaseUnavailableError),
        ("40001", DatabaseBusyError),
        ("40P01", DatabaseBusyError),
        ("53300", DatabaseBusyError),
        ("55P03", DatabaseBusyError),
        ("57014", DatabaseBusyError),
        ("25P03", DatabaseBusyError),
        ("42P01", MissingTableError),
        ("3F000", MissingTableError),
        ("42501", MissingRightsError),
        ("23505", type(None)),
        ("22003", type(None)),
    ],
)
def test_a_database_error_is_classified_by_its_state(state: str, failure: type):
    """
    Failures of the platform have their own classes; other errors are left as they are.
    """
    assert failure is type(failure_of(error_with(state)))


def test_an_operational_error_without_a_state_is_a_lost_connection():
    """
    The driver did not reach Postgres, so there is no SQLSTATE.
    """
    failure = failure_of(error_with(None, psycopg2.OperationalError))

    assert DatabaseUnavailableError is type(failure)


def test_any_other_error_without_a_state_is_left_as_it_is():
    """
    A mistake in a statement is not a reason to retry it.
    """
    assert failure_of(error_with(None, psycopg2.ProgrammingError)) is None


def test_an_invalid_address_gives_one_error_without_the_password():
    """
    An unquoted space in a password ends it early; the rest must not be logged.
    """
    unreadable = "user=shop password=my secret"
    administration = create_engine("postgresql+psycopg2://")
    with pytest.raises(UsageError, match="cannot be read") as served:
        make_engine(unreadable, pool_size=1)
    with pytest.raises(UsageError, match="cannot be read") as created:
        create_role(administration, unreadable)

    assert "secret" not in f"{served.value} {created.value}"


def test_a_connection_lost_at_the_end_of_a_unit_is_unavailable():
    """
    The final rollback fails, too; this is an outage, not a defect. No connection leaks.
    """
    closed = []

    def lose():
        raise lost_connection()

    connection = SimpleNamespace(close=lambda: closed.append("connection"))
    engine = SimpleNamespace(connect=lambda: connection)
    session = SimpleNamespace(info={}, close=lose)
    unit = UnitOfWork(SessionFactory(engine, session))
    with pytest.raises(DatabaseUnavailableError), unit:
        pass

    assert ["connection"] == closed


class SessionFactory:
    """A factory that always returns the same session, and is bound to an engine."""

    def __init__(self, engine, session):
        self.kw = {"bind": engine}
        self._session = session

    def __call__(self, **_given):
        """Return the session."""
        return self._session


class SeededEngine:
    """An engine that records the statements instead of executing them."""

    def __init__(self):
        self.statements = []

    @contextmanager
    def begin(self):
        """Begin a transaction."""
        yield self

    def execute(self, statement, _values=None):
        """Record a statement; the connection is lost at ANALYZE."""
        self.statements.append(str(statement))
        if str(statement).startswith("analyze"):
            raise lost_connection()


@pytest.mark.parametrize(
    "seed",
    [
        partial(seed_products, products=9, units=1, scarce=1),
        partial(seed_reservations, orders=9, first_order=1, seed=1),
        partial(seed_shop, orders=9, customers=1),
    ],
)
def test_a_seed_may_take_as_long_as_its_rows_need(seed):
    """
    The time limit of a request's statements does not apply to the seed of a large shop.
    """
    engine = SeededEngine()
    with suppress(DatabaseUnavailableError):
        seed(engine)

    assert "set local statement_timeout = 0" == engine.statements[0]


def test_a_connection_lost_while_a_seed_is_analyzed_is_unavailable():
    """
    The command ends with one error and its remedy, as for the seed's other statements.
    """
    with pytest.raises(DatabaseUnavailableError):
        seed_shop(SeededEngine(), orders=9, customers=1)


def test_an_error_of_the_database_shows_no_values():
    """
    An unexpected error is logged, so it must not contain the row that servers quote.
    """
    engine = make_engine("postgresql:///shop", pool_size=1)
    refused = 'violates check constraint "c"\nDETAIL:  Failing row contains (secret).'
    error = error_with("23514", text=refused)
    context = SimpleNamespace(sqlalchemy_exception=error, original_exception=error.orig)
    engine.dialect.dispatch.handle_error(context)

    assert engine.hide_parameters
    assert "secret" not in f"{error} {error.orig}"
    assert 'violates check constraint "c"' == str(error.orig)
    assert "select 1" in str(error)


def test_tables_of_a_newer_release_give_one_error():
    """
    A downgraded service finds a revision that its package does not have.
    """
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        connection.exec_driver_sql("attach ':memory:' as shop")
        connection.exec_driver_sql("create table shop.alembic_version (version_num)")
        connection.exec_driver_sql("insert into shop.alembic_version values ('9999')")
        with pytest.raises(NewerTablesError, match=r"schema shop .*9999") as refused:
            _upgrade(connection, MIGRATIONS, "shop")

    assert "release" in refused.value.remedy
