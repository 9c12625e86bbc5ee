"""
``[[sink.route]]``: from a topic to a place in a sink, with changes to the rows.

A single route is checked here, and routes together with the rest of the file in
``route_checks``. A sink checks its routes against the tables' columns when it starts.
"""

import enum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from towpath.settings.key_template import parse_template
from towpath.settings.section import Section
from towpath.settings.syntax import FieldPath, parsed_by
from towpath.settings.transforms import Constant, Transform


class RouteKind(enum.StrEnum):
    """
    The contents of a route's topic.

    ``table``: row changes. ``event_log``: events, all of which are kept.
    ``aggregate``: events with their aggregate's state, of which the newest is the
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
    cache's table, the search index or the warehouse's ``schema.table``.

    For tables, values are changed first (``transforms``, in order). Then columns are
    removed (``include`` names those that stay, ``exclude`` those that go) and renamed
    (``rename``, old to new). ``constants`` are added columns with the same value in
    every row. ``key`` is the template of the row's
    id; without it the id is the key's values. With ``on_truncate = "keep"`` a TRUNCATE
    of the table deletes nothing.

    For aggregates, events of ``state_types`` carry the state (none named: all do),
    events of ``delete_types`` delete the document, and others are skipped.

    ``fields`` maps paths of a document, or columns, to the Postgres types by which an
    index searches them: ``total = "numeric"``, ``"lines[].product_id" = "uuid"``.
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
