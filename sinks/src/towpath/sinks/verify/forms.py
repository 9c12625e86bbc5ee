"""How rows become comparable: as the columns of a table, or as documents."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from towpath.sinks.key_text import key_text
from towpath.sinks.ports import StoredRow
from towpath.sinks.verify.canonical import canonical_of
from towpath.sinks.verify.compare import Difference, Held, SourceRow, pack
from towpath.sinks.verify.documents import (
    DOCUMENT,
    canonical_document,
    parsed,
    taken_apart,
)
from towpath.sinks.verify.source import SourceTable

Rows: TypeAlias = Iterable[Sequence[str | None]]


class Form(Protocol):
    """What is compared of the rows of one route."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of what is compared, in the order of the texts."""

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        """Write rows of the source, as far as the sink should hold them."""

    def held(self, row: StoredRow) -> Held:
        """Write what the sink holds of a key."""

    def told(self, found: Iterable[Difference]) -> Iterator[Difference]:
        """Tell differences as finely as a reader needs them."""


class RowForm:
    """Rows, column by column."""

    def __init__(self, table: SourceTable) -> None:
        self.columns = tuple(column.name for column in table.columns)
        self._forms = tuple(canonical_of(column.type) for column in table.columns)
        self._key = tuple(self.columns.index(name) for name in table.key)

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        return [self._source_row(texts) for texts in rows]

    def _source_row(self, texts: Sequence[str | None]) -> SourceRow:
        written = [form(text) for form, text in zip(self._forms, texts, strict=True)]
        return SourceRow(key_text([texts[place] for place in self._key]), written)

    def held(self, row: StoredRow) -> Held:
        if row.is_deleted:
            return Held(row.key, is_deleted=True, packed=b"")
        fields = zip(self._forms, self.columns, strict=True)
        texts = [form(row.fields.get(name)) for form, name in fields]
        return Held(row.key, is_deleted=False, packed=pack(texts))

    def told(self, found: Iterable[Difference]) -> Iterator[Difference]:
        yield from found


class DocumentForm:
    """Aggregates, as JSON values: of the source their id and their document."""

    columns = (DOCUMENT,)

    def source_rows(self, rows: Rows) -> list[SourceRow]:
        # An event without a payload deletes the document: there is none.
        return [
            SourceRow(key_text([aggregate_id]), [canonical_document(parsed(text))])
            for aggregate_id, text in rows
            if text is not None
        ]

    def held(self, row: StoredRow) -> Held:
        if row.is_deleted:
            return Held(row.key, is_deleted=True, packed=b"")
        packed = pack([canonical_document(dict(row.fields))])
        return Held(row.key, is_deleted=False, packed=packed)

    def told(self, found: Iterable[Difference]) -> Iterator[Difference]:
        for difference in found:
            yield from taken_apart(difference)
