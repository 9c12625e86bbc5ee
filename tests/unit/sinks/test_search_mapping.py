"""An index is built from a table's shape, event schemas and the route's fields."""

import json
from types import MappingProxyType

import fastavro
import pytest

from towpath.schemas.events import EventSchema
from towpath.schemas.payload import compile_check
from towpath.services.orders.events import shop_schemas
from towpath.settings import Route, RouteKind, SearchOptions
from towpath.sinks.changes.relations import Column, RelationShape
from towpath.sinks.errors import DocumentFieldsError
from towpath.sinks.kinds import RoutedRelations
from towpath.sinks.targets.search.schema import (
    RouteFields,
    alias_body,
    document_fields,
    field_at,
    field_of,
    index_body,
    index_name,
    number_of,
    replication,
    single_fields,
    unfit_name,
)

ORDER_EVENTS = ("OrderPlaced", "OrderPaid", "OrderCancelled")


class Relations:
    """The shape of the only table."""

    def shape(self, _topic):
        columns = (Column("order_id", "bigint"),)
        return RelationShape("shop", "orders", columns, ("order_id",), "")

    def refresh(self):
        """Do nothing."""


def aggregate(*state_types, **fields):
    """Describe the route of an aggregate."""
    return Route(
        topic="outbox.event.order",
        name="orders",
        kind=RouteKind.AGGREGATE,
        state_types=state_types,
        fields=fields,
    )


def schemas(**fields):
    """Make event schemas from fields in Avro notation."""
    made = {}
    for name, listed in fields.items():
        text = json.dumps({"type": "record", "name": name, "fields": listed})
        parsed = fastavro.parse_schema(json.loads(text))
        check = compile_check(parsed)
        made[name] = EventSchema(name, 1, name, text, MappingProxyType(parsed), check)
    return made


def field(name, type_):
    """Return a field in Avro notation."""
    return {"name": name, "type": type_}


@pytest.mark.parametrize(
    ("type_", "field"),
    [
        ("bigint", "long"),
        ("integer", "integer"),
        ("boolean", "boolean"),
        ("numeric", "keyword"),
        ("text", "text"),
        ("uuid", "keyword"),
        ("timestamp with time zone", "date"),
        ("jsonb", "keyword"),
        ("shop.order_status", "keyword"),
        ("interval", "keyword"),
        ("integer[]", "integer"),
        ("text[]", "text"),
        ("shop.order_status[]", "keyword"),
    ],
)
def test_a_type_maps_to_a_field(type_: str, field: str):
    """Unknown types are keywords, and an array has the field of its elements."""
    assert field == field_of(type_)["type"]


def test_a_decimal_in_an_event_is_searched_as_a_number():
    """
    Its text has every digit, and a subfield serves range queries, as for a numeric.
    """
    digits = {"logicalType": "decimal", "precision": 9, "scale": 2}
    made = schemas(
        Paid=[
            field("fee", {"type": "bytes", **digits}),
            field("total", {"type": "fixed", "name": "M", "size": 8, **digits}),
            field("tax", ["null", "M"]),
        ]
    )
    fields = document_fields(aggregate("Paid"), made)

    assert dict.fromkeys(("fee", "total", "tax"), field_of("numeric")) == fields


def test_the_index_has_only_announced_columns():
    """
    The index is strict, and has the sink's own fields in addition to the columns.
    """
    source = RouteFields(Relations(), {})
    route = Route(topic="towpath.shop.orders", name="orders")
    mappings = index_body(source.shape_of(route).fields, SearchOptions(), {})[
        "mappings"
    ]

    assert ("strict", {"order_id", "_position", "_deleted"}) == (
        mappings["dynamic"],
        set(mappings["properties"]),
    )


def test_a_composite_column_is_an_object_field(monkeypatch):
    """
    It is stored unchanged and not searched, whatever type the route declares.
    """
    columns = (Column("place", "shop.place", is_object=True),)
    shape = RelationShape("shop", "orders", columns, ("id",), "")
    monkeypatch.setattr(Relations, "shape", lambda *_: shape)
    route = Route(topic="towpath.shop.orders", name="orders")
    routed = RoutedRelations(
        Relations(), [route.model_copy(update={"fields": {"place": "text"}})]
    )
    found = [
        RouteFields(relations, {}).shape_of(route).fields["place"]
        for relations in (Relations(), routed)
    ]

    assert [{"type": "object", "enabled": False}] * 2 == found


def test_the_alias_hides_deleted_documents():
    """
    Searches through the alias see live rows only, and writes go through it.
    """
    assert {
        "filter": {"bool": {"must_not": {"term": {"_deleted": True}}}},
        "is_write_index": True,
    } == alias_body()


def test_a_document_has_the_fields_of_all_its_events():
    """
    An order can be searched by the fields of all its events, and each line as a unit.
    """
    found = document_fields(aggregate(*ORDER_EVENTS), shop_schemas().newest)
    lines = found["lines"]
    kinds = {name: part["type"] for name, part in lines["properties"].items()}

    assert ("long", "text", "text", "nested") == (
        found["order_id"]["type"],
        found["paid_at"]["type"],
        found["reason"]["type"],
        lines["type"],
    )
    assert kinds == {
        "line_no": "integer",
        "product_id": "text",
        "quantity": "integer",
        "unit_price": "text",
    }


def test_the_route_chooses_how_nested_fields_are_searched():
    """
    A path names a nested field; the fields around it are unchanged.
    """
    fields = {"total": "numeric", "lines[].product_id": "uuid", "ship.city": "text"}
    found = document_fields(aggregate(*ORDER_EVENTS, **fields), shop_schemas().newest)

    assert ("keyword", "keyword", "integer", "nested", "text") == (
        found["total"]["type"],
        found["lines"]["properties"]["product_id"]["type"],
        found["lines"]["properties"]["quantity"]["type"],
        found["lines"]["type"],
        found["ship"]["properties"]["city"]["type"],
    )


