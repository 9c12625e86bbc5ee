r"""
Rules that convert Debezium's properties of tables, snapshots and signals.

An entry that is a plain name, or a plain choice (``public\.(orders|customers)``), is
converted to names. Any other expression is matched against the source's catalog, if the
catalog was read; else it is copied, with ``(?i)`` if it has a capital letter, because
Debezium ignores case. The event router's table becomes the outbox.
"""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from towpath.deploy.debezium.connector import Connector, split
from towpath.deploy.debezium.rules import (
    KeyPath,
    Outcome,
    PropertyValue,
    not_needed,
    not_supported,
    same,
    taken,
)
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import signal_topic
from towpath.settings.syntax import compiled
from towpath.settings.tables import is_expression

TABLES: Final = ("source", "tables")
EXCLUDED: Final = ("source", "exclude_tables")
_ESCAPED: Final = re.compile(r"\\.")
_CAPITAL: Final = re.compile(r"[A-Z]")
_PLAIN: Final = re.compile(r"[\w$]+(?:\\?\.[\w$]+)*")
_CHOICE: Final = re.compile(r"([^()|]*)\((?:\?:)?([^()]*)\)([^()|]*)")
_INCLUDE: Final = ("table.include.list", "table.whitelist")
_EXCLUDE: Final = ("table.exclude.list", "table.blacklist")
_SCHEMAS: Final = ("schema.include.list", "schema.whitelist")
_NO_SCHEMAS: Final = ("schema.exclude.list", "schema.blacklist")
_SYSTEM: Final = ("information_schema", "pg_catalog", "towpath")
_EXPAND: Final = "write the names into source.tables yourself"


class Selection(NamedTuple):
    """
    The tables that a connector captures.

    Attributes:
        tables: The names, including the outbox and the signal table.
        unresolved: Entries that only the catalog can resolve, or that match no table.
    """

    tables: tuple[str, ...]
    unresolved: tuple[str, ...]


def captured(connector: Connector) -> tuple[str, ...]:
    """Return the tables whose rows are published as row changes."""
    special = {outbox_table(connector), signal_table(connector)}
    return tuple(t for t in selection(connector).tables if t not in special)


def selection(connector: Connector) -> Selection:
    """Resolve the connector's lists, with the catalog if there is one."""
    entries = split(connector.get(*_INCLUDE))
    if connector.catalog is not None:
        found = [t for t in connector.catalog if _is_included(t, entries)]
        return Selection(tuple(_filtered(found, connector)), ())
    names: list[str] = []
    unknown: list[str] = []
    for entry in entries:
        plain = plain_names(entry)
        names += plain
        if not plain:
            unknown.append(entry)
    unique = dict.fromkeys(name for name in names if _is_table(name))
    unknown += [name for name in names if not _is_table(name)]
    return Selection(tuple(_filtered(unique, connector)), tuple(unknown))


def plain_names(expression: str) -> list[str]:
    """Return the names that an expression lists, if it needs no catalog."""
    choice = _CHOICE.fullmatch(expression)
    texts = [expression]
    if choice is not None:
        head, middle, tail = choice.groups()
        texts = [head + one + tail for one in middle.split("|")]
    if not all(_PLAIN.fullmatch(text) for text in texts):
        return []
    return [text.replace("\\", "") for text in texts]


def matches(expression: str, name: str) -> bool:
    """Return whether an expression matches a whole name, ignoring case."""
    try:
        return re.fullmatch(expression, name, re.IGNORECASE) is not None
    except (re.error, OverflowError, RecursionError):
        return False


def matches_table(expression: str, table: str) -> bool:
    """Return whether an expression matches a table, given by its name."""
    return matches(expression, TableName.parse(table).joined)


def signal_table(connector: Connector) -> str:
    """Return the signal table, without the database's name that may precede it."""
    parts = connector.get("signal.data.collection").strip().split(".")
    return ".".join(parts[-2:])


def outbox_table(connector: Connector) -> str | None:
    """
    Return the event router's table, or None if it cannot be identified.

    It is the only table whose topic the router's predicate matches, else the only
    captured table, else the only one with outbox in its name.
    """
    if connector.router is None:
        return None
    signal = signal_table(connector)
    candidates = [t for t in selection(connector).tables if t != signal]
    picked = _picked_by_predicate(candidates, connector)
    named = [t for t in candidates if "outbox" in t.lower()]
    for group in (picked, candidates, named):
        if len(group) == 1:
            return group[0]
    return None


