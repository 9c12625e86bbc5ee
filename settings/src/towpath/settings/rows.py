"""``[relay.rows]``: how row changes are written; a preset sets Debezium's forms."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from towpath.settings.section import Section, TableText
from towpath.settings.syntax import HashName, Pattern, Placeholder


class RecordFormat(enum.StrEnum):
    """The serialization of keys and values of row changes."""

    JSON = "json"
    JSON_SCHEMA = "json-schema"
    AVRO = "avro"


class Decimals(enum.StrEnum):
    """``numeric`` and ``money``: text, Connect's Decimal, or a double."""

    STRING = "string"
    PRECISE = "precise"
    DOUBLE = "double"


class Times(enum.StrEnum):
    """Dates and times: ISO 8601 text, or Debezium's numbers by column precision."""

    ISO = "iso"
    ADAPTIVE = "adaptive"
    ADAPTIVE_TIME_MICROSECONDS = "adaptive_time_microseconds"
    CONNECT = "connect"


class Intervals(enum.StrEnum):
    """``interval``: ISO 8601 text, or microseconds with a month of 365.25 / 12 days."""

    STRING = "string"
    NUMERIC = "numeric"


class Binaries(enum.StrEnum):
    """``bytea``; ``bytes`` is base64 in formats without a type for bytes."""

    BYTES = "bytes"
    BASE64 = "base64"
    BASE64_URL_SAFE = "base64-url-safe"
    HEX = "hex"


class HstoreForm(enum.StrEnum):
    """``hstore``: text that holds JSON, or a map."""

    JSON = "json"
    MAP = "map"


class UnknownTypes(enum.StrEnum):
    """Types without a rule of their own: their text, opaque bytes, or left out."""

    TEXT = "text"
    BYTES = "bytes"
    OMIT = "omit"


class RefusedSchema(enum.StrEnum):
    """The reaction to a schema that the registry refuses: halt, or dead letters."""

    HALT = "halt"
    PARK = "park"


class ColumnRule(Section):
    """
    ``[[relay.rows.mask]]``: columns whose values are masked, truncated or hashed.

    ``columns`` are regular expressions matched against ``schema.table.column``.
    ``mask`` writes ``length`` asterisks, ``truncate`` keeps ``length`` characters,
    ``hash`` writes the hex digest of salt and value, no longer than the column.
    """

    columns: tuple[Pattern, ...] = Field(min_length=1)
    form: Literal["mask", "truncate", "hash"]
    length: int | None = Field(default=None, ge=0)
    algorithm: HashName = "SHA-256"
    salt: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.form == "hash") == (self.length is not None):
            message = "length: mask and truncate need a length, hash takes none"
            raise ValueError(message)
        if self.form == "truncate" and not self.length:
            message = "length: truncate keeps at least one character"
            raise ValueError(message)
        return self


class Rows(Section):
    """
    ``[relay.rows]``.

    ``include_columns`` and ``exclude_columns`` are regular expressions matched against
    ``schema.table.column``; key columns always remain in the key. ``key_columns`` maps
    a table to the columns of its key. ``placeholder`` replaces unchanged TOASTed values
    of columns whose type can express it; others are omitted. ``source_types`` are
    regular expressions for the columns whose schema carries the Postgres type.
    """

    format: RecordFormat = RecordFormat.JSON
    decimals: Decimals = Decimals.STRING
    times: Times = Times.ISO
    intervals: Intervals = Intervals.STRING
    binaries: Binaries = Binaries.BYTES
    hstore: HstoreForm = HstoreForm.JSON
    unknown_types: UnknownTypes = UnknownTypes.TEXT
    placeholder: Placeholder | None = None
    tombstones: bool = True
    skipped_operations: tuple[Literal["c", "u", "d", "t"], ...] = ()
    skip_unchanged: bool = False
    key_columns: dict[TableText, tuple[str, ...]] = Field(default_factory=dict)
    include_columns: tuple[Pattern, ...] = ()
    exclude_columns: tuple[Pattern, ...] = ()
    mask: tuple[ColumnRule, ...] = ()
    source_types: tuple[Pattern, ...] = ()
    sanitize_names: bool = False
    on_refused_schema: RefusedSchema = RefusedSchema.HALT

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.include_columns and self.exclude_columns:
            message = "include_columns and exclude_columns cannot be combined"
            raise ValueError(message)
        return self


DEBEZIUM_ROWS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "format": "json-schema",
        "decimals": "precise",
        "times": "adaptive",
        "intervals": "numeric",
        "unknown_types": "omit",
        "placeholder": "__debezium_unavailable_value",
        "skipped_operations": ["t"],
    }
)
