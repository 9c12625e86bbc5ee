"""
Compatibility of a new event schema version with all earlier versions.

The rules are those of Avro's schema resolution, with the new version as the reader. A
field may be removed, or added with a default; a type may only widen; an enum may lose a
symbol only if it has a default; a union may only gain branches. Avro's resolution
ignores logical types; here a value may not change from one to another, because a reader
would mistake milliseconds for microseconds, or misread the scale of a decimal.

``check_history`` compares each version with earlier versions as the registry's level
requires: by default with all of them, not only the last (``BACKWARD_TRANSITIVE``). At a
level that looks forward, the earlier version is the reader. The comparison is pure and
returns findings.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.schemas.events import EventSchema
from towpath.schemas.schema_files import aliases_of


class Level(enum.StrEnum):
    """The registry's levels of compatibility, under its own names."""

    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"
    NONE = "NONE"

    @property
    def is_transitive(self) -> bool:
        """Whether every earlier version counts, not only the last."""
        return self.endswith("_TRANSITIVE")

    @property
    def looks_backward(self) -> bool:
        """Whether a new version must read what earlier ones wrote."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def looks_forward(self) -> bool:
        """Whether earlier versions must read what a new one writes."""
        return self.startswith(("FORWARD", "FULL"))


LEVEL: Final = Level.BACKWARD_TRANSITIVE

# For each primitive of the writer, the primitives that a reader may have instead.
_WIDENS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "int": frozenset({"long", "float", "double"}),
        "long": frozenset({"float", "double"}),
        "float": frozenset({"double"}),
        "string": frozenset({"bytes"}),
        "bytes": frozenset({"string"}),
    }
)


class Rule(enum.Enum):
    """
    A rule of Avro's resolution, with its remedy in the new version.

    The first remedy applies if the new version is the reader, the second if it is the
    writer.
    """

    TYPE = (
        "Keep the type, and add another field with a default.",
        "Keep the type, and add another field.",
    )
    DEFAULT = (
        "Give the field a default.",
        "Keep the field: readers of the earlier version need it.",
    )
    NAME = (
        "Keep the name, or list the former name in aliases.",
        "Keep the name: readers of the earlier version know no other.",
    )
    SYMBOLS = (
        "Keep the symbols, or give the enum a default.",
        "Add no symbol to an enum that had no default.",
    )
    UNION = (
        "Keep a branch of the union that reads the former type.",
        "Add no branch that the earlier version does not have.",
    )


class Finding(NamedTuple):
    """One reason why the reader's schema cannot read the writer's data."""

    path: str
    reason: str
    rule: Rule


class HistoryFinding(NamedTuple):
    """
    One reason why two versions of a subject are not compatible.

    Attributes:
        writer: The version whose data cannot be read.
        reader: The version that cannot read it.
    """

    writer: EventSchema
    reader: EventSchema
    found: Finding

    @property
    def newer(self) -> EventSchema:
        """The newer of the two, which can still be changed."""
        return max(self.writer, self.reader, key=lambda schema: schema.version)

    @property
    def sentence(self) -> str:
        """One sentence: the data that cannot be read, and the reason."""
        place = f"the field {self.found.path}" if self.found.path else "the record"
        writer, reader = self.writer, self.reader
        return (
            f"{reader.reference} cannot read what {writer.reference} wrote: "
            f"from version {writer.version} to {reader.version}, "
            f"{place} {self.found.reason}."
        )

    @property
    def cure(self) -> str:
        """The change to the newer version that makes the two compatible."""
        reads, is_read = self.found.rule.value
        return reads if self.newer is self.reader else is_read


class _Side(NamedTuple):
    """A schema, and all named types of its document."""

    schema: Any
    names: Mapping[str, Any]

    def to(self, schema: object) -> "_Side":
        return _Side(schema, self.names)

    def resolved(self) -> "_Side":
        """Follow names to their definitions; a bare primitive becomes its name."""
        schema = self.schema
        if isinstance(schema, str):
            schema = self.names.get(schema, schema)
        elif isinstance(schema, dict) and schema["type"] not in _COMPLEX:
            schema = self.names.get(schema["type"], schema["type"])
        return self.to(schema)

    @property
    def kind(self) -> str:
        if isinstance(self.schema, list):
            return "union"
        return self.schema if isinstance(self.schema, str) else self.schema["type"]


_COMPLEX: Final = frozenset({"record", "enum", "array", "map", "fixed"})


def check_history(
    schemas: Sequence[EventSchema], level: Level = LEVEL
) -> tuple[HistoryFinding, ...]:
    """Compare each version with earlier ones of its subject, as the level requires."""
    return tuple(
        HistoryFinding(writer, reader, found)
        for new in schemas
        for old in _earlier(new, schemas, level)
        for writer, reader in _directions(old, new, level)
        for found in compare(writer.parsed, reader.parsed)
    )


def _earlier(
    new: EventSchema, schemas: Sequence[EventSchema], level: Level
) -> list[EventSchema]:
    """Return the versions that a new one is compared with, oldest first."""
    earlier = sorted(
        (s for s in schemas if s.subject == new.subject and s.version < new.version),
        key=lambda schema: schema.version,
    )
    return earlier if level.is_transitive else earlier[-1:]


def _directions(
    old: EventSchema, new: EventSchema, level: Level
) -> Iterator[tuple[EventSchema, EventSchema]]:
    """Yield the pairs of writer and reader of two versions."""
    if level.looks_backward:
        yield old, new
    if level.looks_forward:
        yield new, old


def compare(
    old: Mapping[str, Any] | object, new: Mapping[str, Any] | object
) -> tuple[Finding, ...]:
    """
    Return the reasons why ``new`` cannot read data of ``old``; empty if it can.

    Args:
        old: The writer's schema, parsed by fastavro.
        new: The reader's schema, parsed by fastavro.
    """
    plain = [dict(s) if isinstance(s, Mapping) else s for s in (old, new)]
    writer, reader = (_Side(s, dict(_named_types(s))) for s in plain)
    return tuple(_compare(writer, reader, "", frozenset()))


def _named_types(schema: object) -> Iterator[tuple[str, Any]]:
    """Yield the named types that a schema defines at any depth, with their names."""
    if isinstance(schema, list):
        inner = schema
    elif isinstance(schema, Mapping):
        if "name" in schema:
            yield schema["name"], schema
        inner = [schema[k] for k in ("items", "values") if k in schema]
        inner += [field["type"] for field in schema.get("fields", ())]
    else:
        return
    for each in inner:
        yield from _named_types(each)


_Pairs = frozenset[tuple[str, str]]


def _compare(old: _Side, new: _Side, path: str, seen: _Pairs) -> Iterator[Finding]:
    meanings = _logical_type(old), _logical_type(new)
    if None not in meanings and meanings[0] != meanings[1]:
        yield Finding(path, f"was {meanings[0]} and became {meanings[1]}", Rule.TYPE)
        return
    given, old, new = old, old.resolved(), new.resolved()
    if old.kind == "union":
        for branch in old.schema:
            yield from _compare(old.to(branch), new, path, seen)
    elif new.kind == "union":
        yield from _into_union(given, new, path, seen)
    elif old.kind != new.kind:
        if new.kind not in _WIDENS.get(old.kind, ()):
            yield Finding(path, f"was {old.kind} and became {new.kind}", Rule.TYPE)
    elif old.kind in _COMPARE:
        yield from _COMPARE[old.kind](old, new, path, seen)


def _logical_type(side: _Side) -> str | None:
    """Return a value's logical type with its precision and scale; None without one."""
    schema = side.schema
    if isinstance(schema, str):
        schema = side.names.get(schema)
    if not isinstance(schema, Mapping) or "logicalType" not in schema:
        return None
    digits = [str(schema[k]) for k in ("precision", "scale") if k in schema]
    name = str(schema["logicalType"])
    return f"{name}({', '.join(digits)})" if digits else name


