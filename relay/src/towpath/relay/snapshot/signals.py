"""
Signals: requests in the signal table's rows, with Debezium's names and JSON.

``execute-snapshot`` takes ``data-collections``, ``type`` (``incremental``, or
``blocking``: all tables in one exported snapshot while the stream waits),
``additional-conditions`` (each a ``data-collection`` and a ``filter``, which is a whole
SELECT in a blocking snapshot), the older ``additional-condition`` for all collections,
and ``surrogate-key``: the column, or columns, in whose order to read. Towpath adds
``target``, ``max-rows-per-second``, ``sweep`` (sinks delete rows that the source does
not have), ``keys`` (only if the signal names one table: at most 10,000 primary keys,
each a list of values in key order; no other rows are read), and ``columns`` (only rows
in which one of these columns is not null are read; the sweep at the end has floor zero
and deletes nothing).

``stop-snapshot``, ``pause-snapshot`` and ``resume-snapshot`` take ``data-collections``
and ``snapshot-id``; without these fields, they apply to all tables. Each signal may
name its ``relay`` (``naming``). ``log`` takes a ``message``, which the relay logs. A
signal that cannot be run is rejected with the reason; the stream continues.

A plain signal table like Debezium's, a Kafka topic and the admin port accept signals
too. Each becomes a row of ``towpath.signal`` and is answered like any other. A signal
that does not fit into such a row is rejected with the reason.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn

from towpath.relay.snapshot.naming import address_of, is_entry
from towpath.relay.snapshot.shape import Key
from towpath.relay.snapshot.stored import BLOCKING, INCREMENTAL
from towpath.schemas.failure import DataError
from towpath.schemas.table_name import quoted

_EXECUTE_FIELDS: Final = frozenset(
    {
        "data-collections",
        "type",
        "additional-conditions",
        "additional-condition",
        "surrogate-key",
        "target",
        "max-rows-per-second",
        "keys",
        "sweep",
        "relay",
        "columns",
    }
)
# With ``columns`` or ``keys``, some rows are not read: a sweep would delete them.
_NOT_WITH_COLUMNS: Final = ("additional-conditions", "additional-condition", "sweep")
_NOT_WITH_KEYS: Final = (*_NOT_WITH_COLUMNS, "surrogate-key", "columns")
_SELECTION_FIELDS: Final = frozenset(
    {"data-collections", "snapshot-id", "type", "relay"}
)
_MEANINGS: Final = {
    "target": "the name of a sink",
    "snapshot-id": "a snapshot's id",
    "relay": "the name of a relay, which is the name of its slot",
}
_SELECTS: Final = ("select", "with", "table", "values", "(")
# Listed keys are stored in one row, which is rewritten with each chunk's progress:
# more keys would strain the source. Longer lists need several signals.
MAX_KEYS: Final = 10_000
# The limits of the column that stores a rate, and of the index that contains a name.
_LARGEST_RATE: Final = 2_147_483_647
_LONGEST_NAME: Final = 500


class SignalRejectedError(DataError):
    """The signal cannot be run; the message is the answer."""

    remedy = "Send a corrected signal; this one changed nothing."


@dataclass(frozen=True, slots=True)
class ExecuteSnapshot:
    """
    Read these collections.

    ``conditions`` maps the signal's entries, or the collections once the entries are
    resolved, to their filters. ``keys`` restrict the snapshot to listed keys.
    ``order_by`` names the columns of a surrogate key. ``kind`` is the kind of snapshot
    that is stored with the tables.
    """

    collections: tuple[str, ...]
    conditions: Mapping[str, str]
    target: str | None = None
    max_rows_per_second: int | None = None
    keys: tuple[Key, ...] = ()
    kind: str = INCREMENTAL
    order_by: tuple[str, ...] = ()
    sweeps: bool = False

    def condition_of(self, collection: str) -> str | None:
        """Return the filter of a collection, once the entries are resolved."""
        return self.conditions.get(collection) or None


@dataclass(frozen=True, slots=True)
class TableSelection:
    """A selection of tables of open snapshots; without names, it selects all."""

    collections: tuple[str, ...] = ()
    snapshot_id: str | None = None


class StopSnapshot(TableSelection):
    """Stop reading these tables, and keep their progress."""

    __slots__ = ()


class PauseSnapshot(TableSelection):
    """Pause these tables until they are resumed."""

    __slots__ = ()


class ResumeSnapshot(TableSelection):
    """
    Resume tables that are paused.

    With a snapshot's id, its failed, stopped and incomplete tables are resumed too.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Write a log record; ``{}`` in the message stands for the signal's position."""

    message: str

    def fields(self, position: str) -> Mapping[str, str]:
        """Return the message for a signal at a position, and the position."""
        if not position:
            return {"message": self.message}
        return {"message": self.message.replace("{}", position), "position": position}


Request = ExecuteSnapshot | StopSnapshot | PauseSnapshot | ResumeSnapshot | LogMessage
_SELECTIONS: Final[
    Mapping[str, type[StopSnapshot | PauseSnapshot | ResumeSnapshot]]
] = {
    "stop-snapshot": StopSnapshot,
    "pause-snapshot": PauseSnapshot,
    "resume-snapshot": ResumeSnapshot,
}


def parse_signal(signal_type: str, data: str | None) -> Request:
    """
    Parse a signal.

    Raises:
        SignalRejectedError: Its type is unknown or its data is not valid.
    """
    if signal_type not in {"execute-snapshot", "log", *_SELECTIONS}:
        known = ", ".join(["execute-snapshot", *_SELECTIONS, "log"])
        _reject(f"unknown signal type {signal_type!r}; known: {known}")
    not_json = "the signal's data is not JSON"
    not_object = "the signal's data must be a JSON object"
    fields = _json_object(data or "{}", not_json, not_object)
    _text(fields, "relay")
    if signal_type == "execute-snapshot":
        return _execute(fields)
    if signal_type == "log":
        # As in other fields, null is a missing value.
        given = fields.get("message")
        message = "" if given is None else str(given)
        if not is_storable(message):
            _reject("message must be text that Postgres can store")
        return LogMessage(message)
    return _selection(_SELECTIONS[signal_type], fields)


def _selection(
    kind: type[StopSnapshot | PauseSnapshot | ResumeSnapshot], fields: Mapping[str, Any]
) -> StopSnapshot | PauseSnapshot | ResumeSnapshot:
    _refuse_unknown(fields, _SELECTION_FIELDS)
    return kind(_names(fields, required=False), _text(fields, "snapshot-id"))


def _execute(fields: Mapping[str, Any]) -> ExecuteSnapshot:
    _refuse_unknown(fields, _EXECUTE_FIELDS)
    kind = _kind(fields)
    collections = _names(fields, required=True)
    columns = _columns(fields, kind)
    conditions = {".*": columns} if columns else _conditions(fields)
    keys = _keys(fields, kind)
    sweeps = fields.get("sweep", False)
    if not isinstance(sweeps, bool):
        _reject("sweep must be true or false")
    if sweeps and any(conditions.values()):
        _reject("sweep cannot be combined with conditions: other rows would be deleted")
    sweeps |= bool(columns)
    if kind == BLOCKING:
        _check_selects(conditions)
    return ExecuteSnapshot(
        collections=collections,
        conditions=conditions,
        target=_text(fields, "target"),
        max_rows_per_second=_rate(fields),
        keys=keys,
        kind=kind,
        order_by=_order_by(fields),
        sweeps=sweeps,
    )


def _refuse_unknown(fields: Mapping[str, Any], known: Collection[str]) -> None:
    unknown = sorted(set(fields) - set(known))
    if unknown:
        _reject(f"unknown field {unknown[0]!r} in the signal's data")


def _kind(fields: Mapping[str, Any]) -> str:
    kind = fields.get("type") or INCREMENTAL
    if not isinstance(kind, str) or kind.lower() not in {INCREMENTAL, BLOCKING}:
        _reject(f"snapshot type {kind!r} is not one of {INCREMENTAL}, {BLOCKING}")
    return kind.lower()


def _rate(fields: Mapping[str, Any]) -> int | None:
    rate = fields.get("max-rows-per-second")
    if rate is not None and (type(rate) is not int or not 0 < rate <= _LARGEST_RATE):
        _reject(f"max-rows-per-second must be a whole number from 1 to {_LARGEST_RATE}")
    return rate


def _order_by(fields: Mapping[str, Any]) -> tuple[str, ...]:
    columns = fields.get("surrogate-key") or []
    names = [columns] if isinstance(columns, str) else columns
    if not isinstance(names, list) or not all(
        _is_text(name) and name for name in names
    ):
        _reject("surrogate-key must be the name of a column, or a list of names")
    return tuple(dict.fromkeys(names))


def _columns(fields: Mapping[str, Any], kind: str) -> str:
    """Return the condition that a listed column is not null; empty without columns."""
    if "columns" not in fields:
        return ""
    names = fields["columns"]
    if kind == BLOCKING:
        _reject("columns are read incrementally: a blocking snapshot takes none")
    for other in _NOT_WITH_COLUMNS:
        if fields.get(other):
            _reject(f"columns and {other} cannot be combined")
    is_list = isinstance(names, list) and all(_is_text(x) and x for x in names)
    if not is_list or not names:
        _reject("columns must be a list of names")
    return " or ".join(f"{quoted(name)} is not null" for name in names)


def _check_selects(conditions: Mapping[str, str]) -> None:
    for condition in conditions.values():
        if condition and not condition.lstrip().lower().startswith(_SELECTS):
            _reject(
                f"the filter {_shown(condition)} of a blocking snapshot must be a "
                "whole SELECT"
            )


def _keys(fields: Mapping[str, Any], kind: str) -> tuple[Key, ...]:
    if "keys" not in fields:
        return ()
    keys = fields["keys"]
    if kind == BLOCKING:
        _reject("keys are read incrementally: a blocking snapshot takes none")
    for other in _NOT_WITH_KEYS:
        if fields.get(other):
            # A row that the filter leaves out would count as deleted.
            _reject(f"keys and {other} cannot be combined")
    if not isinstance(keys, list) or not keys:
        _reject("keys must be a list of keys, each a list of values in key order")
    if len(keys) > MAX_KEYS:
        _reject(f"{len(keys)} keys are listed; at most {MAX_KEYS} are allowed")
    return tuple(dict.fromkeys(map(_key, keys)))


def _key(values: object) -> Key:
    if not isinstance(values, list) or not values:
        _reject(f"key {_shown(values)} is not a list of values in key order")
    return tuple(map(_key_part, values))


def _key_part(value: object) -> bytes:
    """Return a value's text with all its digits."""
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if not isinstance(value, (str, int, float, Decimal)):
        _reject(f"{_shown(value)} in a key is not text, a number or a boolean")
    text = str(value)
    if not is_storable(text):
        _reject(f"{_shown(value)} in a key is not text that Postgres can store")
    return text.encode()


