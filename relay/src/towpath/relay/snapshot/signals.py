r"""
Signals: what a row of the signal table asks for, in Debezium's names and JSON.

``execute-snapshot`` takes ``data-collections`` (``schema.table`` or a regular
expression that matches all of one), ``type``, ``additional-conditions`` (each a
``data-collection`` and a ``filter``), and on top of Debezium's ``target``,
``max-rows-per-second`` and ``keys``: just these primary keys of the one table, each a
list of values in key order, at most 10,000. A signal that cannot be carried out is
rejected with the reason; the stream goes on.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn

from towpath.relay.snapshot.shape import Key
from towpath.schemas.failure import DataError

# What a plain name holds; anything else makes the entry a regular expression.
_PLAIN_NAME: Final = re.compile(r"[^\\*+?\[\](){}|^$]+\Z")
_EXECUTE_FIELDS: Final = frozenset(
    {
        "data-collections",
        "type",
        "additional-conditions",
        "target",
        "max-rows-per-second",
        "keys",
    }
)
# They are stored in one row, and written again with each chunk's progress: more would
# be felt in the source. Whoever has more sends several signals.
MAX_KEYS: Final = 10_000
_LATER: Final = frozenset({"pause-snapshot", "resume-snapshot"})


class SignalRejectedError(DataError):
    """The signal cannot be carried out; the message is the answer."""

    remedy = "Send another signal that heeds the answer; this one changed nothing."


@dataclass(frozen=True, slots=True)
class ExecuteSnapshot:
    """
    Read these collections; ``conditions`` maps entries to their filters.

    ``keys`` are all that is to be read, if there are any.
    """

    collections: tuple[str, ...]
    conditions: Mapping[str, str]
    target: str | None = None
    max_rows_per_second: int | None = None
    keys: tuple[Key, ...] = ()

    def condition_of(self, collection: str) -> str | None:
        """Return the filter that applies to a captured table."""
        for entry, condition in self.conditions.items():
            if _matches(entry, collection):
                return condition or None
        return None


@dataclass(frozen=True, slots=True)
class StopSnapshot:
    """Stop reading these collections; none named: all of them."""

    collections: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Leave a line in the log."""

    message: str


Request = ExecuteSnapshot | StopSnapshot | LogMessage


@dataclass(frozen=True, slots=True)
class Expansion:
    """The captured tables that entries name, in order, and why others name none."""

    collections: tuple[str, ...]
    refusals: Mapping[str, str]


def parse_signal(signal_type: str, data: str | None) -> Request:
    """
    Read a signal.

    Raises:
        SignalRejectedError: Its type is unknown or its data are not as they must be.
    """
    if signal_type in _LATER:
        _reject(f"{signal_type} is not supported yet; stop-snapshot is")
    fields = _object(data)
    if signal_type == "execute-snapshot":
        return _execute(fields)
    if signal_type == "stop-snapshot":
        return StopSnapshot(_names(fields, "data-collections", required=False))
    if signal_type != "log":
        _reject(f"unknown signal type {signal_type!r}")
    return LogMessage(str(fields.get("message", "")))


def expand(entries: Sequence[str], captured: Collection[str]) -> Expansion:
    """Find the captured tables that entries name, each once."""
    found: dict[str, None] = {}
    refusals: dict[str, str] = {}
    for entry in entries:
        try:
            names = [name for name in captured if _matches(entry, name)]
        except re.error as error:
            refusals[entry] = f"not a regular expression: {error}"
            continue
        found.update(dict.fromkeys(names))
        if not names and _PLAIN_NAME.match(entry):
            refusals[entry] = "not a captured table"
    return Expansion(tuple(found), refusals)


def _execute(fields: Mapping[str, Any]) -> ExecuteSnapshot:
    unknown = sorted(set(fields) - _EXECUTE_FIELDS)
    if unknown:
        _reject(f"unknown field {unknown[0]!r} in the signal's data")
    kind = fields.get("type", "incremental")
    if not isinstance(kind, str) or kind.lower() != "incremental":
        _reject(f"snapshot type {kind!r} is not supported; incremental is")
    target = fields.get("target")
    if target is not None and not isinstance(target, str):
        _reject("target must be the name of a sink")
    rate = fields.get("max-rows-per-second")
    if rate is not None and (type(rate) is not int or rate < 1):
        _reject("max-rows-per-second must be a whole number above zero")
    return ExecuteSnapshot(
        collections=_names(fields, "data-collections", required=True),
        conditions=_conditions(fields.get("additional-conditions") or []),
        target=target,
        max_rows_per_second=rate,
        keys=_keys(fields),
    )


def _keys(fields: Mapping[str, Any]) -> tuple[Key, ...]:
    if "keys" not in fields:
        return ()
    keys = fields["keys"]
    if fields.get("additional-conditions"):
        # A row that the filter leaves out would be taken for deleted.
        _reject("keys and additional-conditions exclude each other")
    if not isinstance(keys, list) or not keys:
        _reject("keys must be a list of keys, each a list of values in key order")
    if len(keys) > MAX_KEYS:
        _reject(f"{len(keys)} keys are listed; at most {MAX_KEYS} may be")
    return tuple(dict.fromkeys(map(_key, keys)))


def _key(values: object) -> Key:
    if not isinstance(values, list) or not values:
        _reject(f"key {_shown(values)} is not a list of values in key order")
    return tuple(map(_key_part, values))


def _key_part(value: object) -> bytes:
    """Return a value's text, as exact as it was written."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if not isinstance(value, (str, int, float, Decimal)):
        _reject(f"{_shown(value)} in a key is not a text, a number or a truth value")
    try:
        text = str(value).encode()
    except UnicodeEncodeError:
        text = b"\0"
    if b"\0" in text:
        _reject(f"{_shown(value)} in a key is not a text that Postgres holds")
    return text


def _shown(value: object) -> str:
    return json.dumps(value, default=str)[:100]


def _object(data: str | None) -> Mapping[str, Any]:
    try:
        fields = json.loads(data or "{}", parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        _reject(f"the signal's data are not JSON: {error}")
    if not isinstance(fields, dict):
        _reject("the signal's data must be a JSON object")
    return fields


def _names(fields: Mapping[str, Any], name: str, *, required: bool) -> tuple[str, ...]:
    names = fields.get(name) or []
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        _reject(f"{name} must be a list of names")
    if required and not names:
        _reject(f"{name} must name at least one table")
    return tuple(dict.fromkeys(names))


def _conditions(items: object) -> Mapping[str, str]:
    conditions: dict[str, str] = {}
    for item in items if isinstance(items, list) else [items]:
        fields = item if isinstance(item, dict) else {}
        entry, condition = fields.get("data-collection"), fields.get("filter")
        if not isinstance(entry, str) or not isinstance(condition, str):
            _reject("each additional condition needs a data-collection and a filter")
        if not _is_pattern(entry):
            _reject(f"additional condition for {entry!r}: not a regular expression")
        conditions[entry] = condition
    return conditions


def _matches(entry: str, collection: str) -> bool:
    if _PLAIN_NAME.match(entry):
        return entry == collection
    return re.fullmatch(entry, collection) is not None


def _is_pattern(entry: str) -> bool:
    try:
        re.compile(entry)
    except re.error:
        return _PLAIN_NAME.match(entry) is not None
    return True


def _reject(reason: str) -> NoReturn:
    raise SignalRejectedError(reason)
