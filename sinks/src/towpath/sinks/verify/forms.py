"""
Comparable forms of rows: columns of a table, or documents. Pure.

A row's name is the text of its key's parts (see ``key_text``), which a template may
have formatted; both steps can be reversed. The name of a foreign row may not stand for
any key.

Both sides are converted to the text that a record carries. The source does this in SQL,
and the sinks' readers return values in the form of records; this module writes numbers
and booleans as text, and floats as the shortest text of the same value.

A document is compared as one canonical text, with its names sorted; only differing
documents are compared value by value. Numbers are equal if they have the same value,
however they are written; no digit is lost.
"""

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, Protocol, TypeAlias

from towpath.settings import Route, RouteKind, Sink, SinkKind, Unfit
from towpath.sinks.change import Value, is_no_instant, is_no_number
from towpath.sinks.changes.routing import Routing, routing_of
from towpath.sinks.key_text import key_parts, key_text, text_of
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.compare import (
    Difference,
    DifferenceKind,
    SinkRow,
    SourceRow,
    pack,
)
from towpath.sinks.verify.errors import UnfitViewError
from towpath.sinks.verify.table import UTC_TIMESTAMP, SourceColumn, SourceTable
from towpath.sinks.verify.types import nested_text, text_of_nested

Key = tuple[str, ...]


class KeyNames:
    """The names of one route's rows, and the source keys that they stand for."""

    def __init__(self, columns: Sequence[str], routing: Routing | None) -> None:
        self._columns = tuple(columns)
        self._routing = routing

    def name(self, values: Sequence[str | None]) -> str:
        """Return the row name of a source key."""
        if self._routing is None:
            (first, *others) = values
            is_plain = first and not others and ":" not in first and "%" not in first
            return first if is_plain and first else key_text(values)
        return key_text(self._routing.key(self._columns, tuple(values))[1])

    def key(self, name: str) -> Key | None:
        """Return the source key of a row name; ``None`` if it has none."""
        parts = key_parts(name)
        try:
            values = self._routing.source_key(parts) if self._routing else parts
        except ValueError:
            return None
        key = tuple(map(str, values))
        is_reversible = len(key) == len(self._columns) and self.name(key) == name
        return key if is_reversible else None


Canonical = Callable[[Value], str | None]


def canonical(value: Value) -> str | None:
    """Return the canonical text of any value except a float."""
    return None if value is None else text_of(value)


def canonical_double(value: Value) -> str | None:
    """Return the canonical text of a 64-bit float."""
    return None if value is None else repr(float(value))


def canonical_real(value: Value) -> str | None:
    """Return the canonical text of a 32-bit float, which some sinks store as 64."""
    if value is None:
        return None
    return repr(struct.unpack("f", struct.pack("f", float(value)))[0])


_BY_TYPE: Final[dict[str, Canonical]] = {
    "real": canonical_real,
    "double precision": canonical_double,
}

# Values that a warehouse may store as null.
_UNFIT: Final[dict[str, Callable[[Value], bool]]] = {
    "numeric": is_no_number,
    "date": is_no_instant,
    "timestamp with time zone": is_no_instant,
    "timestamp without time zone": is_no_instant,
    UTC_TIMESTAMP: is_no_instant,
}


def canonical_of(type_name: str, *, nulls_unfit: bool = False) -> Canonical:
    """
    Return the function that writes values of a Postgres type.

    Args:
        type_name: The type's name in Postgres.
        nulls_unfit: Whether unrepresentable values count as null on both sides.
    """
    is_unfit = _UNFIT.get(type_name) if nulls_unfit else None
    if is_unfit is None:
        return _BY_TYPE.get(type_name, canonical)
    return lambda value: None if is_unfit(value) else canonical(value)


DOCUMENT: Final = "document"

# A number with more zeros is written with an exponent.
_MOST_ZEROS: Final = 40

Json: TypeAlias = Any