def _shown(value: object) -> str:
    try:
        return json.dumps(value, default=str)[:100]
    except RecursionError:
        # The value was barely shallow enough to be parsed.
        return "a deeply nested value"


def _json_object(
    text: str | bytes, not_json: str, not_object: str
) -> Mapping[str, Any]:
    try:
        fields = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError) as error:
        _reject(f"{not_json}: {error}")
    if not isinstance(fields, dict):
        _reject(not_object)
    return fields


def _names(fields: Mapping[str, Any], *, required: bool) -> tuple[str, ...]:
    names = fields.get("data-collections") or []
    if not isinstance(names, list) or not all(_is_text(x) and x for x in names):
        _reject("data-collections must be a list of names")
    if any(len(name) > _LONGEST_NAME for name in names):
        _reject(f"a data-collection has more than {_LONGEST_NAME} characters")
    if required and not names:
        _reject("data-collections must name at least one table")
    return tuple(dict.fromkeys(names))


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    text = fields.get(name)
    if text is not None and not (_is_text(text) and text):
        _reject(f"{name} must be {_MEANINGS[name]}")
    return text


def _is_text(value: object) -> bool:
    """Return whether a value is text that Postgres can store."""
    return isinstance(value, str) and is_storable(value)


def is_storable(text: str) -> bool:
    """Return whether Postgres can store a string: no zero byte, no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def _conditions(fields: Mapping[str, Any]) -> Mapping[str, str]:
    older = fields.get("additional-condition") or ""
    items = fields.get("additional-conditions") or []
    if not _is_text(older):
        _reject("additional-condition must be an SQL expression")
    if older and items:
        _reject("additional-condition and additional-conditions cannot be combined")
    if older:
        return {".*": older}
    conditions: dict[Any, Any] = {}
    for item in items if isinstance(items, list) else [items]:
        inner = item if isinstance(item, dict) else {}
        entry, condition = inner.get("data-collection"), inner.get("filter")
        if not (_is_text(entry) and _is_text(condition)):
            _reject("each additional condition needs a data-collection and a filter")
        if not is_entry(str(entry)):
            _reject(f"additional condition for {entry!r}: not a regular expression")
        conditions[entry] = condition
    return conditions


def _reject(reason: str) -> NoReturn:
    raise SignalRejectedError(reason)


# The widths of the columns of ``towpath.signal``.
MAX_ID_LENGTH: Final = 64
MAX_TYPE_LENGTH: Final = 32

# The types of those rows in a signal table that are watermarks.
WINDOW_TYPES: Final = frozenset({"snapshot-window-open", "snapshot-window-close"})

_FIELDS: Final = frozenset({"id", "type", "data"})


class ExternalSignal(NamedTuple):
    """
    A signal from an external channel.

    Attributes:
        signal_id: The id of the signal and of its snapshot.
        type: The signal's type.
        data: A JSON object, as text; None if the signal has no data.
        source: The channel's name, for logs and notifications.
        relay: The relay of the channel, for a signal that names none; None if the
            channel belongs to all relays.
    """

    signal_id: str
    type: str
    data: str | None
    source: str
    relay: str | None = None


class SignalRefusal(NamedTuple):
    """The refusal of an external signal, for its notification."""

    signal_id: str
    reason: str
    source: str


def external_signal(
    signal_id: str | None, kind: str | None, data: str | None, source: str
) -> ExternalSignal:
    """
    Return a signal that fits into the signal table.

    Raises:
        SignalRejectedError: The signal does not fit.
    """
    if not signal_id:
        _reject("the signal has no id")
    if len(signal_id) > MAX_ID_LENGTH:
        _reject(f"the id has {len(signal_id)} characters; at most {MAX_ID_LENGTH} fit")
    if not kind:
        _reject("the signal has no type")
    if len(kind) > MAX_TYPE_LENGTH or kind in WINDOW_TYPES:
        _reject(f"unknown signal type {kind[:MAX_TYPE_LENGTH]!r}")
    # The relay that the data names is stored in a column of its own.
    texts = (signal_id, kind, data or "", address_of(data, None) or "")
    if not all(map(is_storable, texts)):
        _reject("the signal contains text that Postgres cannot store")
    return ExternalSignal(signal_id, kind, data, source)


def read_document(document: bytes, fallback_id: str, source: str) -> ExternalSignal:
    """
    Parse a signal that is a JSON object with ``type``, ``data`` and an optional ``id``.

    ``data`` may be an object, its JSON text, or missing. ``fallback_id`` is the id of a
    signal that has none.

    Raises:
        SignalRejectedError: The document is not a signal.
    """
    not_object = "the signal must be a JSON object with type, data and an optional id"
    fields = _json_object(document, "the signal is not JSON", not_object)
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        _reject(f"unknown field {unknown[0]!r}: only id, type and data are allowed")
    return external_signal(
        _document_text(fields, "id") or fallback_id,
        _document_text(fields, "type"),
        _data(fields),
        source,
    )


def _document_text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        _reject(f"the signal's {name} must be text")
    return value


def _data(fields: Mapping[str, Any]) -> str | None:
    data = fields.get("data")
    if data is None or isinstance(data, str):
        return data
    # A decimal may belong to a key: its text keeps all its digits.
    return json.dumps(data, ensure_ascii=False, default=str)
