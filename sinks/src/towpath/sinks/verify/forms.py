"""
Comparable forms of rows: columns of a table, or documents.

Values of both sides become the text that a record carries (see ``canonical``). The
source converts its values in SQL; this module converts the values that the sinks'
readers return. A document is compared as one canonical text; only differing documents
are compared value by value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from towpath.settings import Route, RouteKind, Sink, SinkKind, Unfit
from towpath.sinks.change import Row, UnreadableError, Value
from towpath.sinks.changes.relations import Column
from towpath.sinks.changes.routing import Routing, routing_of
from towpath.sinks.changes.transformed_columns import OutputColumn
from towpath.sinks.changes.transforms import RowTransforms
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.canonical import (
    Canonical,
    Key,
    KeyNames,
    canonical,
    canonical_document,
    canonical_of,
    parsed,
    value_differences,
)
from towpath.sinks.verify.compare import Difference, SinkRow, SourceRow, pack
from towpath.sinks.verify.errors import IncomparableError, UnfitViewError
from towpath.sinks.verify.table import SourceColumn, SourceTable, is_kept_as_text
from towpath.sinks.verify.types import (
    SINGLES,
    nested_text,
    nested_value,
    text_of_nested,
)

DOCUMENT: Final = "document"

# Parsers of the source's texts, by type; in a record, values of other types are text.
_PARSERS: Final[dict[str, Callable[[str], Value]]] = {
    **{name: SINGLES[name] for name in ("smallint", "integer", "bigint", "oid")},
    **{name: SINGLES[name] for name in ("real", "double precision")},
    "boolean": lambda text: text == "true",
}

Rows: TypeAlias = Iterable[Sequence[str | None]]


class Form(Protocol):
    """The comparable form of the rows of one route."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the compared columns, in the order of the texts."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that name the columns that are not compared, and say why."""

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        """
        Convert the source's rows, leaving out those that the sink should not have.

        Raises:
            UnfitViewError: A view returns an invalid document.
        """

    def sink_row(self, row: StoredRow) -> SinkRow:
        """Convert a row of the sink."""

    def refined(self, found: Iterable[Difference]) -> Iterator[Difference]:
        """Refine differences for the readers of the report."""

    def key(self, name: str) -> Key | None:
        """Return the source key of a row name; ``None`` if it has none."""


class FieldsForm:
    """The base of the forms that compare rows column by column."""

    notes: tuple[str, ...] = ()

    def __init__(
        self,
        names: KeyNames,
        columns: Sequence[tuple[str, Canonical]],
        known: frozenset[str] | None,
    ) -> None:
        """
        Store the form.

        Args:
            names: Converts between source keys and row names.
            columns: The compared columns, each with the function that returns the text
                of a value.
            known: All fields that a row can have; ``None`` for any.
        """
        self._names = names
        self._known = known
        self.columns = tuple(name for name, _ in columns)
        # Only the columns that need more than ``canonical``, because the list is
        # processed for each row.
        self._forms = [
            (index, form)
            for index, (_, form) in enumerate(columns)
            if form is not canonical
        ]

    def _texts(self, fields: Row) -> list[str | None]:
        """Return the texts of a row whose values are in the form of records."""
        values = [fields.get(name) for name in self.columns]
        for index, form in self._forms:
            values[index] = form(values[index])
        return [
            value if value is None or type(value) is str else canonical(value)
            for value in values
        ]

    def sink_row(self, row: StoredRow) -> SinkRow:
        """Convert a row of the sink."""
        if row.is_deleted:
            return SinkRow(row.key, is_deleted=True, packed=b"", position=row.position)
        texts = self._texts(row.fields)
        if self._known is not None and (surplus := row.fields.keys() - self._known):
            # Names of surplus fields are appended, so the row differs from the source.
            texts += sorted(surplus)
        packed = pack(texts)
        return SinkRow(row.key, is_deleted=False, packed=packed, position=row.position)

    def refined(self, found: Iterable[Difference]) -> Iterator[Difference]:
        """Yield differences as they are."""
        yield from found

    def key(self, name: str) -> Key | None:
        """Return the source key of a row name; ``None`` if it has none."""
        return self._names.key(name)


class RowForm(FieldsForm):
    """
    Rows, column by column, with the columns and constants of the route.

    With ``treats_unfit_as_null``, unrepresentable values count as null on both sides.
    With ``sees_surplus``, a field that no column of the route has is a difference. This
    is off for warehouses and Postgres, which keep columns that the source has dropped.
    """

    def __init__(
        self,
        table: SourceTable,
        routing: Routing | None = None,
        *,
        treats_unfit_as_null: bool = False,
        sees_surplus: bool = False,
    ) -> None:
        self._key = table.key_indexes
        columns = [
            (index, _routed(routing, column.record_name), column)
            for index, column in enumerate(table.columns)
        ]
        kept = [
            (index, name, column)
            for index, name, column in columns
            if name and column.is_compared
        ]
        constants = dict(routing.constants) if routing else {}
        self._indexes = [index for index, _, _ in kept]
        self._constants = [_constant_form(value)(value) for value in constants.values()]
        known = {name for _, name, _ in columns if name}.union(constants)
        known |= {name for each in table.unread if (name := _routed(routing, each))}
        super().__init__(
            KeyNames(table.key, routing),
            [
                *(
                    (n, _form(column, treats_unfit_as_null=treats_unfit_as_null))
                    for _, n, column in kept
                ),
                *((name, _constant_form(value)) for name, value in constants.items()),
            ],
            frozenset(known) if sees_surplus else None,
        )
        self._nested = [
            (index, column.inside)
            for index, (_, _, column) in enumerate(kept)
            if column.inside
        ]
        self._is_whole = self._indexes == list(range(len(columns)))

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        name, key = self._names.name, self._key
        return [
            SourceRow(name([texts[index] for index in key]), self._written(texts))
            for texts in rows
        ]

    def _written(self, texts: Sequence[str | None]) -> Sequence[str | None]:
        if self._is_whole and not self._forms and not self._constants:
            return texts
        written = [texts[index] for index in self._indexes]
        for index, kind in self._nested:
            written[index] = nested_text(kind, written[index])
        for index, form in self._forms:
            if index < len(written):
                written[index] = form(written[index])
        return written + self._constants


class TransformedForm(FieldsForm):
    """
    Rows of a route with transforms, which are applied to the source's rows, too.

    First, the texts of the source become values in the form of records. A row that
    cannot be transformed differs from every row of the sink, with the reason as text.
    """

    def __init__(
        self,
        table: SourceTable,
        routing: Routing,
        transforms: RowTransforms,
        *,
        treats_unfit_as_null: bool = False,
        sees_surplus: bool = False,
    ) -> None:
        self._routing = routing
        self._transforms = transforms
        self._key = table.key_indexes
        self._read = [
            (index, column.record_name, column)
            for index, column in enumerate(table.columns)
            if column.is_compared
        ]
        own = {name: column for _, name, column in self._read}
        hidden = {c.record_name for c in table.columns if not c.is_compared}
        hidden |= set(table.unread)
        outputs = _outputs(table, routing, own, hidden)
        columns = [
            (name, _output_form(each, own, is_nulled=treats_unfit_as_null))
            for name, each in outputs
            if not each.inputs & hidden
        ]
        columns += [(n, _constant_form(v)) for n, v in routing.constants.items()]
        known = {name for name, _ in outputs}.union(routing.constants)
        super().__init__(
            KeyNames(table.key, routing),
            columns,
            frozenset(known) if sees_surplus else None,
        )
        self.notes = _uncompared_note(
            name for name, each in outputs if not each.source and each.inputs & hidden
        )

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        found = []
        for texts in rows:
            written = self._written(texts)
            if written is not None:
                name = self._names.name([texts[index] for index in self._key])
                found.append(SourceRow(name, written))
        return found

    def _written(self, texts: Sequence[str | None]) -> Sequence[str | None] | None:
        """Return the texts of a row; ``None`` if the sink must not have the row."""
        row = {name: _value(column, texts[index]) for index, name, column in self._read}
        try:
            found = self._transforms.apply(row)
            return None if found is None else self._texts(self._routing.row(found.row))
        except UnreadableError as error:
            return [f"cannot be transformed: {error}"] * len(self.columns)


class DocumentForm:
    """Aggregates as JSON documents: the id and payload of each row of a view."""

    columns = (DOCUMENT,)
    notes: tuple[str, ...] = ()
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
            yield from value_differences(difference)

    def key(self, name: str) -> Key | None:
        return self._names.key(name)


def form_of(route: Route, table: SourceTable, sink: Sink) -> Form:
    """Return the comparable form of a route's rows."""
    if route.kind is RouteKind.AGGREGATE:
        return DocumentForm(table.full_name.text)
    routing = routing_of(route)
    treats_unfit_as_null = _treats_unfit_as_null(route, sink)
    sees_surplus = sink.kind in {SinkKind.CACHE, SinkKind.SEARCH}
    if routing is not None and routing.is_after_transforms:
        return TransformedForm(
            *(table, routing, RowTransforms(route, sink.hash_salts)),
            treats_unfit_as_null=treats_unfit_as_null,
            sees_surplus=sees_surplus,
        )
    return RowForm(
        table,
        routing,
        treats_unfit_as_null=treats_unfit_as_null,
        sees_surplus=sees_surplus,
    )


