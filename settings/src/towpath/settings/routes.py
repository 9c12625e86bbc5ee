"""
``[[sink.route]]``: from a topic to a place in a sink, and what rows become on the way.

What a route says of itself alone is checked here, or with the rest of the file in
``route_checks``; against the table that its topic carries, when the sink starts.
"""

import enum
from math import isfinite
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from towpath.settings.key_template import parse_template
from towpath.settings.section import Section
from towpath.settings.syntax import FieldPath

# What a column of eight bytes holds.
_WHOLE_NUMBERS: Final = range(-(2**63), 2**63)


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


def _check_constant(value: object) -> object:
    is_fit = isinstance(value, bool | str) or (
        value in _WHOLE_NUMBERS
        if isinstance(value, int)
        else isinstance(value, float) and isfinite(value)
    )
    if not is_fit:
        message = "must be text, true, false, or a number that a column holds"
        raise ValueError(message)
    return value


def _check_template(text: str) -> str:
    if text:
        parse_template(text)
    return text


# A text, a whole number, a number, true or false: of the type that the file writes.
Constant = Annotated[Any, BeforeValidator(_check_constant)]
KeyTemplate = Annotated[str, AfterValidator(_check_template)]


class Route(Section):
    """
    ``[[sink.route]]``: from a topic to a place in the sink.

    ``topic`` is a topic's name; an event log's may end in ``*``. ``name`` is the
    cache's table, the search index or the warehouse's ``schema.table``.

    Rows of a table lose columns (``include`` names those that stay, ``exclude`` those
    that go), then get their names (``rename``, old to new), then ``constants``, columns
    that are the same in every row. ``key`` is the template of the row's id; without it
    the id is the key's values. With ``on_truncate = "keep"`` a TRUNCATE of the table
    takes nothing away.

    Of aggregates: events of ``state_types`` carry the state (none named: all do), those
    of ``delete_types`` delete the document, others are left out.

    ``fields`` says how an index searches parts of a document, or columns, by the names
    of Postgres's types: ``total = "numeric"``, ``"lines[].product_id" = "uuid"``.
    """

    topic: str
    name: str
    kind: RouteKind = RouteKind.TABLE
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
                    "state_types and delete_types are of a route of the kind aggregate"
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
