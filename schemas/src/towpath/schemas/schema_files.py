"""
The schema files of a folder, and the types that several of them share.

A file is named ``<name>.v<n>.avsc`` and has one named Avro type. A record that no other
file references is an event; other records, enums and fixed types may be shared. The
attribute ``references`` of an event's file names the version of each shared type that
it uses, because a released event must not change when that type gets another version::

    {"type": "record", "name": "PostPublished", "namespace": "blog",
     "references": {"blog.Author": 1},
     "fields": [{"name": "author", "type": "Author"}]}

``embedded`` puts the shared types into the event, which is then self-contained: the
registry, payload checks and sinks need no other file.
"""

import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from towpath.schemas.failure import UsageError

SUFFIX: Final = ".avsc"
REFERENCES: Final = "references"
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+\.v(?P<version>[1-9][0-9]*)\.avsc\Z")
# Files of other schema languages, by the end of their names.
_OTHER_LANGUAGES: Final = {
    ".proto": "Protobuf",
    ".jsonschema": "JSON Schema",
    ".schema.json": "JSON Schema",
    ".avdl": "Avro IDL",
    ".avpr": "Avro's protocols",
}
_NUMBERED_JSON: Final = re.compile(r"\.v[0-9]+\.json\Z")


class EventSchemaError(UsageError):
    """An event schema cannot be used."""

    remedy = (
        "Correct the schema file: it must contain one Avro type and be named "
        "<name>.v<n>.avsc."
    )


class SchemaFile(NamedTuple):
    """
    One file: a version of a named type.

    Attributes:
        name: The file's name.
        version: Counts from 1.
        text: The content.
        document: The content, parsed as JSON.
    """

    name: str
    version: int
    text: str
    document: Mapping[str, Any]

    @property
    def full_name(self) -> str:
        """The full name of the type; empty if it has none."""
        name = str(self.document.get("name", ""))
        return qualified(name, self.document.get("namespace"))

    @property
    def references(self) -> Mapping[str, int]:
        """The shared types that the type uses, each with its version."""
        found: Any = self.document.get(REFERENCES, {})
        is_mapping = isinstance(found, dict)
        if not is_mapping or not all(isinstance(v, int) for v in found.values()):
            message = f'{self.name}: {REFERENCES} must be {{"<full name>": <version>}}'
            raise EventSchemaError(message)
        return MappingProxyType(found)

    @property
    def definition(self) -> dict[str, Any]:
        """The type itself, without its references."""
        return {k: v for k, v in self.document.items() if k != REFERENCES}


def qualified(name: str, namespace: str | None) -> str:
    """Return the full name of a type; a name with a dot is one already."""
    return f"{namespace}.{name}" if namespace and "." not in name else name


def aliases_of(named: Mapping[str, Any]) -> list[str]:
    """Return the aliases of a type or a field; none if they are not a list."""
    aliases = named.get("aliases")
    return list(map(str, aliases)) if isinstance(aliases, list) else []


def read_files(folder: Path | Traversable) -> tuple[SchemaFile, ...]:
    """
    Read the schema files of a folder, in the order of their names.

    Raises:
        EventSchemaError: The folder is missing, cannot be read or has no schema, or one
            of its files is not an Avro schema.
    """
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    # A ValueError means that the path is in an archive without such a folder.
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        message = f"{folder}: there is no such folder of event schemas"
        raise EventSchemaError(message) from error
    except OSError as error:
        message = f"{folder}: the folder cannot be read: {error.strerror}"
        raise EventSchemaError(message) from error
    for entry in entries:
        refuse_other_languages(entry.name)
    files = [entry for entry in entries if entry.name.endswith(SUFFIX)]
    if not files:
        message = f"{folder}: the folder has no file <name>.v<n>.avsc"
        raise EventSchemaError(message)
    return tuple(parse_file(f.name, read_schema_text(f)) for f in files)


