"""The warehouse after a successful append whose response is lost."""

from contextlib import suppress

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from support.warehouse_tables import Faulty, write
from towpath.schemas.failure import UnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture
def lost(monkeypatch):
    """
    Make each table's next append raise the test's error after its commit.

    Provide the errors by table; an error is removed when it is raised.
    """
    commit, errors = SqlCatalog.commit_table, {}

    def commit_and_raise(catalog, table, requirements, updates):
        done = commit(catalog, table, requirements, updates)
        error = errors.pop(".".join(table.name()), None)
        if error is not None:
            raise error
        return done

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_and_raise)
    return errors


@pytest.mark.parametrize(
    ("error", "before"),
    [
        pytest.param(CommitStateUnknownException("502"), 0, id="unknown, the first"),
        pytest.param(CommitStateUnknownException("502"), 3, id="unknown, a later one"),
        pytest.param(
            *(ConnectionResetError("cut off"), 0),
            id="cut off, the first",
            marks=pytest.mark.soak,
        ),
        pytest.param(ConnectionResetError("cut off"), 3, id="cut off, a later one"),
        # The error that results if a proxy repeats the request.
        pytest.param(
            *(CommitFailedException("has changed"), 0),
            id="refused, the first",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            CommitFailedException("has changed"), 3, id="refused, a later one"
        ),
    ],
)
def test_an_append_whose_response_is_lost_is_stored_once(
    warehouse, lost, error, before
):
    """The same attempt finds the append; if the engine fails too, the next one does."""
    sink = warehouse.sink(Faulty(warehouse, "MERGE", after=False))
    keys = range(before + 3)
    rows = [warehouse.change(8, key, {"note": str(key)}) for key in keys]
    events = [warehouse.event(key) for key in keys]
    for n in range(before):
        write(sink, [rows[n]], [events[n]])
    lost |= {warehouse.orders: error, warehouse.events: error}
    for _ in range(4):
        with suppress(UnavailableError):
            write(sink, rows[before:], events[before:])
    write(sink, [warehouse.change(4, key, {"note": "stale"}) for key in keys], events)
    found = [(r.key, r.fields["note"]) for r in warehouse.reader.rows(warehouse.orders)]
    ids = [row.key for row in warehouse.reader.rows(warehouse.events)]

    assert {} == lost
    assert [(str(key), str(key)) for key in keys] == sorted(found)
    assert sorted(event.id for event in events) == sorted(ids)
