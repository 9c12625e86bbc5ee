"""
``[sink.warehouse]``: what only a warehouse has: catalog, files, partitions, upkeep.

A partition field is written as the format's own engines write it: ``bucket(8, id)``,
``truncate(4, name)``, ``years(at)``, ``months(at)``, ``days(at)``, ``hours(at)``, or a
column's bare name.
"""

import enum
import re
from typing import Annotated, Final, NamedTuple

from pydantic import AfterValidator, Field

from towpath.settings.section import Section

_MEBIBYTE: Final = 1024 * 1024
# The engine refuses to look for stray files younger than a day: they may be in use.
_DAY_S: Final = 86_400

_FIELD: Final = re.compile(
    r"(?P<plain>[^(),`\s]+)"
    r"|(?P<sized>bucket|truncate)\(\s*(?P<width>[1-9]\d{0,8})\s*,\s*(?P<c>[^(),`\s]+)\s*\)"
    r"|(?P<timed>years|months|days|hours)\(\s*(?P<t>[^(),`\s]+)\s*\)"
)

# What the writer and the reader are told by the sink itself.
_OWN_PROPERTIES: Final = frozenset(
    {"type", "uri", "warehouse", "catalog-impl", "cache-enabled", "jdbc.schema-version"}
)


class CatalogKind(enum.StrEnum):
    """
    Who keeps the list of tables.

    ``jdbc``: a Postgres database. ``rest``: a server of Iceberg's REST catalog API.
    """

    JDBC = "jdbc"
    REST = "rest"


class Unfit(enum.StrEnum):
    """
    What becomes of a value that Postgres has and the warehouse's type has not.

    ``reject``: its row is set aside. ``null``: the row is written with null there.
    """

    REJECT = "reject"
    NULL = "null"


class PartitionField(NamedTuple):
    """One partition field; ``width`` is the number of buckets, or the length kept."""

    transform: str
    column: str
    width: int | None = None


def parse_partition(text: str) -> PartitionField:
    """
    Read one partition field.

    Raises:
        ValueError: The text is none.
    """
    match = _FIELD.fullmatch(text.strip())
    if match is None:
        message = (
            f"{text!r} is no partition field, such as 'bucket(8, order_id)', "
            "'days(placed_at)' or a column's name"
        )
        raise ValueError(message)
    if match["plain"]:
        return PartitionField("identity", match["plain"])
    if match["timed"]:
        return PartitionField(match["timed"], match["t"])
    return PartitionField(match["sized"], match["c"], int(match["width"]))


def _check_partition(text: str) -> str:
    parse_partition(text)
    return text


def _check_property(name: str) -> str:
    if name in _OWN_PROPERTIES:
        message = f"{name!r} is set by the sink itself: leave it out"
        raise ValueError(message)
    return name


PartitionText = Annotated[str, AfterValidator(_check_partition)]
CatalogProperty = Annotated[str, AfterValidator(_check_property)]


class WarehouseOptions(Section):
    """
    ``[sink.warehouse]``.

    ``catalog`` says what the sink's ``url`` is. ``location`` is where the files go, as
    a URI (``s3://bucket/lake``), instead of the sink's ``folder``; ``properties`` are
    further ones of the catalog and its files, by Iceberg's names (``s3.endpoint``,
    ``credential``), told to the writer and to the reader alike.

    ``partition`` lists the partition fields of routes, by the route's name.
    ``fill_added_columns`` has rows of a table read again when it gains a column: the
    stream does not tell what a default, or the old name, has put into old rows.
    ``unfit`` says what becomes of infinite times, years before the first or above 9999,
    and ``NaN`` in a numeric of so many digits; never of a key's.

    A table is compacted after ``compact_after_files`` more files, or after
    ``compact_after_s`` if it has grown at all. Old versions are readable for
    ``history_s``, at least ``history_versions`` of them; of its metadata files
    ``metadata_versions`` are kept. Files that no version knows go after
    ``orphans_after_s``. One statement merges at most ``statement_bytes`` of rows.
    As long as all keys of a table are known, at most ``known_keys``, new ones are
    appended without a search.
    """

    catalog: CatalogKind = CatalogKind.JDBC
    location: str = ""
    properties: dict[CatalogProperty, str] = Field(default_factory=dict)
    partition: dict[str, tuple[PartitionText, ...]] = Field(default_factory=dict)
    fill_added_columns: bool = True
    unfit: Unfit = Unfit.REJECT
    compact_after_files: int = Field(default=48, ge=2)
    compact_after_s: int = Field(default=3600, ge=1)
    history_s: int = Field(default=3600, ge=1)
    history_versions: int = Field(default=5, ge=1)
    metadata_versions: int = Field(default=20, ge=1)
    orphans_after_s: int = Field(default=3 * _DAY_S, ge=_DAY_S)
    statement_bytes: int = Field(default=64 * _MEBIBYTE, ge=1024)
    known_keys: int = Field(default=4_000_000, ge=0)
