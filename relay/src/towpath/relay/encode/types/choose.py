"""
Chooses the form of a column, by its type, the catalog and the configured modes.

====================================  ================================================
a built-in type                       by its oid, which never changes
a type of an extension                by its name, in any schema
a domain                              the form of its base type, through all levels
an array                              a list of its element's form
a composite                           an object of its fields' forms; as an unknown
                                      type if ``unknown_types`` is ``bytes``
an enum                               its label; the schema has all labels
a range                               its text
any other type                        by ``unknown_types``
a dropped type                        its text
====================================  ================================================

A column's form is chosen once; it consists of plain functions on bytes.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from towpath.relay.encode.types import scalar, temporal
from towpath.relay.encode.types.form import Form, Modes, Schema, TypeFacts, Types
from towpath.relay.encode.types.nested import (
    POINT,
    array,
    composite,
    hstore,
    java_numbers,
    postgis,
)
from towpath.relay.encode.types.scalar import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT16,
    INT32,
    INT64,
    JSON,
    LTREE,
    PLAIN,
    TEXT,
    TSVECTOR,
    UUID,
    XML,
    binary,
    bits,
    bytea,
    enum,
)
from towpath.relay.encode.types.temporal import (
    instant_column,
    instant_json,
    instant_value,
    interval,
    timestamp_json,
    timestamp_value,
    utc_time_json,
    utc_time_value,
)
from towpath.settings.rows import UnknownTypes

_Make = Callable[[int, Modes], Form]

_NUMERIC: Final = 1700

_FIXED: Final = MappingProxyType(
    {
        16: BOOLEAN,
        18: TEXT,  # "char"
        19: TEXT,  # name
        20: INT64,
        21: INT16,
        23: INT32,
        25: TEXT,
        26: INT64,  # oid
        114: JSON,
        142: XML,
        650: PLAIN,  # cidr
        700: FLOAT,
        701: DOUBLE,
        774: PLAIN,  # macaddr8
        829: PLAIN,  # macaddr
        869: PLAIN,  # inet
        1042: TEXT,  # char(n)
        1043: TEXT,  # varchar
        2950: UUID,
        3614: TSVECTOR,
        3802: JSON,  # jsonb
    }
)

# "char", name, text, char(n) and varchar.
_CHARACTERS: Final = frozenset({18, 19, 25, 1042, 1043})

# Debezium's driver parses the numbers in values of these types and formats them again.
_GEOMETRIC: Final = frozenset({601, 602, 603, 604, 628, 718})

_UTC_TIME: Final = Form(
    Schema("string", name="io.debezium.time.ZonedTime", version=1),
    utc_time_json,
    utc_time_value,
)
_INSTANT: Final = Form(
    Schema("string", name="io.debezium.time.ZonedTimestamp", version=1),
    instant_json,
    instant_value,
    instant_column,
)
_TIMESTAMP_TEXT: Final = Form(Schema("string"), timestamp_json, timestamp_value)


def _date(_typmod: int, modes: Modes) -> Form:
    return PLAIN if modes.is_iso else temporal.date_form(modes.rows.times)


def _time(typmod: int, modes: Modes) -> Form:
    return PLAIN if modes.is_iso else temporal.time_form(typmod, modes.rows.times)


def _timestamp(typmod: int, modes: Modes) -> Form:
    if modes.is_iso:
        return _TIMESTAMP_TEXT
    return temporal.timestamp_form(typmod, modes.rows.times)


def _timestamptz(typmod: int, modes: Modes) -> Form:
    return _INSTANT if modes.is_iso else temporal.zoned_form(typmod)


def _bit(typmod: int, modes: Modes) -> Form:
    return bits(typmod, is_varying=False, is_debezium=modes.is_debezium)


def _varbit(typmod: int, modes: Modes) -> Form:
    return bits(typmod, is_varying=True, is_debezium=modes.is_debezium)


def _point(_typmod: int, modes: Modes) -> Form:
    return POINT if modes.is_debezium else TEXT


def _geometry(_typmod: int, modes: Modes) -> Form:
    return postgis("Geometry") if modes.is_debezium else TEXT


def _geography(_typmod: int, modes: Modes) -> Form:
    return postgis("Geography") if modes.is_debezium else TEXT


_BY_MODE: Final[Mapping[int, _Make]] = MappingProxyType(
    {
        17: lambda _, modes: bytea(modes.rows.binaries),
        600: _point,
        790: lambda _, modes: scalar.money(modes.rows.decimals),
        1082: _date,
        1083: _time,
        1114: _timestamp,
        1184: _timestamptz,
        1186: lambda _, modes: interval(modes.rows.intervals),
        1266: lambda _typmod, _modes: _UTC_TIME,
        1560: _bit,
        1562: _varbit,
    }
)

_BY_NAME: Final[Mapping[str, _Make]] = MappingProxyType(
    {
        "citext": lambda _typmod, _modes: TEXT,
        "geography": _geography,
        "geometry": _geometry,
        "hstore": lambda _, modes: hstore(modes.rows.hstore),
        "ltree": lambda _typmod, _modes: LTREE,
    }
)


class FormChooser:
    """Chooses forms for the columns of one table."""

    def __init__(self, types: Types, modes: Modes, on_lost: scalar.OnLost) -> None:
        self._types = types
        self._modes = modes
        self._on_lost = on_lost

    def of(self, type_oid: int, typmod: int) -> Form | None:
        """Return the form of a column; None if the column is left out."""
        form = self._built_in(type_oid, typmod)
        if form is not None:
            return form
        facts = self._types.get(type_oid)
        if facts is None:
            return TEXT
        if facts.base_oid:
            inner = typmod if typmod >= 0 else facts.base_typmod
            return self.of(facts.base_oid, inner)
        if facts.element_oid:
            return self._array(facts, typmod)
        return self._user_defined(type_oid, typmod, facts)

    def is_characters(self, type_oid: int) -> bool:
        """Return whether a column has a character type."""
        facts = self._types.get(type_oid)
        if facts is not None and facts.base_oid:
            return self.is_characters(facts.base_oid)
        is_citext = facts is not None and facts.name == "citext"
        return is_citext or type_oid in _CHARACTERS

    def _built_in(self, type_oid: int, typmod: int) -> Form | None:
        fixed = _FIXED.get(type_oid)
        if fixed is not None:
            return fixed
        if type_oid == _NUMERIC:
            mode = self._modes.rows.decimals
            return scalar.numeric(typmod, mode, self._on_lost)
        make = _BY_MODE.get(type_oid)
        return None if make is None else make(typmod, self._modes)

    def _user_defined(
        self, type_oid: int, typmod: int, facts: TypeFacts
    ) -> Form | None:
        if facts.kind == "e":
            return enum(facts.labels)
        if facts.kind == "r":
            return TEXT
        # Debezium treats composites as unknown types.
        is_known = self._modes.rows.unknown_types is not UnknownTypes.BYTES
        if facts.kind == "c" and is_known:
            return self._composite(facts)
        make = _BY_NAME.get(facts.name) if facts.kind == "b" else None
        return self._unknown(type_oid) if make is None else make(typmod, self._modes)

    def _array(self, facts: TypeFacts, typmod: int) -> Form | None:
        element = self.of(facts.element_oid, typmod)
        if element is None:
            return None
        inner = self._types.get(facts.element_oid)
        delimiter = inner.delimiter if inner is not None else ","
        return array(element, delimiter.encode(), has_schema=self._modes.has_schema)

    def _composite(self, facts: TypeFacts) -> Form:
        fields = [(f.name, self.of(f.type_oid, f.typmod)) for f in facts.fields]
        # A composite's text has every field: one without a form is written as text.
        known = [(name, form or TEXT) for name, form in fields]
        return composite(
            facts.full_name, known, self._on_lost, has_schema=self._modes.has_schema
        )

    def _unknown(self, type_oid: int) -> Form | None:
        mode = self._modes.rows.unknown_types
        if mode is UnknownTypes.OMIT:
            return None
        if mode is UnknownTypes.TEXT:
            return TEXT
        read = java_numbers if type_oid in _GEOMETRIC else _as_is
        return binary(self._modes.rows.binaries, read)


def _as_is(text: bytes) -> bytes:
    return text
