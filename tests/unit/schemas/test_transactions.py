"""Driver objects that run no statements are rejected like unknown sessions."""

import asyncio
import os
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import (
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker

from towpath.schemas.transactions import (
    MARK,
    SessionTypeError,
    Statement,
    run,
    run_async,
)

ECHO = (Statement.of(f"select {MARK}", {"it": "a"}),)


def synchronous() -> Iterator[object]:
    """Yield driver objects that are related to sessions but are not sessions."""
    engine = create_engine("sqlite://")
    yield engine
    yield sessionmaker(engine)
    yield Session(engine).begin()
    yield object.__new__(psycopg.Transaction)


def asynchronous() -> Iterator[object]:
    """Yield such objects of asynchronous drivers."""
    engine = create_async_engine("postgresql+psycopg://localhost/none")
    makes = async_sessionmaker(engine)
    yield engine
    yield makes
    yield async_scoped_session(makes, scopefunc=os.getpid)
    yield object.__new__(psycopg.AsyncTransaction)
    yield object.__new__(asyncpg.Pool)


@pytest.mark.parametrize("given", [*synchronous()], ids=lambda it: type(it).__name__)
def test_an_object_that_is_not_a_session_is_refused(given: object):
    """Otherwise an engine would raise an AttributeError."""
    with pytest.raises(SessionTypeError, match="the synchronous function cannot use"):
        run(given, ECHO)


@pytest.mark.parametrize("given", [*asynchronous()], ids=lambda it: type(it).__name__)
def test_an_asynchronous_object_that_is_not_a_session_is_refused(given: object):
    """A scoped session, for example, cannot run synchronous functions."""
    with pytest.raises(SessionTypeError, match="the asynchronous function cannot use"):
        asyncio.run(run_async(given, ECHO))


def test_a_session_of_sqlalchemy_runs_statements():
    """Sessions and connections are accepted."""
    with Session(create_engine("sqlite://")) as session:
        assert [("a",)] == run(session, ECHO)
        assert [("a",)] == run(session.connection(), ECHO)
