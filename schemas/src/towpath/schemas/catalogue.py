"""
The catalogue of an application's events, as a page of Markdown.

The page has a section per event type: its aggregate and topic, its fields with those of
nested records, and the changes in each version. The same schemas give the same page.
This module does no I/O.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from towpath.schemas.events import EventSchema, EventSchemas

_INTRO: Final = """# {title}

This page is written by `towpath schema catalogue`. Versions are never edited once
released; every version reads what earlier ones wrote.

| Event | Aggregate | Topic | Versions |
|---|---|---|---|
"""


class EventPlace(NamedTuple):
    """
    The aggregate of an event type, and the topic of its events.

    The topic is empty if it depends on the row of each event.
    """

    aggregate_type: str
    topic: str


class _FieldRow(NamedTuple):
    """A field of an event, by its path."""

    path: str
    type: str
    default: str
    doc: str


def catalogue(
    schemas: EventSchemas,
    places: Mapping[str, EventPlace],
    title: str = "Events",
) -> str:
    """
    Return the catalogue's page.

    Args:
        schemas: The schemas; the newest version of each event is described.
        places: The aggregate and topic of each event type for which they are known.
        title: The heading of the page.
    """
    names = sorted(schemas.newest)
    rows = "".join(_overview(schemas, name, places.get(name)) for name in names)
    sections = (_section(schemas, name, places.get(name)) for name in names)
    return _INTRO.format(title=title) + rows + "".join(sections)


def _overview(schemas: EventSchemas, name: str, place: EventPlace | None) -> str:
    versions = ", ".join(str(one.version) for one in _versions(schemas, name))
    words = place or ("", "")
    aggregate, topic = (f"`{word}`" if word else "" for word in words)
    return f"| [{name}](#{name.lower()}) | {aggregate} | {topic} | {versions} |\n"


def _versions(schemas: EventSchemas, name: str) -> list[EventSchema]:
    return [one for one in schemas.history if one.name == name]


def _section(schemas: EventSchemas, name: str, place: EventPlace | None) -> str:
    versions = _versions(schemas, name)
    newest = versions[-1]
    lines = [f"\n## {name}\n"]
    if doc := newest.parsed.get("doc"):
        lines.append(f"{_cell(doc)}\n")
    where = f"Subject `{newest.subject}`, version {newest.version}"
    if place is not None:
        topic = f", topic `{place.topic}`" if place.topic else ""
        where += f"; aggregate `{place.aggregate_type}`{topic}"
    heads = ["| Field | Type | Default | Meaning |", "|---|---|---|---|"]
    lines += [f"{where}.\n", *heads]
    lines += [
        f"| `{row.path}` | {row.type} | {row.default} | {row.doc} |"
        for row in _fields(newest)
    ]
    pairs = itertools.pairwise(versions)
    changes = [f"- Version {new.version}: {_changes(old, new)}." for old, new in pairs]
    if changes:
        lines += ["", *changes]
    return "\n".join(lines) + "\n"


def _changes(old: EventSchema, new: EventSchema) -> str:
    """Return the changed fields of a version in words."""
    before = {row.path: row for row in _fields(old)}
    after = {row.path: row for row in _fields(new)}
    words = {
        "adds": [path for path in after if path not in before],
        "removes": [path for path in before if path not in after],
        "changes the type of": [
            path
            for path, row in after.items()
            if before.get(path, row).type != row.type
        ],
    }
    sentences = [f"{verb} {_listed(paths)}" for verb, paths in words.items() if paths]
    return "; ".join(sentences) or "changes descriptions or defaults"


def _listed(paths: list[str]) -> str:
    return ", ".join(f"`{path}`" for path in paths)


def _fields(schema: EventSchema) -> list[_FieldRow]:
    return list(_record_fields(schema.parsed, ""))


def _record_fields(record: Mapping[str, Any], above: str) -> Iterator[_FieldRow]:
    """Yield the fields of a record, each followed by those of its nested records."""
    for field in record["fields"]:
        path = f"{above}{field['name']}"
        yield _FieldRow(
            path,
            _type(field["type"]),
            _default(field),
            _cell(field.get("doc", "")),
        )
        for step, nested in _records_in(field["type"]):
            yield from _record_fields(nested, f"{path}{step}.")


def _records_in(
    schema: Any,  # noqa: ANN401 - any Avro
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the records that a type defines, each with the step that leads there."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _records_in(branch)
    elif isinstance(schema, dict):
        kind = schema["type"]
        if kind == "record":
            yield "", schema
        for inner, step in (("items", "[]"), ("values", "{}")):
            if inner in schema:
                found = _records_in(schema[inner])
                yield from ((step + more, record) for more, record in found)


def _type(schema: Any) -> str:  # noqa: ANN401 - any Avro
    """Return a type in readable form; a union lists null last."""
    if isinstance(schema, list):
        branches = sorted(schema, key=lambda branch: branch == "null")
        return " or ".join(_type(branch) for branch in branches)
    if isinstance(schema, str):
        return schema.rpartition(".")[2]
    kind = schema["type"]
    if kind == "enum":
        return f"one of {', '.join(schema['symbols'])}"
    if kind == "record":
        return str(schema["name"]).rpartition(".")[2]
    if kind in {"array", "map"}:
        inner = schema["items"] if kind == "array" else schema["values"]
        return f"{kind} of {_type(inner)}"
    logical = schema.get("logicalType")
    return f"{logical}{_digits(schema)} ({kind})" if logical else str(kind)


def _digits(schema: Mapping[str, Any]) -> str:
    digits = [str(schema[key]) for key in ("precision", "scale") if key in schema]
    return f"({', '.join(digits)})" if digits else ""


def _default(field: Mapping[str, Any]) -> str:
    if "default" not in field:
        return ""
    value = field["default"]
    is_text = isinstance(value, str) and value
    return f"`{_cell(value if is_text else json.dumps(value, ensure_ascii=False))}`"


def _cell(text: str) -> str:
    """Return text as one line that fits into a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")
