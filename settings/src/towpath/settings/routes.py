"""
``[[sink.route]]``: from a topic to a place in a sink, with changes to the rows.

This module checks single routes; ``route_checks`` checks them together with the rest of
the file. A sink checks its routes against the tables' columns when it starts.

A *key template* builds a row's id in a cache or an index from its key columns.
``orders:{tenant}:{id}`` has three parts, joined by colons. A part is plain text, or
contains one column. Sinks escape colons in values, so two keys never have the same id,
and the key can be read back from the id. Two columns in one part would be ambiguous:
``{a}-{b}`` produces ``1-2-3`` from the values 1-2 and 3, and also from 1 and 2-3.
"""

import enum
import re
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from towpath.settings.section import Section
from towpath.settings.syntax import FieldPath, parsed_by
from towpath.settings.transforms import Constant, Transform

_COLUMN: Final = re.compile(r"\{([^{}]*)\}")
_SEPARATOR: Final = ":"


class KeyPart(NamedTuple):
    """The text between two colons, with at most one column."""

    before: str
    column: str = ""
    after: str = ""


def parse_template(text: str) -> tuple[KeyPart, ...]:
    """
    Parse a template.

    Raises:
        ValueError: The text is malformed, or two keys could have the same id.
    """
    # Plain text at even indices, columns at odd ones.
    pieces = _COLUMN.split(text)
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        _refuse(f"{text!r} has a brace outside a column: write it as 'order-{{id}}'")
    columns = pieces[1::2]
    if not columns or not all(columns):
        _refuse(f"{text!r} names no column of the key: write it as 'order-{{id}}'")
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        _refuse(f"{text!r} names {twice} twice")
    parts = [KeyPart(piece) for piece in pieces[0].split(_SEPARATOR)]
    for column, piece in zip(columns, pieces[2::2], strict=True):
        if parts[-1].column:
            _refuse(
                f"{text!r}: two keys could have the same id: put a colon between "
                f"{{{parts[-1].column}}} and {{{column}}}"
            )
        after, *rest = piece.split(_SEPARATOR)
        parts[-1] = KeyPart(parts[-1].before, column, after)
        parts += [KeyPart(one) for one in rest]
    if KeyPart("") in parts:
        _refuse(f"{text!r} has an empty part between colons")
    return tuple(parts)


def columns_of(template: str) -> tuple[str, ...]:
    """Return the columns of a template, in order."""
    return tuple(part.column for part in parse_template(template) if part.column)


def _refuse(reason: str) -> None:
    raise ValueError(reason)


class RouteKind(enum.StrEnum):
    """
    The contents of a route's topic.

    ``table``: row changes. ``event_log``: events, all of which are kept.
    ``aggregate``: events with their aggregate's state; the newest state is the
    aggregate's document.
    """

    TABLE = "table"
    EVENT_LOG = "event_log"
    AGGREGATE = "aggregate"


KeyTemplate = Annotated[str, parsed_by(parse_template, optional=True)]


class Route(Section):
    """
    ``[[sink.route]]``: from a topic to a place in the sink.

    ``topic`` is a topic's name; an event log's may end in ``*``. ``name`` is the
    cache's table, the search index, or the ``schema.table`` of Postgres or the
    warehouse.

    For tables, values are changed first (``transforms``, in order). Then columns are
    removed (``include`` names those to keep, ``exclude`` those to remove) and renamed
    (``rename``, old to new). ``constants`` are added columns with the same value in
    every row. ``key`` is the template of the row's id; without it the id is the key's
    values. With ``on_truncate = "keep"`` a TRUNCATE of the table deletes nothing.

    For aggregates, events of ``state_types`` carry the state (all do if none are
    named), events of ``delete_types`` delete the document, and others are skipped.

    ``fields`` maps paths of a document, or columns, to the Postgres types that an index
    treats them as: ``total = "numeric"``, ``"lines[].product_id" = "uuid"``.
    """

    topic: str
    name: str
    kind: RouteKind = RouteKind.TABLE
    transforms: tuple[Transform, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)
    constants: dict[str, Constant] = Field(default_factory=dict)
    key: KeyTemplate = ""
    on_truncate: Literal["delete", "keep"] = "delete"
    state_types: tuple[str, ...] = ()
    delete_types: tuple[str, ...] = ()
    fields: dict[FieldPath, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind is not RouteKind.AGGREGATE:
            if self.state_types or self.delete_types:
                message = (
                    "state_types and delete_types need a route of the kind aggregate"
                )
                raise ValueError(message)
            return self
        if self.topic.endswith("*"):
            message = "topic: aggregates of two types may share an id: name one topic"
            raise ValueError(message)
        both = sorted(set(self.state_types) & set(self.delete_types))
        if both:
            message = f"delete_types: {both[0]} is one of state_types"
            raise ValueError(message)
        if not self.state_types and not self.fields:
            message = (
                "state_types: name the events that carry the state, whose schemas give "
                "the document its fields; or list fields"
            )
            raise ValueError(message)
        return self