def _into_union(old: _Side, new: _Side, path: str, seen: _Pairs) -> Iterator[Finding]:
    for branch in new.schema:
        if not list(_compare(old, new.to(branch), path, seen)):
            return
    kind = old.resolved().kind
    yield Finding(path, f"was {kind}, which no branch of the union reads", Rule.UNION)


def _renamed(old: _Side, new: _Side) -> bool:
    """Return whether a named type was renamed; its namespace may change (Avro 1.12)."""
    names = {new.schema["name"], *aliases_of(new.schema)}
    bare = {name.rpartition(".")[2] for name in names}
    return old.schema["name"].rpartition(".")[2] not in bare


def _records(old: _Side, new: _Side, path: str, seen: _Pairs) -> Iterator[Finding]:
    pair = (old.schema["name"], new.schema["name"])
    if pair in seen:
        return
    if _renamed(old, new):
        yield Finding(path, f"was the record {pair[0]} and became {pair[1]}", Rule.NAME)
        return
    written = {f["name"]: f for f in old.schema["fields"]}
    for field in new.schema["fields"]:
        place = f"{path}.{field['name']}".removeprefix(".")
        names = (field["name"], *aliases_of(field))
        writer = next((written[name] for name in names if name in written), None)
        if writer is not None:
            sides = old.to(writer["type"]), new.to(field["type"])
            yield from _compare(*sides, place, seen | {pair})
        elif "default" not in field:
            yield Finding(place, "was added without a default", Rule.DEFAULT)


def _enums(old: _Side, new: _Side, path: str, _seen: _Pairs) -> Iterator[Finding]:
    if _renamed(old, new):
        name = old.schema["name"]
        yield Finding(path, f"was the enum {name} and was renamed", Rule.NAME)
    gone = [s for s in old.schema["symbols"] if s not in new.schema["symbols"]]
    if gone and "default" not in new.schema:
        yield Finding(path, f"lost {', '.join(gone)} and has no default", Rule.SYMBOLS)


def _arrays(old: _Side, new: _Side, path: str, seen: _Pairs) -> Iterator[Finding]:
    sides = old.to(old.schema["items"]), new.to(new.schema["items"])
    yield from _compare(*sides, f"{path}[]", seen)


def _maps(old: _Side, new: _Side, path: str, seen: _Pairs) -> Iterator[Finding]:
    sides = old.to(old.schema["values"]), new.to(new.schema["values"])
    yield from _compare(*sides, f"{path}{{}}", seen)


def _fixeds(old: _Side, new: _Side, path: str, _seen: _Pairs) -> Iterator[Finding]:
    if _renamed(old, new):
        yield Finding(path, "was a fixed type of a different name", Rule.NAME)
    if old.schema["size"] != new.schema["size"]:
        yield Finding(path, "was a fixed type of a different size", Rule.TYPE)


_COMPARE: Final = MappingProxyType(
    {
        "record": _records,
        "enum": _enums,
        "array": _arrays,
        "map": _maps,
        "fixed": _fixeds,
    }
)