def include_list(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the list of tables; without a list all tables are selected."""
    chosen = selection(connector)
    entries = table_entries(connector)
    keys: dict[KeyPath, object] = {TABLES: entries} if entries else {}
    useless = [each for each in chosen.unresolved if not _is_usable(each)]
    if useless:
        named = ", ".join(map(repr, useless))
        return not_supported(f"no schema.table matches {named}: {_EXPAND}", keys)
    if not given.value and connector.catalog is None:
        return taken(keys, "every table that the other lists allow, now or later")
    if not chosen.tables and not chosen.unresolved:
        return not_supported(
            "the lists select no table of the database: check source.tables"
        )
    if not entries:
        return not_needed("only the outbox or the signal table is captured")
    return taken(keys, _special_tables(connector))


def table_entries(connector: Connector) -> list[str]:
    """Return the entries of ``source.tables``: names, then expressions."""
    if connector.catalog is not None:
        return [TableName.parse(table).entry for table in captured(connector)]
    schemas = split(connector.get(*_SCHEMAS))
    if not connector.get(*_INCLUDE):
        return [_entry(rf"{_one_of(schemas)}\..*")] if schemas else [".*"]
    usable = [each for each in selection(connector).unresolved if _is_usable(each)]
    return [*captured(connector), *(_entry(each, schemas) for each in usable)]


def excluded_entries(connector: Connector) -> list[str]:
    """
    Return the entries of ``source.exclude_tables``.

    An entry that can match no table, such as a name without its schema, is left out.
    """
    excluded = [
        _entry(each)
        for each in split(connector.get(*_EXCLUDE))
        if any(map(_is_table, plain_names(each))) or _is_usable(each)
    ]
    schemas = split(connector.get(*_NO_SCHEMAS))
    return [*excluded, *([_entry(rf"{_one_of(schemas)}\..*")] if schemas else [])]


def _entry(expression: str, schemas: tuple[str, ...] = ()) -> str:
    """
    Return an expression as an entry, limited to schemas if any are given.

    An expression with a capital letter gets the prefix ``(?i)``.
    """
    if schemas:
        expression = rf"(?={_one_of(schemas)}\.)(?:{expression})"
    has_capital = _CAPITAL.search(_ESCAPED.sub("", expression)) is not None
    return f"(?i){expression}" if has_capital else expression


def _one_of(expressions: tuple[str, ...]) -> str:
    return expressions[0] if len(expressions) == 1 else f"(?:{'|'.join(expressions)})"


def _is_usable(entry: str) -> bool:
    """Return whether an entry is an expression that can match a table."""
    try:
        compiled(entry)
    except ValueError:
        return False
    return is_expression(entry)


def other_list(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert a list other than the include list to the tables that remain."""
    if not given.value:
        return same("it is empty")
    tables = table_entries(connector)
    if not tables:
        return not_needed("no captured table remains")
    keys: dict[KeyPath, object] = {TABLES: tables}
    if connector.catalog is None and any(map(is_expression, tables)):
        excluded = excluded_entries(connector)
        keys |= {EXCLUDED: excluded} if excluded else {}
    return taken(keys, "the tables that remain")


def _special_tables(connector: Connector) -> str:
    names = (
        (outbox_table(connector), "the outbox"),
        (signal_table(connector), "the signal table"),
    )
    tables = selection(connector).tables
    return " and ".join(
        f"{table} is {role}" for table, role in names if table in tables
    )


def _is_table(name: str) -> bool:
    return name.count(".") == 1


def _is_included(table: str, entries: Iterable[str]) -> bool:
    if TableName.parse(table).schema in _SYSTEM:
        return False
    return not entries or any(matches_table(entry, table) for entry in entries)


def _filtered(tables: Iterable[str], connector: Connector) -> list[str]:
    """Apply the lists other than the include list."""
    excluded = split(connector.get(*_EXCLUDE))
    schemas = split(connector.get(*_SCHEMAS))
    no_schemas = split(connector.get(*_NO_SCHEMAS))
    kept = []
    for table in tables:
        schema = TableName.parse(table).schema
        is_left_out = any(matches_table(one, table) for one in excluded) or any(
            matches(one, schema) for one in no_schemas
        )
        is_in_schema = not schemas or any(matches(one, schema) for one in schemas)
        if is_in_schema and not is_left_out:
            kept.append(table)
    return kept


def _picked_by_predicate(tables: list[str], connector: Connector) -> list[str]:
    predicate = connector.routed("predicate")
    expression = connector.get(f"predicates.{predicate}.pattern")
    if not expression or connector.routed("negate").lower() == "true":
        return []
    return [
        t
        for t in tables
        if matches(expression, f"{connector.prefix}.{TableName.parse(t).joined}")
    ]


_SNAPSHOT: Final = ("relay", "snapshot")
_OVERRIDES: Final = "snapshot.select.statement.overrides"
_CHANNELS: Final = "signal.enabled.channels"
_KAFKA: Final = "kafka"
_MODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "initial": "initial",
        "exported": "initial",
        "parallel": "initial",
        "initial_only": "initial_only",
        "when_needed": "when_needed",
        "always": "always",
        "never": "never",
        "no_data": "never",
        "schema_only": "never",
    }
)
_RECOVERY: Final = ("recovery", "schema_only_recovery")
_HAS_ROWS: Final = 'write "never" if the connector\'s topics have them'
_READS: Final = f"the first start reads all rows; {_HAS_ROWS}"
_ALWAYS_READS: Final = f"every start reads all rows; {_HAS_ROWS}"
_INSTEAD: Final = (
    "request snapshots with towpath snapshot start, or over HTTP on the admin port"
)


