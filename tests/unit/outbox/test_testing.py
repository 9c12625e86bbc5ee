"""The library's test fixtures for applications, without a server."""

import sqlite3
import subprocess
import sys

import pytest
from sqlalchemy import create_engine, text

from towpath.outbox import testing
from towpath.outbox.testing import DualWriteError


class Committing(sqlite3.Connection):
    """A driver connection that commits each statement by itself."""

    autocommit = True


class Beginning(sqlite3.Connection):
    """A connection with the default transaction control of Python 3.12 and later."""

    autocommit = -1


@pytest.mark.parametrize(
    ("factory", "is_refused"), [(Beginning, True), (Committing, False)]
)
def test_a_connection_without_transactions_has_no_open_transaction(factory, is_refused):
    """
    Nothing can be rolled back, although SQLAlchemy reports a begin.
    """
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(":memory:", factory=factory)
    )
    found = []
    with testing._watching() as watch, engine.connect() as connection:
        connection.execute(text("select 1"))
        try:
            watch.sent("send")
        except DualWriteError as error:
            found.append(error)

    assert is_refused == bool(found)


# Run in a separate process, because the guard replaces the classes of its process.
_GUARDED = """
import sys
from types import ModuleType

sys.modules["kafka"] = ModuleType("kafka")

from towpath.outbox.testing import guard_producers

guard_producers()
print("guarded")
"""


def test_a_module_of_the_application_may_have_a_clients_name():
    """
    A module ``kafka`` without a producer is left unchanged.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _GUARDED], check=False, capture_output=True, text=True
    )

    assert ran.stdout == "guarded\n", ran.stderr
