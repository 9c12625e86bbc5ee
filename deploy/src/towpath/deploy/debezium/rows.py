"""Rules about row changes: forms of values, keys, columns, and skipped operations."""

import binascii
import re
from typing import Final

from towpath.deploy.debezium.connector import Connector, split
from towpath.deploy.debezium.rules import (
    KeyPath,
    Outcome,
    PropertyValue,
    boolean,
    list_of,
    not_needed,
    not_supported,
    same,
    taken,
    whole_number,
)
from towpath.deploy.debezium.tables import captured, matches_table, plain_names

ROWS: Final = ("relay", "rows")
FORMAT: Final = (*ROWS, "format")
MASK: Final = (*ROWS, "mask")
REGISTRY_URL: Final = ("registry", "url")
_COLUMN: Final = re.compile(r"[\w$]+")
_HEX: Final = "hex:"
_OPERATIONS: Final = ("c", "u", "d", "t")
_RAW: Final = ("StringConverter", "ByteArrayConverter", "BinaryDataConverter")
_RAW_CLASSES: Final = (*_RAW, "ByteBufferConverter")
_REGISTRY_OPTIONS: Final = ("schema.registry.url", "apicurio.registry.url")
# The login in an address, up to the last @.
_LOGIN: Final = re.compile(r"(?<=://)[^/]*@")