def snapshot_mode(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the mode of initial snapshots."""
    value = given.value.strip().lower()
    if value in _RECOVERY:
        return not_needed("Postgres needs no schema history to recover")
    if value not in _MODES:
        return not_supported(
            f"{given.value!r}: choose a value of relay.snapshot.mode: "
            "never, initial, initial_only, when_needed, always"
        )
    ours = _MODES[value]
    if ours != "never" and not table_entries(connector):
        return not_needed("no table is captured, and events are only streamed")
    remark = {"never": "", "always": _ALWAYS_READS}.get(ours, _READS)
    return taken({(*_SNAPSHOT, "mode"): ours}, remark)


def snapshot_overrides(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the statements that snapshots run instead of reading whole tables."""
    listed = {_table(name): name for name in split(connector.get(_OVERRIDES))}
    if given.name != _OVERRIDES and _table(given.parts[-1]) not in listed:
        return not_supported(f"name the table in {_OVERRIDES}")
    found, missing = [], []
    for table, name in listed.items():
        statement = connector.get(f"{_OVERRIDES}.{name}", f"{_OVERRIDES}.{table}")
        if statement:
            found.append({"table": table, "select": statement})
        else:
            missing.append(name)
    keys: dict[KeyPath, object] = {(*_SNAPSHOT, "select"): found} if found else {}
    if missing and given.name == _OVERRIDES:
        names = ", ".join(missing)
        lacking = f"there is no {_OVERRIDES}.<table> for {names}: add it"
        return not_supported(lacking, keys)
    return taken(keys)


def signal_channels(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the channels of signals."""
    wanted = [one.lower() for one in split(given.value)]
    keys = _topic(connector) if _KAFKA in wanted else {}
    others = [one for one in wanted if one not in {"source", _KAFKA}]
    if others:
        return not_supported(f"{', '.join(others)}: {_INSTEAD}", keys)
    if not keys:
        return same("signals are rows of towpath.signal, or of signal.data.collection")
    return taken(keys)


def signal_kafka_topic(_given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the signal topic, if Kafka is an enabled channel of signals."""
    if _KAFKA not in connector.get(_CHANNELS).lower():
        return not_needed(f"{_CHANNELS} does not name kafka")
    return taken(_topic(connector))


def signal_collection(_given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the connector's signal table to an additional signal table."""
    name = signal_table(connector)
    if name == "towpath.signal":
        return same()
    return taken(
        {(*_SNAPSHOT, "signal_table"): name},
        "answers go to <prefix>.notifications; "
        "signals in towpath.signal are also answered in their rows",
    )


def _topic(connector: Connector) -> dict[KeyPath, object]:
    name = connector.get("signal.kafka.topic") or signal_topic(connector.prefix)
    return {(*_SNAPSHOT, "signal_topic"): name}


def _table(name: str) -> str:
    """Return the schema and table of a name, without a database that precedes them."""
    return ".".join(name.split(".")[-2:])
