"""An application's own event classes, and their schemas."""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

import pydantic
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from support.outbox_statements import Statements
from towpath.outbox import (
    NO_SCHEMA,
    Events,
    EventSchemaError,
    InvalidEventError,
    Outbox,
    OutboxEvent,
    UnboundEventError,
    configure,
    outbox,
    record,
    record_all,
)
from towpath.outbox.outbox import outbox_of
from towpath.schemas.events import EventSchemas

SCHEMA = {
    "type": "record",
    "name": "PostPublished",
    "namespace": "blog",
    "fields": [
        {"name": "post_id", "type": "long"},
        {"name": "title", "type": "string"},
    ],
}


@dataclass
class Author:
    """A nested part of an event."""

    name: str


@dataclass
class PostPublished:
    """An event of a blog."""

    post_id: int
    title: str


class Commented(pydantic.BaseModel):
    """An event that is a pydantic model."""

    comment_id: int
    at: datetime


def recorded(made, event):
    """Record an event and return the contents of its row."""
    statements = Statements()
    Outbox(made).record(statements, event)
    ((_, values),) = statements
    return (
        *(values["aggregate_type"], values["aggregate_id"], values["type"]),
        *(json.loads(values["payload"]), json.loads(values["headers"])),
    )


def test_a_dataclass_is_bound_to_its_schema():
    """
    Its name is the event type, and its fields are the payload.
    """
    events = Events(EventSchemas())
    events.event(aggregate_type="post", key="post_id", schema=SCHEMA)(PostPublished)

    assert (
        *("post", "7", "PostPublished", {"post_id": 7, "title": "a"}),
        {"schema": "blog.PostPublished:1"},
    ) == recorded(events, PostPublished(7, "a"))


def test_a_pydantic_model_needs_no_schema():
    """
    Without a schema any JSON is a payload; the type may differ from the class's name.
    """
    events = Events(EventSchemas())
    events.event(
        aggregate_type="post",
        key=lambda event: event.comment_id % 10,
        type="CommentAdded",
        schema=NO_SCHEMA,
    )(Commented)
    at = datetime(2026, 1, 2, tzinfo=UTC)

    assert (
        *("post", "7", "CommentAdded"),
        *({"comment_id": 17, "at": "2026-01-02T00:00:00.000000Z"}, {}),
    ) == recorded(events, Commented(comment_id=17, at=at))


def test_nested_dataclasses_are_converted():
    """
    Values in lists and mappings are converted; binding a base binds its subclasses.
    """

    @dataclass
    class Base:
        id: int
        authors: list[Author] = field(default_factory=list)
        by_name: dict[str, Author] = field(default_factory=dict)
        price: Decimal = Decimal("1.50")

    class Derived(Base):
        pass

    events = Events(EventSchemas(), unknown="none")
    events.event(aggregate_type="post", key="id")(Base)
    (*_, payload, _headers) = recorded(
        events, Derived(1, [Author("a")], {"b": Author("b")})
    )

    assert {
        "id": 1,
        "authors": [{"name": "a"}],
        "by_name": {"b": {"name": "b"}},
        "price": "1.50",
    } == payload


def test_a_class_without_fields_is_bound_with_a_function():
    """
    The function returns the payload; without one the class is refused.
    """

    class Plain:
        id = 3

    events = Events(EventSchemas(), unknown="none")
    with pytest.raises(UnboundEventError, match="Plain has no fields"):
        events.event(aggregate_type="post", key="id")(Plain)
    events.event(aggregate_type="post", key="id", payload=lambda it: {"n": it.id})(
        Plain
    )

    assert {"n": 3} == recorded(events, Plain())[3]


def test_a_mapping_of_fields_is_an_event():
    """
    Missing and unknown fields are named in the error.
    """
    events = Events(EventSchemas(), unknown="none")
    fields = {
        "aggregate_type": "post",
        "aggregate_id": "7",
        "type": "Noted",
        "payload": {"n": 1},
    }

    assert ("post", "7", "Noted", {"n": 1}, {}) == recorded(events, fields)
    with pytest.raises(UnboundEventError, match="payload"):
        recorded(events, {k: v for k, v in fields.items() if k != "payload"})
    with pytest.raises(UnboundEventError, match="nonsense"):
        recorded(events, fields | {"nonsense": 1})