def canonical_document(value: Json) -> str:
    """Return the canonical text of a JSON value; equal values have one text."""
    match value:
        case dict():
            parts = (
                f"{_text(name)}:{canonical_document(value[name])}"
                for name in sorted(value)
            )
            return "{" + ",".join(parts) + "}"
        case list():
            return "[" + ",".join(map(canonical_document, value)) + "]"
        case bool() | None | str():
            return _text(value)
        case _:
            return _number(Decimal(value))


def parsed(text: str) -> Json:
    """Parse JSON without losing a digit."""
    return json.loads(text, parse_float=Decimal)


def _value_differences(difference: Difference) -> Iterator[Difference]:
    """Yield a changed document's differing values; yield other differences as is."""
    if difference.kind is not DifferenceKind.CHANGED:
        yield difference
        return
    source, sink = (
        dict(_leaves(parsed(text or "null"), ""))
        for text in (difference.source, difference.sink)
    )
    for path in sorted(source.keys() | sink.keys()):
        values = source.get(path), sink.get(path)
        if values[0] != values[1]:
            yield Difference(DifferenceKind.CHANGED, difference.key, path, *values)


def _leaves(value: Json, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for place, part in enumerate(value):
            yield from _leaves(part, f"{path}[{place}]")
    else:
        yield path, canonical_document(value)


def _text(value: str | bool | None) -> str:  # noqa: FBT001 - a JSON value
    return json.dumps(value, ensure_ascii=False)


def _number(number: Decimal) -> str:
    """Write a number without insignificant zeros."""
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or not number:
        return "0" if not number else str(number)
    while not digits[-1]:
        digits, exponent = digits[:-1], exponent + 1
    exact = Decimal((sign, digits, exponent))
    return format(exact, "f") if abs(exponent) <= _MOST_ZEROS else str(exact)


Rows: TypeAlias = Iterable[Sequence[str | None]]


class Form(Protocol):
    """The comparable form of the rows of one route."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the compared columns, in the order of the texts."""

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        """
        Convert rows of the source, without those that the sink should not have.

        Raises:
            UnfitViewError: A view returns an invalid document.
        """

    def sink_row(self, row: StoredRow) -> SinkRow:
        """Convert a row of the sink."""

    def refined(self, found: Iterable[Difference]) -> Iterator[Difference]:
        """Refine differences for the readers of the report."""

    def key(self, name: str) -> Key | None:
        """Return the source key of a row name; ``None`` if it has none."""


class RowForm:
    """
    Rows, column by column, with the columns and constants of the route.

    With ``nulls_unfit``, unrepresentable values count as null on both sides. With
    ``sees_surplus``, a field that no column of the route has is a difference; a
    warehouse keeps columns that the source has dropped.
    """

    def __init__(
        self,
        table: SourceTable,
        routing: Routing | None = None,
        *,
        nulls_unfit: bool = False,
        sees_surplus: bool = False,
    ) -> None:
        self._names = KeyNames(table.key, routing)
        self._key = table.key_places
        columns = [
            (place, _routed(routing, column.record_name), column)
            for place, column in enumerate(table.columns)
        ]
        kept = [
            (place, name, column)
            for place, name, column in columns
            if name and column.is_compared
        ]
        constants = dict(routing.constants) if routing else {}
        self._places = [place for place, _, _ in kept]
        self._constants = [_constant_form(value)(value) for value in constants.values()]
        self.columns = tuple([name for _, name, _ in kept] + list(constants))
        known = {name for _, name, _ in columns if name}.union(constants)
        known |= {name for each in table.unread if (name := _routed(routing, each))}
        self._known = frozenset(known) if sees_surplus else None
        forms = [*(_form(c, nulls_unfit=nulls_unfit) for *_, c in kept)]
        forms += map(_constant_form, constants.values())
        # Other texts are compared unchanged: every row of a table comes through here.
        self._floats = [
            (place, form) for place, form in enumerate(forms) if form is not canonical
        ]
        self._nested = [
            (place, column.inside)
            for place, (_, _, column) in enumerate(kept)
            if column.inside
        ]
        self._is_whole = self._places == list(range(len(columns)))

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        name, key = self._names.name, self._key
        return [
            SourceRow(name([texts[place] for place in key]), self._written(texts))
            for texts in rows
        ]

    def _written(self, texts: Sequence[str | None]) -> Sequence[str | None]:
        if self._is_whole and not self._floats and not self._constants:
            return texts
        written = [texts[place] for place in self._places]
        for place, kind in self._nested:
            written[place] = nested_text(kind, written[place])
        for place, form in self._floats:
            if place < len(written):
                written[place] = form(written[place])
        return written + self._constants

    def sink_row(self, row: StoredRow) -> SinkRow:
        if row.is_deleted:
            return SinkRow(row.key, is_deleted=True, packed=b"", position=row.position)
        fields = row.fields
        values = [fields.get(name) for name in self.columns]
        for place, form in self._floats:
            values[place] = form(values[place])
        texts = [
            value if value is None or type(value) is str else text_of(value)
            for value in values
        ]
        if self._known is not None and (surplus := fields.keys() - self._known):
            # Appended to the columns: the source has no texts there.
            texts += sorted(surplus)
        packed = pack(texts)
        return SinkRow(row.key, is_deleted=False, packed=packed, position=row.position)

    def refined(self, found: Iterable[Difference]) -> Iterator[Difference]:
        yield from found

    def key(self, name: str) -> Key | None:
        return self._names.key(name)


class DocumentForm:
    """Aggregates as JSON documents: the id and payload of each row of a view."""

    columns = (DOCUMENT,)
    _names = KeyNames((DOCUMENT,), None)

    def __init__(self, view: str) -> None:
        self._view = view

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        # An event without a payload deletes the document.
        return [
            SourceRow(self._names.name([key]), [self._written(key, text)])
            for key, text in rows
            if text is not None
        ]

    def _written(self, key: str | None, text: str) -> str:
        try:
            return canonical_document(parsed(text))
        except (ValueError, ArithmeticError, RecursionError) as error:
            message = (
                f"the view {self._view} returns invalid JSON as the payload of the "
                f"aggregate {key}: correct the view, or cast payload to jsonb"
            )
            raise UnfitViewError(message) from error

    def sink_row(self, row: StoredRow) -> SinkRow:
        if row.is_deleted:
            return SinkRow(row.key, is_deleted=True, packed=b"", position=row.position)
        packed = pack([canonical_document(dict(row.fields))])
        return SinkRow(row.key, is_deleted=False, packed=packed, position=row.position)

    def refined(self, found: Iterable[Difference]) -> Iterator[Difference]:
        for difference in found:
            yield from _value_differences(difference)

    def key(self, name: str) -> Key | None:
        return self._names.key(name)


def form_of(route: Route, table: SourceTable, sink: Sink) -> Form:
    """Return the comparable form of a route's rows."""
    if route.kind is RouteKind.AGGREGATE:
        return DocumentForm(table.full_name.text)
    return RowForm(
        table,
        routing_of(route),
        nulls_unfit=_nulls_unfit(route, sink),
        sees_surplus=sink.kind in {SinkKind.CACHE, SinkKind.SEARCH},
    )


def _nulls_unfit(route: Route, sink: Sink) -> bool:
    """Return whether the sink stores unrepresentable values as null."""
    if route.kind is RouteKind.EVENT_LOG:
        return True
    return sink.kind == SinkKind.WAREHOUSE and sink.warehouse.unfit is Unfit.NULL


def _routed(routing: Routing | None, name: str) -> str | None:
    return routing.name(name) if routing else name


def _form(column: SourceColumn, *, nulls_unfit: bool) -> Canonical:
    if column.inside:
        return text_of_nested
    is_nulled = nulls_unfit and not column.is_kept_as_text
    return canonical_of(column.type, nulls_unfit=is_nulled)


def _constant_form(constant: Value) -> Canonical:
    """Return the function that writes a constant."""
    return canonical_of("double precision") if type(constant) is float else canonical
