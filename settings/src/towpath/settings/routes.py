"""``[[sink.route]]``: from a topic to a place in a sink."""

import enum
from typing import Self

from pydantic import Field, model_validator

from towpath.settings.section import Section
from towpath.settings.syntax import FieldPath


class RouteKind(enum.StrEnum):
    """
    What a route's topic carries.

    ``table``: row changes. ``event_log``: events, of which each is kept.
    ``aggregate``: events that carry their aggregate's state, of which the newest is
    the aggregate's document.
    """

    TABLE = "table"
    EVENT_LOG = "event_log"
    AGGREGATE = "aggregate"


class Route(Section):
    """
    ``[[sink.route]]``: from a topic to a place in the sink.

    ``topic`` is a topic's name; an event log's may end in ``*``. ``name`` is the
    cache's table, the search index or the warehouse's ``schema.table``.

    The rest is of aggregates. Events of ``state_types`` carry the state (none named:
    all do), those of ``delete_types`` delete the document, others are left out.
    ``fields`` says how parts of the document are searched, by the names of Postgres's
    types: ``total = "numeric"``, ``"lines[].product_id" = "uuid"``.
    """

    topic: str
    name: str
    kind: RouteKind = RouteKind.TABLE
    state_types: tuple[str, ...] = ()
    delete_types: tuple[str, ...] = ()
    fields: dict[FieldPath, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind is not RouteKind.AGGREGATE:
            if self.state_types or self.delete_types or self.fields:
                message = (
                    "state_types, delete_types and fields are of a route of the kind "
                    "aggregate"
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
