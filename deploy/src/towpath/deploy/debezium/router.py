"""
The options of the outbox event router, by name.

The topic is the routed column's value, rewritten by an expression and its replacement.
An expression that captures the whole value becomes a plain template; any other becomes
``route_regex`` and ``route_replacement``.
"""

import re
from typing import Final

from towpath.deploy.debezium.connector import ROUTER_TYPE, Connector, split
from towpath.deploy.debezium.rules import (
    Outcome,
    Property,
    PropertyValue,
    boolean,
    choice,
    key,
    list_of,
    not_needed,
    not_needed_because,
    not_supported,
    same,
    taken,
    unsupported,
)
from towpath.deploy.debezium.tables import outbox_table
from towpath.settings.syntax import ROUTED_VALUE, python_pattern

_OUTBOX: Final = "relay.outbox"
_COLUMNS: Final = "relay.outbox.columns"
_TABLE: Final = ("relay", "outbox", "table")
_TOPIC: Final = ("relay", "outbox", "topic")
_REGEX: Final = ("relay", "outbox", "route_regex")
_REPLACEMENT: Final = ("relay", "outbox", "route_replacement")
_DEFAULT_REGEX: Final = "(?<routedByValue>.*)"
_DEFAULT_REPLACEMENT: Final = "outbox.event.${routedByValue}"
_WHOLE: Final = re.compile(r"\((?:\?<([A-Za-z]\w*)>)?\.[*+]\)")

# Other transforms, each with its replacement.
_OTHERS: Final = {
    "ExtractNewRecordState": "sinks and consumers read the envelope's field after",
    "ByLogicalTableRouter": "partitioned tables are published as their root; "
    "rename topics in the consumers",
    "RegexRouter": "topics are named <prefix>.<schema>.<table>; "
    "rename them in the consumers",
    "ContentBasedRouter": "route in the consumers",
    "Filter": "give the publication a row filter in Postgres instead",
    "DecodeLogicalDecodingMessageContent": "a message's content is published as it is",
    "MaskField": "use relay.rows.mask",
    "ReplaceField": "use relay.rows.include_columns or exclude_columns",
    "ExtractChangedRecordState": "the header unchanged lists the omitted columns",
    "PartitionRouting": "use relay.rows.key_columns",
}


def transforms(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the event router; the other transforms are not supported."""
    others = [name for name in split(given.value) if name != connector.router]
    not_run = f"not run here: {', '.join(others)} (see their types)" if others else ""
    if connector.router is None:
        return not_supported(not_run) if others else not_needed("it lists none")
    table = outbox_table(connector)
    if table is None:
        return not_supported(
            "the event router's table cannot be identified: "
            "write its name to relay.outbox.table, and leave it out of source.tables"
        )
    return taken({_TABLE: table}, not_run)


def transform_type(given: PropertyValue, connector: Connector) -> Outcome:
    """Accept the event router, which the relay replaces; refuse other transforms."""
    if given.value == ROUTER_TYPE:
        if given.parts[0] == connector.router:
            return same("the relay routes the outbox itself")
        return not_supported("a relay has one outbox: run a second relay for this one")
    last = re.split(r"[.$]", given.value.removesuffix("$Value").removesuffix("$Key"))[
        -1
    ]
    advice = _OTHERS.get(last, "do its work in the consumers")
    return not_supported(f"no transforms are run: {advice}")


def transform_option(given: PropertyValue, _connector: Connector) -> Outcome:
    """Report an option of another transform as not supported."""
    name = given.parts[0]
    return not_supported(f"the option belongs to transform {name}, which is not run")


def _topic_of(connector: Connector) -> Outcome:
    regex = connector.routed("route.topic.regex", _DEFAULT_REGEX)
    replacement = connector.routed("route.topic.replacement", _DEFAULT_REPLACEMENT)
    whole = _WHOLE.fullmatch(regex)
    if whole is not None:
        names = ["$1", "$0", "${" + (whole[1] or "1") + "}"]
        topic = replacement
        for name in names:
            topic = topic.replace(name, ROUTED_VALUE)
        return taken({_TOPIC: topic})
    return taken(
        {_TOPIC: ROUTED_VALUE, _REGEX: python_pattern(regex), _REPLACEMENT: replacement}
    )


def _topic(_given: PropertyValue, connector: Connector) -> Outcome:
    return _topic_of(connector)


def _payload_id(given: PropertyValue, connector: Connector) -> Outcome:
    if connector.routed("table.field.event.key"):
        return not_needed("table.field.event.key names the key")
    return key(f"{_COLUMNS}.aggregate_id")(given, connector)


def _expanded(given: PropertyValue, _connector: Connector) -> Outcome:
    boolean(given.value)
    return same("a JSON payload is published as JSON")


_UPDATES: Final = {"warn": "warn", "error": "error", "fatal": "halt"}
_MISSING: Final = {"true": "error", "false": "skip"}
_EMPTY: Final = {"true": "tombstone", "false": "event"}
_NO_SPANS: Final = "no spans are created: a traceparent is carried or continued"

ROUTER: Final[tuple[Property, ...]] = (
    Property("type", transform_type),
    Property("predicate", not_needed_because("relay.outbox.table names the table")),
    Property("negate", not_needed_because("relay.outbox.table names the table")),
    Property("table.field.event.id", key(f"{_COLUMNS}.id")),
    Property("table.field.event.key", key(f"{_COLUMNS}.aggregate_id")),
    Property("table.field.event.type", key(f"{_COLUMNS}.type")),
    Property("table.field.event.timestamp", key(f"{_COLUMNS}.timestamp")),
    Property("table.field.event.payload", key(f"{_COLUMNS}.payload")),
    Property("table.field.event.payload.id", _payload_id),
    Property("table.field.event.schema.version", key(f"{_COLUMNS}.schema_version")),
    Property(
        "table.fields.additional.placement",
        key(f"{_OUTBOX}.placements", list_of),
        implied="",
    ),
    Property(
        "table.fields.additional.error.on.missing",
        choice(f"{_OUTBOX}.on_missing_column", _MISSING),
    ),
    Property("table.op.invalid.behavior", choice(f"{_OUTBOX}.on_update", _UPDATES)),
    Property("debezium.op.invalid.behavior", choice(f"{_OUTBOX}.on_update", _UPDATES)),
    Property("table.expand.json.payload", _expanded),
    Property(
        "table.json.payload.null.behavior",
        not_needed_because("the payload is published unchanged, including nulls"),
    ),
    Property("route.by.field", key(f"{_COLUMNS}.aggregate_type")),
    Property("route.topic.regex", _topic),
    Property("route.topic.replacement", _topic),
    Property(
        "route.tombstone.on.empty.payload",
        choice(f"{_OUTBOX}.on_empty_payload", _EMPTY),
    ),
    Property(
        "tracing.span.context.field",
        unsupported(
            "write a W3C traceparent into a separate column, "
            "and name that column in relay.outbox.columns.traceparent"
        ),
    ),
    Property("tracing.operation.name", not_needed_because(_NO_SPANS)),
    Property("tracing.with.context.field.only", not_needed_because(_NO_SPANS)),
)