def read_schema_text(file: Path | Traversable) -> str:
    """
    Read a file of a schema folder.

    Raises:
        EventSchemaError: The file cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{file.name}: the file cannot be read: {error}"
        raise EventSchemaError(message) from error


def refuse_other_languages(name: str) -> None:
    """
    Refuse a file whose name belongs to another schema language.

    Raises:
        EventSchemaError: The name belongs to another schema language.
    """
    ends = (end for end in _OTHER_LANGUAGES if name.endswith(end))
    language = _OTHER_LANGUAGES.get(next(ends, ""))
    if language is None and _NUMBERED_JSON.search(name):
        language = "JSON Schema"
    if language is not None:
        message = f"{name}: {language} is not supported: event schemas are Avro"
        raise EventSchemaError(message)


def parse_file(name: str, text: str) -> SchemaFile:
    """
    Read one file from its name and its text.

    Raises:
        EventSchemaError: The name has no version, or the text is not a JSON object or
            is JSON Schema.
    """
    match = _FILE_NAME.match(name)
    if match is None:
        message = f"{name}: an event schema must be named <name>.v<n>.avsc"
        raise EventSchemaError(message)
    try:
        document = json.loads(text)
        # An escape may be half of a surrogate pair, which UTF-8 cannot encode.
        json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        message = f"{name}: the schema cannot be read: {error}"
        raise EventSchemaError(message) from error
    if not isinstance(document, dict):
        message = f"{name}: an event schema must be a JSON object"
        raise EventSchemaError(message)
    if "$schema" in document or document.get("type") == "object":
        message = f"{name}: JSON Schema is not supported: event schemas are Avro"
        raise EventSchemaError(message)
    return SchemaFile(name, int(match["version"]), text, document)


def embedded(files: Iterable[SchemaFile]) -> list[SchemaFile]:
    """
    Return the files of events, with the shared types that they reference embedded.

    Raises:
        EventSchemaError: A reference leads to no file, to itself, or to two versions,
            or a type cannot be embedded.
    """
    listed = list(files)
    known = {(file.full_name, file.version): file for file in listed}
    shared = {name for file in listed for name in file.references}
    # Shared types are completed too, so that their own broken references are found.
    whole = [_whole(file, known) if file.references else file for file in listed]
    return [file for file in whole if file.full_name not in shared]


_Known = Mapping[tuple[str, int], SchemaFile]


def _whole(file: SchemaFile, known: _Known) -> SchemaFile:
    """Return a file with its shared types embedded, and its text rewritten to match."""
    shared: dict[str, SchemaFile] = {}
    _collect(file, known, (), shared)
    parts = [part.definition for part in shared.values()]
    try:
        document = embed(file.name, file.definition, parts)
        return file._replace(text=json.dumps(document), document=document)
    except RecursionError as error:
        message = f"{file.name}: the schema cannot be read: {error}"
        raise EventSchemaError(message) from error


def _collect(
    file: SchemaFile, known: _Known, path: tuple[str, ...], found: dict[str, SchemaFile]
) -> None:
    """Add the types that a file needs, each after its own dependencies."""
    for name, version in file.references.items():
        if name in (*path, file.full_name):
            message = f"{file.name}: the reference to {name} leads back to itself"
            raise EventSchemaError(message)
        part = known.get((name, version))
        if part is None:
            message = f"{file.name}: no file has version {version} of {name}"
            raise EventSchemaError(message)
        if found.get(name, part).version != version:
            message = f"{file.name}: references lead to two versions of {name}"
            raise EventSchemaError(message)
        _collect(part, known, (*path, file.full_name), found)
        found[name] = part


def embed(
    place: str, definition: Mapping[str, Any], shared: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """
    Embed shared types into a type, each at its first use.

    Args:
        place: The location that errors name.
        definition: The type.
        shared: The types that it uses, each after its own dependencies.

    Raises:
        EventSchemaError: A type is unknown, a definition is not a schema, or a shared
            type has no name of its own.
    """
    names: dict[str, Any] = {}
    parts: list[Any]
    try:
        parts = [
            fastavro.parse_schema(dict(part), named_schemas=names, _write_hint=False)
            for part in shared
        ]
        whole = fastavro.parse_schema(
            dict(definition), named_schemas=names, _write_hint=False
        )
    except UnknownType as error:
        message = (
            f"{place}: the schema does not define type {error}: name it in "
            f"{REFERENCES} with its version, if it has a file of its own"
        )
        raise EventSchemaError(message) from error
    except (ValueError, KeyError, TypeError, SchemaParseException) as error:
        message = f"{place}: the schema cannot be read: {error}"
        raise EventSchemaError(message) from error
    if not all(isinstance(part, dict) and "name" in part for part in parts):
        message = f"{place}: only records, enums and fixed types can be shared"
        raise EventSchemaError(message)
    completed: dict[str, Any] = _embed(whole, {part["name"]: part for part in parts})
    return completed


def _embed(schema: Any, missing: dict[str, Any]) -> Any:  # noqa: ANN401 - any Avro
    """Replace the first use of each missing type with its definition."""
    if isinstance(schema, list):
        return [_embed(branch, missing) for branch in schema]
    if isinstance(schema, str):
        part = missing.pop(schema, None)
        return schema if part is None else _embed(part, missing)
    kind = schema["type"]
    below = {"array": "items", "map": "values"}.get(kind)
    if below is not None:
        return {**schema, below: _embed(schema[below], missing)}
    if kind == "record":
        fields = [{**f, "type": _embed(f["type"], missing)} for f in schema["fields"]]
        return {**schema, "fields": fields}
    return schema
