"""The catalogue of events: fields, nested records, versions and aggregates."""

import json

from towpath.schemas.catalogue import EventPlace, catalogue
from towpath.schemas.events import EventSchemas, make_schema

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "price", "type": "string", "doc": "In cents | or less."}],
}
ORDER = {
    "type": "record",
    "name": "OrderPlaced",
    "namespace": "shop",
    "doc": "An order was placed.",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "lines", "type": {"type": "array", "items": LINE}},
        {"name": "unit", "type": "string", "default": "a|b"},
        {"name": "vip", "type": "boolean", "default": True},
        {
            "name": "tags",
            "type": {"type": "array", "items": "string"},
            "default": ["ä"],
        },
        {
            "name": "by_place",
            "type": {"type": "map", "values": ["null", "Line"]},
            "default": {},
        },
    ],
}
MORE = [
    {
        "name": "state",
        "type": {"type": "enum", "name": "State", "symbols": ["open", "paid"]},
        "default": "open",
    },
    {
        "name": "due",
        "type": ["null", {"type": "int", "logicalType": "date"}],
        "default": None,
        "doc": "The day\n after.",
    },
]
TEXT_ID = {"name": "order_id", "type": "string"}
NEXT = ORDER | {"fields": [TEXT_ID, *ORDER["fields"][1:5], *MORE]}
OTHER = {"type": "record", "name": "Zero", "namespace": "shop", "fields": []}


def schemas() -> EventSchemas:
    """Make two versions of one event, and another event."""
    return EventSchemas(
        [
            make_schema(json.dumps(OTHER)),
            make_schema(json.dumps(NEXT), 2),
            make_schema(json.dumps(ORDER), 1),
        ]
    )


PLACES = {"OrderPlaced": EventPlace("order", "outbox.event.order")}


def test_each_event_lists_its_fields_and_those_of_nested_records():
    """
    Types are shown in words, defaults as JSON, and descriptions escaped for the table.
    """
    page = catalogue(schemas(), PLACES)
    section = page.partition("## OrderPlaced\n")[2].partition("## Zero")[0]

    assert [
        "| `order_id` | string |  |  |",
        "| `lines` | array of Line |  |  |",
        "| `lines[].price` | string |  | In cents \\| or less. |",
        "| `unit` | string | `a\\|b` |  |",
        "| `vip` | boolean | `true` |  |",
        '| `tags` | array of string | `["ä"]` |  |',
        "| `state` | one of open, paid | `open` |  |",
        "| `due` | date (int) or null | `null` | The day after. |",
    ] == [line for line in section.splitlines() if line.startswith("| `")]
    assert "An order was placed.\n" in section


def test_versions_are_described_by_their_changes():
    """
    Added, removed and retyped fields are listed, including nested ones.
    """
    page = catalogue(schemas(), PLACES)

    assert (
        "- Version 2: adds `state`, `due`; removes `by_place`; "
        "changes the type of `order_id`.\n"
    ) in page


def test_aggregate_and_topic_are_named_if_they_are_known():
    """
    Both are in the overview and in the event's section.
    """
    page = catalogue(schemas(), PLACES, "The shop")

    assert page.startswith("# The shop\n")
    overview = "| [OrderPlaced](#orderplaced) | `order` | `outbox.event.order` | 1, 2 |"
    assert overview in page
    assert "| [Zero](#zero) |  |  | 1 |\n" in page
    assert "version 2; aggregate `order`, topic `outbox.event.order`." in page


def test_the_same_schemas_give_the_same_page():
    """
    The order in which files are read does not matter.
    """
    backwards = EventSchemas(reversed(schemas().history))

    assert catalogue(schemas(), PLACES) == catalogue(backwards, PLACES)
