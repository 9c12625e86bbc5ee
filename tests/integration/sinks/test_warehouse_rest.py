"""A warehouse that is configured with a REST catalog and a location."""

from collections.abc import Iterator

import pytest
import structlog

from support.rest_catalog import RefusedError, serving
from support.warehouse_tables import Lake, session_of, write
from towpath.settings import WarehouseOptions
from towpath.sinks.changes.relations import Column
from towpath.sinks.engine.session import SparkSql
from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.targets.warehouse.read import WarehouseReader

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture
def rest(lake, tmp_path) -> Iterator[tuple[Lake, object]]:
    """Provide a warehouse whose catalog is a server, with a session of its own."""
    sink_settings, _ = lake
    with serving(tmp_path) as (url, catalog):
        options = {"catalog": "rest", "location": "lake"}
        sink = sink_settings.model_copy(
            update={
                "url": url,
                "folder": None,
                "warehouse": WarehouseOptions(**options),
            }
        )
        session = session_of(sink)
        for name in ("jdbc.schema-version", "jdbc.user", "jdbc.password"):
            session.conf.unset(f"spark.sql.catalog.lake.{name}")
        made = Lake(sink, SparkSql(session), **options)
        yield made, catalog
        made.reader.close()


def test_a_rest_catalog_serves_writer_and_reader(rest):
    """Rows, a partial change, a delete, a new column, the view and the log all work."""
    lake, catalog = rest
    sink = lake.sink()
    write(
        sink,
        [lake.change(8, n, {"note": "a", "body": "{}"}) for n in range(3)],
        [lake.event(1)],
    )
    lake.relations.columns = (*lake.relations.columns, Column("channel", "text"))
    changes = [
        lake.change(16, 0, None),
        lake.change(16, 1, {"note": "b", "channel": "web"}, unchanged=["body"]),
    ]
    outcome = write(sink, changes, [lake.event(1), lake.event(2)])
    write(lake.sink(), [lake.change(4, 2, {"note": "stale"})])
    live = lake.sql("SELECT id, note, body FROM {t}_live ORDER BY id")

    assert (3, 1, ()) == (outcome.applied, outcome.stale, outcome.refused)
    assert {"1": "b", "2": "a"} == lake.notes()
    assert [(1, "b", "{}"), (2, "a", "{}")] == [tuple(r.values()) for r in live]
    assert 2 == len(list(lake.reader.rows(lake.events)))
    assert catalog.requests > 20


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(0, id="the first", marks=pytest.mark.soak),
        pytest.param(1, id="a later one"),
    ],
)
def test_an_append_whose_response_a_proxy_loses_is_stored_once(rest, before):
    """The server commits the append, but the client gets a 502; the engine finds it."""
    lake, catalog = rest
    answer, lost = catalog.answer, []

    def answer_or_lose(method, path, body):
        done = answer(method, path, body)
        actions = {update["action"] for update in body.get("updates", ())}
        if "add-snapshot" in actions and path not in lost:
            lost.append(path)
            raise RefusedError(502, "ServiceFailureException")
        return done

    sink = lake.sink()
    rows = [lake.change(8, n, {"note": str(n)}) for n in range(4)]
    events = [lake.event(n) for n in range(4)]
    write(sink, rows[:before], events[:before])
    catalog.answer = answer_or_lose
    with structlog.testing.capture_logs() as logs:
        write(sink, rows[before:], events[before:])
    write(sink, rows, events)
    found = [(r.key, r.fields["note"]) for r in lake.reader.rows(lake.orders)]
    ids = [row.key for row in lake.reader.rows(lake.events)]

    assert (2, ["CommitStateUnknownException"] * 2) == (
        len(lost),
        [line["why"].partition(":")[0] for line in logs if "why" in line],
    )
    assert [(str(n), str(n)) for n in range(4)] == sorted(found)
    assert sorted(event.id for event in events) == sorted(ids)


def test_a_table_that_does_not_exist_has_no_rows(rest):
    """A REST catalog behaves like any other here."""
    lake, _ = rest

    assert [] == list(lake.reader.rows("shop.never"))


def test_a_rest_catalog_that_refuses_connections_is_unavailable(rest, unused_port):
    """A reader that cannot read raises an error instead of returning no rows."""
    lake, _ = rest
    url = f"http://127.0.0.1:{unused_port}"
    reader = WarehouseReader(lake.sink_settings.model_copy(update={"url": url}))

    with pytest.raises(TargetUnavailableError, match="cannot be read"):
        list(reader.rows(lake.orders))