def test_listed_fields_suffice_for_an_index():
    """
    Events without known schemas are searched by the fields that the route lists.
    """
    found = document_fields(aggregate("Sent", **{"lines[].sku": "uuid"}), {})

    assert {"lines": ("nested", ["sku"])} == {
        name: (part["type"], list(part["properties"])) for name, part in found.items()
    }


def test_values_without_a_fixed_type_are_stored_and_not_searched():
    """
    Maps, unions of several types and recursive records have no searchable field.
    """
    inside = {
        "type": "record",
        "name": "Part",
        "fields": [field("of", ["null", "Part"]), field("size", "int")],
    }
    listed = [
        field("tags", {"type": "array", "items": "string"}),
        field("more", {"type": "map", "values": "long"}),
        field("either", ["null", "string", "long"]),
        field("part", inside),
        field("other", ["null", "Part"]),
    ]
    found = document_fields(aggregate("A"), schemas(A=listed))
    unsearched = {"type": "object", "enabled": False}
    part = {"properties": {"of": unsearched, "size": {"type": "integer"}}}

    assert ("text", unsearched, unsearched, part, part) == (
        found["tags"]["type"],
        *(found[name] for name in ("more", "either", "part", "other")),
    )


def test_a_type_is_searched_wherever_its_event_uses_it():
    """
    The first use contains the definition, even inside a list, a map or a union.
    """
    money = {"type": "record", "name": "Money", "fields": [field("amount", "long")]}
    color = {"type": "enum", "name": "Color", "symbols": ["RED"]}
    line = {
        "type": "record",
        "name": "Line",
        "fields": [field("price", money), field("of", ["null", "Line"])],
    }
    listed = [
        field("lines", {"type": "array", "items": line}),
        field("colors", {"type": "map", "values": color}),
        field("total", "Money"),
        field("color", ["null", "Color"]),
        field("first", "Line"),
    ]
    found = document_fields(aggregate("A"), schemas(A=listed))
    amount = {"properties": {"amount": {"type": "long"}}}
    unsearched = {"type": "object", "enabled": False}

    assert (amount, "keyword", {"price": amount, "of": unsearched}) == (
        found["total"],
        found["color"]["type"],
        found["first"]["properties"],
    )


def test_events_that_disagree_on_a_field_are_refused():
    """One field with two types cannot be one field of an index."""
    both = schemas(A=[field("total", "string")], B=[field("total", "long")])

    with pytest.raises(DocumentFieldsError, match="B: its field total differs"):
        document_fields(aggregate("A", "B"), both)


def test_events_that_share_a_record_type_may_add_fields_to_it():
    """
    An event may have an additional field; all other fields must agree.
    """
    lines = {
        kind: {"type": "record", "name": "Line", "fields": listed}
        for kind, listed in (
            ("A", [field("sku", "string")]),
            ("B", [field("sku", "string"), field("price", "string")]),
        )
    }
    both = schemas(**{kind: [field("line", line)] for kind, line in lines.items()})
    found = document_fields(aggregate("A", "B"), both)

    assert ["price", "sku"] == sorted(found["line"]["properties"])


def test_an_event_without_a_schema_is_refused():
    """A misspelled event would give a strict index too few fields."""
    with pytest.raises(DocumentFieldsError, match="OrderPayed has no schema"):
        document_fields(aggregate("OrderPlaced", "OrderPayed"), shop_schemas().newest)


def test_nested_fields_are_listed_with_their_paths():
    """
    Each innermost field is returned with its path and its enclosing fields.
    """
    line = {"sku": {"type": "keyword"}, "at": {"properties": {"x": {"type": "long"}}}}
    fields = {"id": {"type": "long"}, "lines": {"type": "nested", "properties": line}}

    found = dict(single_fields(fields))

    assert [{"type": "long"}, {"type": "keyword"}, {"type": "long"}, None] == [
        field_at(fields, path) for path in (*found, "lines.none")
    ]
    assert {
        "id": {"id": {"type": "long"}},
        "lines.sku": {"lines": {"type": "nested", "properties": {"sku": line["sku"]}}},
        "lines.at.x": {
            "lines": {"type": "nested", "properties": {"at": line["at"]}},
        },
    } == found


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        (-1, {"auto_expand_replicas": "0-1"}),
        (0, {"auto_expand_replicas": False, "number_of_replicas": 0}),
    ],
)
def test_an_index_has_the_settings_of_its_sink(replicas, expected):
    """The number of shards is set once; that of replicas can change at any time."""
    options = SearchOptions(shards=3, replicas=replicas, refresh_ms=250)
    settings = index_body({}, options, {})["settings"]["index"]

    assert {
        "number_of_shards": 3,
        "refresh_interval": "250ms",
        **expected,
    } == settings
    assert expected == replication(options)


@pytest.mark.parametrize(
    ("index", "number"),
    [("orders-1", 1), ("orders-12", 12), ("orders-eu-3", 3), ("orders", 1)],
)
def test_an_index_name_has_its_number(index, number):
    """A name without a number counts as the first."""
    assert number == number_of(index)
    assert number == number_of(index_name("orders", number))


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        ("note", True),
        ("with space", True),
        ('qu"o\\te|%${}\n', True),
        ("a.b", False),
        (" \n", False),
        ("_id", False),
        ("_position", False),
    ],
)
def test_an_index_has_only_valid_field_names(name, is_valid):
    """
    A dot would split a column into two fields; the index refuses meta fields.
    """
    assert is_valid == (not unfit_name(name))
