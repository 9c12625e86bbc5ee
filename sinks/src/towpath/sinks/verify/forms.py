"""How rows become comparable: as the columns of a table, or as documents."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from towpath.settings import Route, RouteKind, Sink, SinkKind, Unfit
from towpath.sinks.change import Value
from towpath.sinks.ports import StoredRow
from towpath.sinks.routing import Routing, routing_of
from towpath.sinks.values import text_of
from towpath.sinks.verify.canonical import Canonical, canonical, canonical_of
from towpath.sinks.verify.compare import Difference, Held, SourceRow, pack
from towpath.sinks.verify.documents import (
    DOCUMENT,
    canonical_document,
    parsed,
    taken_apart,
)
from towpath.sinks.verify.errors import UnfitViewError
from towpath.sinks.verify.keys import Key, KeyNames
from towpath.sinks.verify.nested import nested_text, text_of_nested
from towpath.sinks.verify.table import SourceColumn, SourceTable

Rows: TypeAlias = Iterable[Sequence[str | None]]


class Form(Protocol):
    """What is compared of the rows of one route."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of what is compared, in the order of the texts."""

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        """
        Write rows of the source, as far as the sink should hold them.

        Raises:
            UnfitViewError: A view gives what is no document.
        """

    def held(self, row: StoredRow) -> Held:
        """Write what the sink holds of a key."""

    def told(self, found: Iterable[Difference]) -> Iterator[Difference]:
        """Tell differences as finely as a reader needs them."""

    def key(self, name: str) -> Key | None:
        """Return the source's key of a row of the sink; none: it can have none."""


class RowForm:
    """
    Rows, column by column, as the route leaves them.

    A row that is named otherwise than by its key's columns has a name for its key. With
    ``nulls_unfit`` what no warehouse has room for is null on both sides. With
    ``sees_surplus`` a field that no column of the route has is a difference; a
    warehouse keeps columns that the source has no more.
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
        self._constants = [_of(value)(value) for value in constants.values()]
        self.columns = tuple([name for _, name, _ in kept] + list(constants))
        known = {name for _, name, _ in columns if name}.union(constants)
        known |= {name for each in table.unread if (name := _routed(routing, each))}
        self._known = frozenset(known) if sees_surplus else None
        forms = [*(_form(c, nulls_unfit=nulls_unfit) for *_, c in kept)]
        forms += map(_of, constants.values())
        # Of the others a text is what it is: a whole table is gone through by this.
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

    def held(self, row: StoredRow) -> Held:
        if row.is_deleted:
            return Held(row.key, is_deleted=True, packed=b"", position=row.position)
        fields = row.fields
        values = [fields.get(name) for name in self.columns]
        for place, form in self._floats:
            values[place] = form(values[place])
        texts = [
            value if value is None or type(value) is str else text_of(value)
            for value in values
        ]
        if self._known is not None and (surplus := fields.keys() - self._known):
            # Behind all columns: the source's texts end before.
            texts += sorted(surplus)
        packed = pack(texts)
        return Held(row.key, is_deleted=False, packed=packed, position=row.position)

    def told(self, found: Iterable[Difference]) -> Iterator[Difference]:
        yield from found

    def key(self, name: str) -> Key | None:
        return self._names.key(name)


class DocumentForm:
    """Aggregates, as JSON values: of the source's view their id and their document."""

    columns = (DOCUMENT,)
    _names = KeyNames((DOCUMENT,), None)

    def __init__(self, view: str) -> None:
        self._view = view

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        # An event without a payload deletes the document: there is none.
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
                f"the view {self._view} gives the aggregate {key} a payload that "
                "cannot be read as JSON: correct the view, or cast payload to jsonb"
            )
            raise UnfitViewError(message) from error

    def held(self, row: StoredRow) -> Held:
        if row.is_deleted:
            return Held(row.key, is_deleted=True, packed=b"", position=row.position)
        packed = pack([canonical_document(dict(row.fields))])
        return Held(row.key, is_deleted=False, packed=packed, position=row.position)

    def told(self, found: Iterable[Difference]) -> Iterator[Difference]:
        for difference in found:
            yield from taken_apart(difference)

    def key(self, name: str) -> Key | None:
        return self._names.key(name)


def form_of(route: Route, table: SourceTable, sink: Sink) -> Form:
    """Return what is compared of a route's rows."""
    if route.kind is RouteKind.AGGREGATE:
        return DocumentForm(table.full_name.text)
    return RowForm(
        table,
        routing_of(route),
        nulls_unfit=_nulls_unfit(route, sink),
        sees_surplus=sink.kind in {SinkKind.CACHE, SinkKind.SEARCH},
    )


def _nulls_unfit(route: Route, sink: Sink) -> bool:
    """Tell whether the sink has null for what it has no room for; a log always has."""
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


def _of(constant: Value) -> Canonical:
    """Return how a constant is written."""
    return canonical_of("double precision") if type(constant) is float else canonical
