"""
The rules of published columns: their names, their forms, and the key.

====================  ================================================================
include, exclude      columns of the value; the key keeps its columns
mask                  ``length`` asterisks
truncate              the first ``length`` characters, for character columns only
hash                  hex digest of salt and value, no longer than the column
key_columns           the record's key, instead of the table's own
source_types          the schema has Postgres's type, length and scale
sanitize_names        names valid in Avro; two that become the same are refused
====================  ================================================================

Rules are regular expressions that match the whole of ``schema.table.column``. NULL
remains NULL. The record's key is not changed: masked keys could become equal. For the
same reason, a key column of an unknown type is written as text; other columns of an
unknown type may be left out. The digest is Debezium's, over the salt and the text as
Java serializes it, so that earlier hashes remain comparable.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from towpath.relay.encode.codecs.connect_schema import Field, sanitized_all
from towpath.relay.encode.relations import CatalogFacts, ColumnPlan
from towpath.relay.encode.types.choose import FormChooser
from towpath.relay.encode.types.form import Form, Schema, modes_of
from towpath.relay.encode.types.scalar import (
    TEXT,
    OnLost,
    precision_and_scale,
    text_json,
    text_value,
)
from towpath.relay.errors import NotPreparedError
from towpath.relay.wal.messages import Column, Relation
from towpath.settings.relay import Relay
from towpath.settings.rows import ColumnRule, RecordFormat
from towpath.settings.syntax import compiled

OMITTED: Final = "a column of an unknown type is left out"

_BPCHAR, _VARCHAR, _NUMERIC = 1042, 1043, 1700
_LENGTH_OFFSET: Final = 4
_BITS: Final = frozenset({1560, 1562})
_ASTERISK: Final = "*"

# The prefixes of Java's object stream for short and long strings.
_JAVA_STRING: Final = b"\xac\xed\x00\x05t"
_JAVA_LONG_STRING: Final = b"\xac\xed\x00\x05|"
_SHORT_BYTES: Final = 0xFFFF
_ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")


class ColumnRules:
    """Makes column plans according to ``[relay.rows]``."""

    def __init__(self, relay: Relay, on_lost: OnLost | None = None) -> None:
        rows = relay.rows
        self._rows = rows
        self._modes = modes_of(relay)
        self._on_lost = on_lost or _ignore
        self._include = [compiled(text) for text in rows.include_columns]
        self._exclude = [compiled(text) for text in rows.exclude_columns]
        self._source_types = [compiled(text) for text in rows.source_types]
        self._masks = [(list(map(compiled, rule.columns)), rule) for rule in rows.mask]

    def plan(self, relation: Relation, facts: CatalogFacts) -> ColumnPlan:
        """
        Return the published columns of a table.

        Raises:
            NotPreparedError: The configured key names a missing column.
            NameCollisionError: Two columns get the same name.
        """
        forms = FormChooser(facts.types, self._modes, self._on_lost)
        key = self._key_indexes(relation)
        fields = self._fields(relation, facts, forms, key)
        ruled = [
            self._ruled(field, relation, forms)
            for field in fields.values()
            if self._is_published(_full(relation, field.at))
        ]
        return ColumnPlan(
            key=tuple(
                fields[at]._replace(is_nullable=at not in relation.key) for at in key
            ),
            columns=tuple(field for field, _ in ruled),
            texts=frozenset(field.at for field, is_text in ruled if is_text),
            ruled=frozenset(f.at for f, _ in ruled if f is not fields[f.at]),
        )

    def _is_published(self, full_name: str) -> bool:
        if self._include:
            return _matches(self._include, full_name)
        return not _matches(self._exclude, full_name)

    def _fields(
        self,
        relation: Relation,
        facts: CatalogFacts,
        forms: FormChooser,
        key: Sequence[int],
    ) -> dict[int, Field]:
        """Return the fields of the columns in the value or the key, by their index."""
        kept = {}
        for at, column in enumerate(relation.columns):
            if at not in key and not self._is_published(_full(relation, at)):
                continue
            form = forms.of(column.type_oid, column.typmod)
            if form is None and at in key:
                # Without this column, rows that differ only in it would share a key.
                form = TEXT
            if form is None:
                self._on_lost(OMITTED)
                continue
            kept[at] = column, self._with_source_type(relation, column, facts, form)
        names = self._names([column.name for column, _ in kept.values()], relation.name)
        required = facts.required_names
        return {
            at: Field(at, names[column.name], form, column.name not in required)
            for at, (column, form) in kept.items()
        }

    def _names(self, names: Sequence[str], of: str) -> dict[str, str]:
        if self._rows.sanitize_names or self._rows.format is RecordFormat.AVRO:
            return dict(sanitized_all(names, of))
        return dict(zip(names, names, strict=True))

    def _key_indexes(self, relation: Relation) -> tuple[int, ...]:
        names = self._rows.key_columns.get(relation.name)
        if names is None:
            return relation.key
        indexes = {column.name: at for at, column in enumerate(relation.columns)}
        missing = [name for name in names if name not in indexes]
        if missing:
            reason = f"key_columns of {relation.name}: no column {', '.join(missing)}"
            raise NotPreparedError(reason)
        return tuple(indexes[name] for name in names)

    def _rule(self, full_name: str) -> ColumnRule | None:
        for patterns, rule in self._masks:
            if _matches(patterns, full_name):
                return rule
        return None

    def _ruled(
        self, field: Field, relation: Relation, forms: FormChooser
    ) -> tuple[Field, bool]:
        """Return the field with its rule applied, and whether it became text."""
        rule = self._rule(_full(relation, field.at))
        if rule is None:
            return field, False
        column = relation.columns[field.at]
        if rule.form == "truncate":
            if not forms.is_characters(column.type_oid):
                return field, False
            return field._replace(form=_truncated(rule.length or 0)), False
        if rule.form == "mask":
            return field._replace(form=_constant(_ASTERISK * (rule.length or 0))), True
        return field._replace(form=_text_form(_digest(rule, _length(column)))), True

    def _with_source_type(
        self, relation: Relation, column: Column, facts: CatalogFacts, form: Form
    ) -> Form:
        if not _matches(
            self._source_types, f"{relation.full_name.joined}.{column.name}"
        ):
            return form
        known = facts.types.get(column.type_oid)
        kind = known.name if known else facts.type_names.get(column.type_oid, "text")
        added = {"__debezium.source.column.type": kind.upper()}
        length, scale = _length(column), None
        if column.type_oid == _NUMERIC:
            length, scale = precision_and_scale(column.typmod) or (None, None)
        if length is not None:
            added["__debezium.source.column.length"] = str(length)
        if scale is not None:
            added["__debezium.source.column.scale"] = str(scale)
        added["__debezium.source.column.name"] = column.name
        parameters = MappingProxyType({**form.schema.parameters, **added})
        return form._replace(schema=replace(form.schema, parameters=parameters))


def _ignore(_reason: str) -> None:
    pass


def _full(relation: Relation, place: int) -> str:
    return f"{relation.full_name.joined}.{relation.columns[place].name}"


def _matches(patterns: Sequence[re.Pattern[str]], full_name: str) -> bool:
    return any(pattern.fullmatch(full_name) for pattern in patterns)


def _length(column: Column) -> int | None:
    """Return the maximum length of a column's values; None if there is no maximum."""
    if column.type_oid in {_BPCHAR, _VARCHAR} and column.typmod >= _LENGTH_OFFSET:
        return column.typmod - _LENGTH_OFFSET
    if column.type_oid in _BITS and column.typmod >= 0:
        return column.typmod
    return None