def test_an_object_of_an_unbound_class_is_refused():
    """
    The error names the class.
    """
    with pytest.raises(UnboundEventError, match="Author is not bound"):
        recorded(Events(EventSchemas()), Author("a"))


def test_an_event_without_a_key_is_refused():
    """
    An unflushed row has no key, and "None" would be the key of all such rows.
    """
    events = Events(EventSchemas(), unknown="none")
    events.event(aggregate_type="post", key="post_id")(PostPublished)

    with pytest.raises(InvalidEventError, match="field aggregate_id is None"):
        recorded(events, PostPublished(None, "a"))


def test_a_class_without_a_schema_is_refused_at_binding():
    """
    The mistake shows up at import, not in the first request.
    """
    with pytest.raises(EventSchemaError, match="PostPublished has no schema"):
        Events(EventSchemas()).event(aggregate_type="post", key="post_id")(
            PostPublished
        )


def test_a_schema_with_a_different_name_is_refused():
    """
    The record's name is the event type, by which consumers find the schema.
    """
    other = json.dumps(SCHEMA | {"name": "PostHidden"})
    with pytest.raises(EventSchemaError, match="PostPublished is named PostHidden"):
        Events(EventSchemas()).event(
            aggregate_type="post", key="post_id", schema=other
        )(PostPublished)


def test_schemas_are_chosen_by_event_type(tmp_path):
    """
    One type has a schema in the folder, one needs none, and one is unknown.
    """
    (tmp_path / "post_published.v1.avsc").write_text(json.dumps(SCHEMA))
    events = Events(tmp_path)
    events.without_schema("Noted")
    event = OutboxEvent(
        aggregate_type="post", aggregate_id="1", type="Noted", payload={"n": [1]}
    )

    assert {"n": [1]} == recorded(events, event)[3]
    with pytest.raises(InvalidEventError, match="post_id is missing"):
        recorded(events, {**_fields(event), "type": "PostPublished"})
    with pytest.raises(InvalidEventError, match="Nonsense: has no schema"):
        recorded(events, {**_fields(event), "type": "Nonsense"})


def _fields(event):
    names = ("aggregate_type", "aggregate_id", "payload")
    return {name: getattr(event, name) for name in names}


def test_record_uses_the_configured_outbox(monkeypatch):
    """
    Without ``configure`` the outbox has the schemas of installed packages.
    """
    monkeypatch.setattr(outbox, "_default", [])
    statements = Statements()
    event = {"aggregate_type": "a", "aggregate_id": "1", "payload": {"n": 1}}
    with pytest.raises(InvalidEventError, match=r"with a schema: .*CustomerRegistered"):
        record(statements, event | {"type": "Noted"})
    configure(Outbox(Events(EventSchemas(), unknown="none"), way="delete"))
    record_all(statements, [event | {"type": "Noted"}] * 2)

    assert ["insert", "delete"] == [sql.split()[0] for sql, _ in statements]


def test_an_engine_with_options_uses_the_outbox_of_its_base_engine(monkeypatch):
    """
    It may get an outbox of its own, which does not apply to the base engine.
    """
    monkeypatch.setattr(outbox, "_default", [])
    default, first, second = (
        Outbox(Events(EventSchemas(), unknown="none")) for _ in range(3)
    )
    engine, other = (create_engine("sqlite://") for _ in range(2))
    derived = engine.execution_options(isolation_level="SERIALIZABLE")
    further = derived.execution_options(isolation_level="AUTOCOMMIT")
    configure(default)
    configure(first, engine=engine)

    def found():
        engines = (engine, derived, further, other)
        return [outbox_of(Session(each)) for each in engines]

    assert [first, first, first, default] == found()
    configure(second, engine=derived)
    assert [first, second, second, default] == found()


@pytest.mark.parametrize("way", ["keep", "delete", "message"])
def test_batches_of_any_size_use_the_same_statements(way):
    """
    Drivers and SQLAlchemy cache statements by their text.
    """
    events = Events(EventSchemas())
    events.event(aggregate_type="post", key="post_id", schema=SCHEMA)(PostPublished)
    made = Outbox(events, way=way)
    texts = []
    for size in (2, 3, 700):
        statements = Statements()
        made.record_all(statements, [PostPublished(7, "a")] * size)
        texts.append({sql for sql, _ in statements})

    assert ([texts[0]] * 3, 2 if way == "delete" else 1) == (texts, len(texts[0]))