def _treats_unfit_as_null(route: Route, sink: Sink) -> bool:
    """Return whether the sink stores unrepresentable values as null."""
    if route.kind is RouteKind.EVENT_LOG:
        return True
    return sink.kind == SinkKind.WAREHOUSE and sink.warehouse.unfit is Unfit.NULL


def _routed(routing: Routing | None, name: str) -> str | None:
    return routing.name(name) if routing else name


def _form(column: SourceColumn, *, treats_unfit_as_null: bool) -> Canonical:
    if column.inside:
        return text_of_nested
    is_nulled = treats_unfit_as_null and not column.is_kept_as_text
    return canonical_of(column.type, treats_unfit_as_null=is_nulled)


def _output_form(
    output: OutputColumn, own: Mapping[str, SourceColumn], *, is_nulled: bool
) -> Canonical:
    """Return the function that returns the text of a column after transforms."""
    if output.source:
        return _form(own[output.source], treats_unfit_as_null=is_nulled)
    column = output.column
    is_text = is_kept_as_text(column)
    computed = SourceColumn(column.name, column.type, is_kept_as_text=is_text)
    return _form(computed, treats_unfit_as_null=is_nulled)


def _value(column: SourceColumn, text: str | None) -> Value:
    """Convert a text of the source to the value in a record."""
    if text is None:
        return None
    if column.inside:
        nested: Value = nested_value(column.inside, text)
        return nested
    parse = _PARSERS.get(column.type)
    return text if parse is None else parse(text)


def _outputs(
    table: SourceTable,
    routing: Routing,
    own: Mapping[str, SourceColumn],
    hidden: Iterable[str],
) -> list[tuple[str, OutputColumn]]:
    """Return the columns of a route with transforms, by their names in the sink."""
    announced = [Column(name, column.type) for name, column in own.items()]
    announced += [Column(name, "text") for name in hidden]
    transformed = routing.transformed(announced)
    if listed := ", ".join(sorted(transformed.deciding.intersection(hidden))):
        message = (
            f"rows of {table.full_name} are filtered by columns whose published values "
            f"the verifier cannot reproduce: {listed}"
        )
        raise IncomparableError(message)
    return [
        (name, each)
        for each in transformed.columns
        if (name := routing.name(each.name)) is not None
    ]


def _uncompared_note(names: Iterable[str]) -> tuple[str, ...]:
    listed = ", ".join(names)
    if not listed:
        return ()
    return (f"columns computed from uncompared ones are not compared: {listed}",)


def _constant_form(constant: Value) -> Canonical:
    """Return the function that returns the text of a constant."""
    return canonical_of("double precision") if type(constant) is float else canonical