def _constant(text: str) -> Form:
    return _text_form(lambda _: text)


def _text_form(value: Callable[[bytes], str]) -> Form:
    return Form(Schema("string"), lambda text: text_json(value(text).encode()), value)


def _truncated(length: int) -> Form:
    return _text_form(lambda text: text_value(text)[:length])


def _digest(rule: ColumnRule, length: int | None) -> Callable[[bytes], str]:
    algorithm = _algorithm(rule.algorithm)
    salted = hashlib.new(algorithm, rule.salt.encode(), usedforsecurity=False)

    def value(text: bytes) -> str:
        digest = salted.copy()
        digest.update(java_string(text.decode()))
        return digest.hexdigest()[:length]

    return value


def _algorithm(name: str) -> str:
    """Return Python's name for an algorithm."""
    plain = name.lower().replace("-", "").replace("_", "")
    known = {one.replace("_", ""): one for one in hashlib.algorithms_guaranteed}
    return known.get(plain, name)


def java_string(text: str) -> bytes:
    """Encode a string without NULs in the format of Java's object stream."""
    body = _ASTRAL.sub(_surrogates, text).encode("utf-8", "surrogatepass")
    if len(body) > _SHORT_BYTES:
        return _JAVA_LONG_STRING + len(body).to_bytes(8, "big") + body
    return _JAVA_STRING + len(body).to_bytes(2, "big") + body


def _surrogates(match: re.Match[str]) -> str:
    offset = ord(match[0]) - 0x10000
    return chr(0xD800 + (offset >> 10)) + chr(0xDC00 + (offset & 0x3FF))