def truncate(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert ``column.truncate.to.*.chars``."""
    return _rule(given, {"form": "truncate", "length": whole_number(given.parts[0])})


def mask(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert ``column.mask.with.*.chars``."""
    return _rule(given, {"form": "mask", "length": whole_number(given.parts[0])})


def hashed(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert ``column.mask.hash.*.with.salt.*``; the file includes the salt."""
    algorithm, salt = given.parts
    return _rule(given, {"form": "hash", "algorithm": algorithm, "salt": salt})


def _rule(given: PropertyValue, form: dict[str, object]) -> Outcome:
    return taken({MASK: [{"columns": list_of(given.value), **form}]})


def key_columns(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert ``message.key.columns``; expressions are expanded from the catalog."""
    found: dict[str, list[str]] = {}
    unknown: list[str] = []
    for entry in filter(None, (part.strip() for part in given.value.split(";"))):
        expression, colon, columns = entry.rpartition(":")
        tables = _tables(expression, connector)
        for table in tables:
            names = _columns(table, columns, connector)
            if names:
                found[table] = names
        if not colon or not tables or any(t not in found for t in tables):
            unknown.append(entry)
    if not given.value.strip():
        return same("it is empty")
    keys: dict[KeyPath, object] = {(*ROWS, "key_columns"): found} if found else {}
    if unknown:
        entries = ", ".join(map(repr, unknown))
        return not_supported(
            f"no captured table with plain columns matches {entries}: give --dsn to "
            "look tables up, or write relay.rows.key_columns yourself",
            keys,
        )
    return taken(keys)


def _tables(expression: str, connector: Connector) -> list[str]:
    tables = captured(connector)
    plain = [name for name in plain_names(expression) if name in tables]
    return plain or [table for table in tables if matches_table(expression, table)]


def _columns(table: str, text: str, connector: Connector) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if all(_COLUMN.fullmatch(name) for name in names):
        return names
    known = (connector.catalog or {}).get(table, ())
    return [
        column
        for column in known
        if any(re.search(name, column) for name in names if _is_expression(name))
    ]


def _is_expression(text: str) -> bool:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return bool(text)


def placeholder(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the placeholder for unchanged values; ``hex:`` marks hex-encoded text."""
    text = given.value
    if text.startswith(_HEX):
        try:
            text = binascii.unhexlify(text.removeprefix(_HEX)).decode()
        except (binascii.Error, ValueError) as error:
            message = f"{given.value!r} is not hex-encoded text"
            raise ValueError(message) from error
    return taken({(*ROWS, "placeholder"): text})


def skipped(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the operations that are not published."""
    names = [name.lower() for name in split(given.value)]
    known = [name for name in names if name in _OPERATIONS]
    if not set(names) <= {*_OPERATIONS, "none"}:
        message = f"{given.value!r} may list only c, u, d, t and none"
        raise ValueError(message)
    return taken({(*ROWS, "skipped_operations"): known})


def sanitized(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the adjustment of field names, under its old or its new name."""
    ours = {"true": True, "false": False, "avro": True, "none": False}
    value = given.value.strip().lower()
    if value in ours:
        return taken({(*ROWS, "sanitize_names"): ours[value]})
    if value == "avro_unicode":
        return not_supported("illegal characters become underscores, not \\u escapes")
    message = f"{given.value!r} is not one of {', '.join(ours)}"
    raise ValueError(message)


def value_converter(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the converter of values to the format of row changes."""
    last = _class_name(given.value)
    if _is_raw_event(last, connector):
        return same("outbox payloads are published unchanged")
    ours = _form(given, connector)
    if ours is None:
        return not_supported("row changes are JSON, JSON with schemas, or Avro")
    is_quoted = connector.router is not None and last == "JsonConverter"
    if is_quoted and connector.routed("table.expand.json.payload") != "true":
        return not_supported(
            "outbox payloads are published as JSON, not as JSON inside a string: "
            "parse them once",
            {FORMAT: ours},
        )
    return taken({FORMAT: ours})


def key_converter(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the format of keys, which equals that of values; outbox keys are text."""
    ours = _form(given, connector)
    values = connector.get("value.converter")
    if _is_raw_event(_class_name(given.value), connector):
        return same("outbox keys are plain text")
    if connector.router is not None:
        return not_supported("outbox keys are plain text")
    if ours is None:
        return not_supported("keys are JSON, JSON with schemas, or Avro")
    like = PropertyValue("value.converter", values)
    if values and ours != _form(like, connector):
        return not_supported("keys have the format of values: relay.rows.format")
    if not values:
        return taken({FORMAT: ours}, "values have the same format")
    return same("keys have the format of values: relay.rows.format")


def converter_option(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert one option of a converter."""
    option = given.parts[0]
    if option == "schemas.enable":
        boolean(given.value)
        return not_needed("relay.rows.format decides it")
    if option in _REGISTRY_OPTIONS:
        return _registry(given, connector)
    if option.endswith("basic.auth.user.info"):
        return not_supported(
            "the login is part of the registry's address: set TOWPATH_REGISTRY__URL to "
            "the address with it, as in http://user:password@registry:8081, with its "
            "special characters percent-encoded"
        )
    if option.endswith("auto.register.schemas"):
        return same("schemas are registered by the relay")
    return not_supported("the formats of relay.rows have no such option")


def _registry(given: PropertyValue, connector: Connector) -> Outcome:
    """Convert the first address of a registry, without its login by default."""
    first = next(iter(split(given.value)), "")
    bare = _LOGIN.sub("", first)
    if bare != first and not (connector.registry or connector.includes_secrets):
        return not_supported(
            "passwords are left out of the file: set TOWPATH_REGISTRY__URL to the "
            "address with its login, or convert with --include-secrets",
            {REGISTRY_URL: bare},
        )
    own = given.parts[0].startswith("apicurio")
    remark = "the address must be the Confluent-compatible one" if own else ""
    return taken({REGISTRY_URL: connector.registry or first}, remark)


def _is_raw_event(converter: str, connector: Connector) -> bool:
    """Return whether a converter publishes the parts of outbox events unchanged."""
    return connector.router is not None and converter in _RAW_CLASSES


def _form(given: PropertyValue, connector: Connector) -> str | None:
    """Return our record format for a converter; None if there is none."""
    last = _class_name(given.value)
    if last == "JsonConverter":
        enabled = connector.get(f"{given.name}.schemas.enable", default="true")
        return "json-schema" if boolean(enabled) else "json"
    return "avro" if last == "AvroConverter" else None


def source_types(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the columns whose schema names the Postgres type."""
    return taken({(*ROWS, "source_types"): list_of(given.value)})


def columns(name: str, given: PropertyValue) -> Outcome:
    """Convert a list of column expressions; an empty one has no effect."""
    chosen = list_of(given.value)
    return taken({(*ROWS, name): chosen}) if chosen else same("it is empty")


def included_columns(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the columns that are published."""
    return columns("include_columns", given)


def excluded_columns(given: PropertyValue, _connector: Connector) -> Outcome:
    """Convert the columns that are omitted."""
    return columns("exclude_columns", given)


def _class_name(text: str) -> str:
    return text.strip().rpartition(".")[2]
