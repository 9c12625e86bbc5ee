"""Changes to one table's rows, and a sink that writes them to an index."""

from support.copying import replace
from towpath.schemas.clock import SystemClock
from towpath.sinks.change import ALL_PRESENT, Change, Floor, Origin
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.ports import Batch
from towpath.sinks.targets.search.sink import SearchSink

ROUTE = "shop.orders"


class OneShape:
    """The shape of the one table."""

    def shape(self, _topic):
        """Return the shape."""
        columns = (Column("id", "bigint"), Column("v", "text"))
        return RelationShape("shop", "orders", columns, ("id",), "")

    def refresh(self):
        """Do nothing: the shape is known."""


def change(key, position, row, present=ALL_PRESENT):
    """Make a change to one row."""
    position_text = f"{position:016x}.0000000000"
    origin = Origin(ROUTE, 0, 0)
    return Change(ROUTE, (key,), ("id",), position_text, row, present, False, origin)


def write_index(url, route):
    """Set up an index, write rows, a partial change and a delete, and sweep it."""

    def routed(key, position, row, present=ALL_PRESENT):
        return replace(change(key, position, row, present), route=route.name)

    sink = SearchSink(url, (route,), OneShape(), SystemClock())
    sink.open()
    sink.apply(Batch(0, tuple(routed(n, 8, {"id": n, "v": "a"}) for n in range(3))))
    partial = routed(1, 16, {"id": 1}, frozenset({"id"}))
    sink.apply(Batch(1, (partial, routed(2, 16, None))))
    sink.flush()
    below = f"{12:016x}.0000000000"
    sweep = Floor(route.name, below, False, Origin(route.name, 0, 0))
    sink.apply(Batch(2, floors=(sweep,)))
    sink.flush()
    sink.close()
