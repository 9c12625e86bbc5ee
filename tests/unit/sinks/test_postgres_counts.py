"""The Postgres sink without a server: its counts, and tables that cannot be read."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from towpath.settings import Route, Sink
from towpath.sinks.change import ALL_PRESENT, Change, Origin
from towpath.sinks.errors import BatchRefusedError, ShapeUnknownError
from towpath.sinks.ports import Batch
from towpath.sinks.targets.postgres import read
from towpath.sinks.targets.postgres.client import ForeignRelationError
from towpath.sinks.targets.postgres.sink import PostgresSink

SINK = Sink(
    name="p",
    kind="postgres",
    url="postgresql://unused",
    route=(Route(topic="t", name="shop.orders"),),
)
ROW = Change(
    *("shop.orders", (7,), ("id",), "0000000000000009.0000000000"),
    *({"id": 7}, ALL_PRESENT, False, Origin("t", 0, 0)),
)


class Relations:
    """A source whose announcements cannot be read."""

    def __init__(self, error):
        self._error = error

    def refresh(self):
        """Fail."""
        message = "no broker"
        raise self._error(message)


@pytest.mark.parametrize(
    ("deliver", "error"),
    [
        (lambda sink: sink.apply(Batch(0, (ROW,))), ShapeUnknownError),
        (lambda sink: sink.apply(Batch(0, (ROW,))), BatchRefusedError),
        (
            lambda sink: sink.apply_columns(SimpleNamespace(route=ROW.route)),
            ShapeUnknownError,
        ),
    ],
    ids=["changes", "refused", "columns"],
)
def test_a_failure_before_the_transaction_drops_the_counts_of_its_batch(deliver, error):
    """
    An earlier call has counted rows, and the whole batch is retried.
    """
    sink = PostgresSink(SINK, Relations(error))
    sink._tally.applied = 1000  # as after a call of ``apply_columns``
    with pytest.raises(error):
        deliver(sink)

    assert 0 == sink.flush().applied


@pytest.mark.parametrize(
    ("columns", "missing"),
    [
        (("number", "_position", "_deleted"), "id"),
        (("id", "_position"), "_deleted"),
        (("id", "_deleted"), "position"),
    ],
)
def test_a_table_without_a_column_of_the_sink_cannot_be_read(
    columns, missing, monkeypatch
):
    """
    Its owner has renamed or dropped the column; the other routes are still verified.
    """
    registered = SimpleNamespace(fetchone=lambda: ("1 2", ["id"], None))
    connection = SimpleNamespace(execute=lambda _: registered)
    session = SimpleNamespace(transaction=lambda: nullcontext(connection))
    monkeypatch.setattr(read, "TargetSession", lambda _: session)
    found = dict.fromkeys(columns, "text")
    monkeypatch.setattr(read, "columns_of", lambda *_: found)
    reader = read.PostgresReader(SINK)

    with pytest.raises(ForeignRelationError, match=f"the column {missing}"):
        next(reader.rows("shop.orders"))
