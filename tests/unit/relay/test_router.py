"""The choice of a route for a relation."""

from collections.abc import Sequence

import pytest

from towpath.relay.encode.codecs.codec import Codec, TableNames
from towpath.relay.encode.codecs.connect_schema import Field
from towpath.relay.encode.codecs.json_codec import json_maker
from towpath.relay.encode.columns import ColumnRules
from towpath.relay.encode.dead_letters import DeadLetters, RefusedRoute
from towpath.relay.encode.parked_aggregates import ParkedAggregates
from towpath.relay.encode.relations import NOTHING_KNOWN
from towpath.relay.encode.router import MakeCodec, Router
from towpath.relay.encode.table import RouteCallbacks, SourceNames, TableRoute
from towpath.relay.wal.messages import Column, Relation
from towpath.schemas.failure import SchemaRefusedError
from towpath.settings.relay import Relay


def router(make_codec: MakeCodec | None = None, **relay: object) -> Router:
    """Make a router."""
    settings = Relay.model_validate(relay)
    parked = ParkedAggregates(10)
    return Router(
        place=SourceNames("p", "db"),
        relay=settings,
        dead=DeadLetters("p", lambda _: None, parked),
        parked=parked,
        reserved=frozenset(),
        rules=ColumnRules(settings),
        make_codec=make_codec or json_maker(settings),
        callbacks=RouteCallbacks(),
    )


def table(name: str) -> Relation:
    """Make a relation."""
    schema, _, short = name.partition(".")
    columns = (Column("id", 23),)
    return Relation(oid=7, schema=schema, table=short, columns=columns, key=(0,))


def refuse(
    _names: TableNames, _key: Sequence[Field], _columns: Sequence[Field]
) -> Codec:
    """Refuse every schema."""
    reason = "not compatible"
    raise SchemaRefusedError(reason)


def test_the_signal_table_has_no_route():
    """
    Signals are for the relay itself; captured tables exclude them and the outbox.
    """
    made = router(outbox={"table": "s.box"})
    names = ("towpath.signal", "s.box", "s.other")

    assert (None, [False, False, True]) == (
        made.route(table("towpath.signal"), NOTHING_KNOWN),
        [made.is_captured(name) for name in names],
    )


def test_other_tables_have_a_table_route():
    """
    The topic's name is the prefix followed by the table's name.
    """
    route = router().route(table("s.t"), NOTHING_KNOWN)

    assert (TableRoute, "p.s.t") == (
        type(route),
        route.topic if isinstance(route, TableRoute) else None,
    )


def test_a_refused_schema_halts_the_relay_or_causes_dead_letters():
    """
    The configuration decides which of the two happens.
    """
    parking = router(refuse, rows={"on_refused_schema": "park"})
    route = parking.route(table("s.t"), NOTHING_KNOWN)
    with pytest.raises(SchemaRefusedError):
        router(refuse).route(table("s.t"), NOTHING_KNOWN)

    assert isinstance(route, RefusedRoute)
