"""
Released schema files: the lock that freezes them, and the findings of checks.

``released.lock`` is in the folder of the schemas and has one line per file: the SHA-256
of its content and its name. The content is compared as JSON, so a file may still be
reformatted. Freezing only adds lines.

Every check is pure and returns findings: the mistake in one sentence, and its remedy.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from towpath.schemas.compatibility import LEVEL, HistoryFinding, Level, check_history
from towpath.schemas.events import EventSchema, EventSchemas, make_schema
from towpath.schemas.schema_files import (
    EventSchemaError,
    SchemaFile,
    aliases_of,
    qualified,
    read_schema_text,
)

LOCK: Final = "released.lock"
AVRO: Final = "AVRO"
# A part of a name, between dots.
_NAME_PART: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVE: Final = frozenset(
    {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}
)
_RECORDS: Final = ("record", "error")
_NAMED: Final = (*_RECORDS, "enum", "fixed")
# The attribute that holds the type of the elements.
_CONTENT: Final = MappingProxyType({"array": "items", "map": "values"})
_HEADER: Final = "# Written by towpath schema freeze. A line is never changed.\n"


class SchemaFinding(NamedTuple):
    """
    One reason why the schemas cannot be released, or differ from released ones.

    Attributes:
        rule: The rule that is broken, in one word.
        name: The file, or subject and version.
        sentence: The mistake, as one sentence.
        cure: Its remedy, as one sentence.
    """

    rule: str
    name: str
    sentence: str
    cure: str


class HeldSchema(NamedTuple):
    """One version that the registry holds: its kind, and its whole text."""

    version: int
    kind: str
    text: str


def digest(file: SchemaFile) -> str:
    """Return the SHA-256 of a file's content, in one canonical form of JSON."""
    text = json.dumps(
        file.document, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def read_lock(folder: Path | Traversable) -> Mapping[str, str]:
    """
    Read the digests of the released files by name; none without a lock.

    Raises:
        EventSchemaError: The lock cannot be read, or a line is neither a comment nor a
            digest and a name.
    """
    place = folder / LOCK
    if not place.is_file():
        return MappingProxyType({})
    found = {}
    for line in read_schema_text(place).splitlines():
        if line.startswith("#") or not line.strip():
            continue
        words = line.split()
        if len(words) != 2:  # noqa: PLR2004 - digest and name
            message = f"{place}: the line {line!r} is not a digest and a name"
            raise EventSchemaError(message)
        found[words[1]] = words[0]
    return MappingProxyType(found)


def lock_text(released: Mapping[str, str]) -> str:
    """Return the text of the lock of released files."""
    lines = (f"{released[name]}  {name}\n" for name in sorted(released))
    return _HEADER + "".join(lines)


def edits(
    files: Sequence[SchemaFile], released: Mapping[str, str]
) -> list[SchemaFinding]:
    """Find released files that were edited or removed."""
    found = {file.name: digest(file) for file in files}
    edited = [n for n in released if n in found and found[n] != released[n]]
    removed = [n for n in released if n not in found]
    return [
        *(
            SchemaFinding(
                "edited",
                name,
                f"{name} was edited after its release.",
                "Restore the file, and put the change into a file with the next "
                "version.",
            )
            for name in edited
        ),
        *(
            SchemaFinding(
                "removed",
                name,
                f"{name} was released and is gone.",
                "Restore the file: its events are still in topics and tables.",
            )
            for name in removed
        ),
    ]


def unreleased(
    files: Sequence[SchemaFile], released: Mapping[str, str]
) -> list[SchemaFinding]:
    """Find files that are not frozen."""
    return [
        SchemaFinding(
            "unreleased",
            file.name,
            f"{file.name} is not frozen.",
            "Run towpath schema freeze, and commit the lock with the file.",
        )
        for file in files
        if file.name not in released
    ]


def numbering(files: Sequence[SchemaFile]) -> list[SchemaFinding]:
    """Find types whose versions are not numbered 1, 2, 3, each exactly once."""
    by_name: dict[str, list[SchemaFile]] = {}
    for file in files:
        by_name.setdefault(file.full_name, []).append(file)
    found = []
    for name, same in sorted(by_name.items()):
        numbers = sorted(file.version for file in same)
        expected = list(range(1, len(numbers) + 1))
        if numbers != expected:
            listed = ", ".join(map(str, numbers))
            found.append(
                SchemaFinding(
                    "version",
                    name,
                    f"The versions of {name} are {listed}, and the registry "
                    f"numbers them {', '.join(map(str, expected))}.",
                    "Number the versions of each type from 1, without gaps, one file "
                    "each.",
                )
            )
        found += _repeated(name, sorted(same, key=lambda file: file.version))
    return found


def _repeated(name: str, files: Sequence[SchemaFile]) -> list[SchemaFinding]:
    """Find versions with the content of an earlier one."""
    first: dict[str, int] = {}
    return [
        SchemaFinding(
            "repeated",
            file.name,
            f"{file.name} has the content of version {known} of {name}, and the "
            "registry would return that version.",
            "Remove the file, or change its schema.",
        )
        for file in files
        if (known := first.setdefault(digest(file), file.version)) != file.version
    ]


def misnamed(
    files: Sequence[SchemaFile], released: Mapping[str, str]
) -> list[SchemaFinding]:
    """
    Find unreleased files with names that Avro forbids, although fastavro reads them.

    The names of a released type are accepted in every file: its later versions repeat
    them, other types may contain it, and a type that replaces it has its name as an
    alias.
    """
    known: set[_Key] = set()
    for file in files:
        if file.name in released:
            known.update(*(name.keys for name in _names(file.definition)))
    return [
        SchemaFinding(
            "name",
            file.name,
            f"{file.name} has {what}, which Avro forbids.",
            "Write names of letters, digits and underscores that do not begin with a "
            "digit and are not primitive types, and aliases as a list.",
        )
        for file in files
        if file.name not in released
        for what in dict.fromkeys(
            name.words
            for name in _names(file.definition)
            if name.is_forbidden and known.isdisjoint(name.keys)
        )
    ]


# The full name of a type, and the description of a fault inside it; the description is
# empty for the name of the type itself.
_Key = tuple[str, str]


class _Name(NamedTuple):
    """
    A name, namespace or alias in a schema, or aliases that are not a list.

    Attributes:
        words: The name, as an error describes it.
        keys: The name counts as released if a released name shares one of these.
    """

    words: str
    is_forbidden: bool
    keys: frozenset[_Key]


def _names(
    schema: object, outer: str = "", owners: tuple[str, ...] = ()
) -> Iterator[_Name]:
    """
    Yield the names of the types and fields of a schema.

    Args:
        schema: Any schema.
        outer: The namespace around it.
        owners: The full names and aliases of the types around it.
    """
    if isinstance(schema, list):
        for each in schema:
            yield from _names(each, outer, owners)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    if "name" in schema and kind in _NAMED:
        full_names = _full_names(schema, outer)
        yield from _type_names(full_names[0], outer)
        outer = full_names[0].rpartition(".")[0]
        for alias in full_names[1:]:
            yield from _type_names(alias, outer)
        owners = (*owners, *full_names)
        yield from _alias_faults(schema, owners)
    # Avro ignores every other attribute.
    if kind in _RECORDS:
        yield from _field_names(schema.get("fields"), outer, owners)
    elif isinstance(kind, str):
        yield from _names(schema.get(_CONTENT.get(kind, "")), outer, owners)


def _full_names(schema: Mapping[str, Any], outer: str) -> tuple[str, ...]:
    """Return the full name of a type within a namespace, and those of its aliases."""
    own = schema.get("namespace")
    name = qualified(str(schema["name"]), outer if own is None else str(own))
    namespace = name.rpartition(".")[0]
    return name, *(qualified(alias, namespace) for alias in aliases_of(schema))


def _type_names(full_name: str, outer: str) -> Iterator[_Name]:
    """Yield the last part of a full name, and its namespace if not the outer one."""
    namespace, dot, name = full_name.rpartition(".")
    keys = frozenset({(full_name, "")})
    is_forbidden = name in _PRIMITIVE or not _NAME_PART.fullmatch(name)
    yield _Name(f"the name {name!r}", is_forbidden, keys)
    if dot and (not outer or namespace != outer):
        is_forbidden = not all(map(_NAME_PART.fullmatch, namespace.split(".")))
        yield _Name(f"the name {namespace or full_name!r}", is_forbidden, keys)


def _field_names(
    fields: object, outer: str, owners: tuple[str, ...]
) -> Iterator[_Name]:
    """Yield the names of the fields of a record, and those of their types."""
    for field in fields if isinstance(fields, list) else ():
        if not isinstance(field, dict):
            continue
        if "name" in field:
            for name in (str(field["name"]), *aliases_of(field)):
                # Only names of types have a namespace.
                if not _NAME_PART.fullmatch(name):
                    yield _fault(f"the name {name!r}", owners)
            yield from _alias_faults(field, owners)
        yield from _names(field.get("type"), outer, owners)


def _alias_faults(named: Mapping[str, Any], owners: Iterable[str]) -> Iterator[_Name]:
    if not isinstance(named.get("aliases", []), list):
        yield _fault("aliases that are not a list", owners)


def _fault(words: str, owners: Iterable[str]) -> _Name:
    """Return a fault that is allowed if a released type with an owner's name has it."""
    return _Name(words, is_forbidden=True, keys=frozenset((o, words) for o in owners))


def incompatible(
    schemas: Sequence[EventSchema], level: Level = LEVEL
) -> list[SchemaFinding]:
    """Find versions that are not compatible with earlier ones."""
    return list(map(_of_history, check_history(schemas, level)))


def _of_history(found: HistoryFinding) -> SchemaFinding:
    return SchemaFinding(
        "compatibility", found.newer.reference, found.sentence, found.cure
    )


def check_files(
    files: Sequence[SchemaFile], released: Mapping[str, str], level: Level = LEVEL
) -> list[SchemaFinding]:
    """
    Find every reason not to freeze the files.

    Raises:
        EventSchemaError: A schema cannot be used.
    """
    schemas = EventSchemas.from_files(files).history
    return [
        *edits(files, released),
        *numbering(files),
        *misnamed(files, released),
        *incompatible(schemas, level),
    ]


def registered(
    schemas: Iterable[EventSchema],
    held: Mapping[str, Sequence[HeldSchema]],
    level: Level = LEVEL,
) -> list[SchemaFinding]:
    """
    Compare event schemas with the versions that a registry holds for their subjects.

    Args:
        schemas: Every version of every event type.
        held: The registry's versions by subject; a subject may be unknown to it.
        level: The compatibility of new versions with those of the registry.
    """
    subjects: dict[str, dict[int, EventSchema]] = {}
    for schema in schemas:
        subjects.setdefault(schema.subject, {})[schema.version] = schema
    return [
        finding
        for subject, ours in sorted(subjects.items())
        for finding in _of_subject(ours, held.get(subject, ()), level)
    ]


def _of_subject(
    ours: Mapping[int, EventSchema], held: Sequence[HeldSchema], level: Level
) -> list[SchemaFinding]:
    """Compare the versions of one subject."""
    subject = next(iter(ours.values())).subject
    found: list[SchemaFinding] = []
    theirs: dict[int, EventSchema] = {}
    for one in held:
        name = f"{subject}:{one.version}"
        if one.kind != AVRO:
            found.append(_unlike(name, one.kind))
            continue
        try:
            theirs[one.version] = make_schema(one.text, one.version, name)
        except EventSchemaError:
            found.append(_unlike(name, "differs"))
    unreadable = {one.version for one in held} - theirs.keys()
    newest = max((one.version for one in held), default=0)
    unlike = {v: "missing" for v in theirs if v not in ours}
    skipped = [v for v in ours.keys() - theirs.keys() - unreadable if v < newest]
    unlike |= dict.fromkeys(skipped, "skipped")
    common = ours.keys() & theirs.keys()
    unlike |= {v: "differs" for v in common if _plain(ours[v]) != _plain(theirs[v])}
    found += [_unlike(f"{subject}:{v}", why) for v, why in sorted(unlike.items())]
    # ``check_files`` compares the versions that files and registry have in common.
    last = max(theirs, default=0)
    compared = [v for v in theirs if level.is_transitive or v == last]
    others = [theirs[version] for version in compared if version in unlike]
    new = [schema for version, schema in ours.items() if version > newest]
    found += [
        _of_history(one)
        for one in check_history([*others, *new], level)
        if one.newer in new and (one.writer in others or one.reader in others)
    ]
    return found


def _unlike(name: str, why: str) -> SchemaFinding:
    """
    Return the finding of a version that files and registry do not share.

    Args:
        name: Subject and version.
        why: A key of the table below, or the kind of a schema that is not supported.
    """
    sentence, cure = _UNLIKE.get(
        why,
        (
            f"The registry holds {{}} as {why}, which is not supported.",
            "Give the event another name: its subject is taken.",
        ),
    )
    return SchemaFinding("registry", name, sentence.format(name), cure)


_UNLIKE: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "differs": (
            "The registry holds a schema as {} that differs from the file's.",
            "Restore the schema that the registry holds, and add the next version.",
        ),
        "missing": (
            "The registry holds {}, which no file has.",
            "Add its file, and give your own change the next version.",
        ),
        "skipped": (
            "The registry does not hold {}, but holds a later version.",
            "Give the file the next version of the registry.",
        ),
    }
)


def _plain(schema: EventSchema) -> dict[str, object]:
    """Return a parsed schema without the entries that the parser adds."""
    return {k: v for k, v in schema.parsed.items() if not k.startswith("__")}
