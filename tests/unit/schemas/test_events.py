"""Event schemas: the files of an application, and the check of a payload."""

import json
import uuid
from datetime import date
from decimal import Decimal
from importlib import metadata

import pytest

from towpath.outbox import plain
from towpath.schemas.events import (
    EventSchemaError,
    EventSchemas,
    InvalidEventError,
    installed_schemas,
    make_schema,
)
from towpath.schemas.schema_files import parse_file

CUSTOMER = {"name": "Ada", "active": True, "email": "ada@example.org"}
SCHEMA = {
    "type": "record",
    "name": "CustomerRegistered",
    "namespace": "crm",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "active", "type": "boolean"},
        {"name": "email", "type": "string"},
    ],
}
NICKNAME = {"name": "nickname", "type": ["null", "string"], "default": None}
NEXT = SCHEMA | {"fields": [*SCHEMA["fields"], NICKNAME]}


@pytest.fixture
def folder(tmp_path):
    """
    Provide a folder with two versions of a schema, and a file of a different kind.
    """
    (tmp_path / "customer_registered.v1.avsc").write_text(json.dumps(SCHEMA))
    (tmp_path / "customer_registered.v2.avsc").write_text(json.dumps(NEXT))
    (tmp_path / "README.md").write_text("no schema")
    return tmp_path


def test_a_folder_contains_every_version(folder):
    """
    All versions are kept, oldest first; the newest one checks payloads.
    """
    found = EventSchemas.from_folder(folder)

    assert (
        ["crm.CustomerRegistered:1", "crm.CustomerRegistered:2"],
        ["crm.CustomerRegistered:2"],
    ) == (
        [schema.reference for schema in found.history],
        [schema.reference for schema in found.newest.values()],
    )


def test_a_good_payload_gives_its_schema(folder):
    """
    The check returns the newest version, which the payload follows.
    """
    schemas = EventSchemas.from_folder(str(folder))

    schema = schemas.check("CustomerRegistered", CUSTOMER | {"nickname": "A"})

    assert "crm.CustomerRegistered:2" == schema.reference


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"name": 7}, "name", "is not text"),
        ({"active": 1}, "active", "is not true or false"),
        ({"email": None}, "email", "is not text"),
        ({"age": 7}, "age", "is not in the schema"),
        ({"name": "\ud800"}, "name", "is text that cannot be encoded as UTF-8"),
    ],
)
def test_the_refusal_of_a_bad_payload_names_the_field(folder, change, field, reason):
    """
    The error has the event type, the field and the reason.
    """
    with pytest.raises(InvalidEventError) as caught:
        EventSchemas.from_folder(folder).check("CustomerRegistered", CUSTOMER | change)
    error = caught.value

    assert ("CustomerRegistered", field, reason) == (
        *(error.event_type, error.field, error.reason),
    )


def test_an_unknown_event_type_is_refused(folder):
    """
    The error names the event types that have a schema.
    """
    schemas = EventSchemas.from_folder(folder)

    with pytest.raises(InvalidEventError, match=r"no schema.*CustomerRegistered"):
        schemas.check("OrderEaten", {})


@pytest.mark.parametrize(
    ("file_name", "text", "reason"),
    [
        ("a.avsc", json.dumps(SCHEMA), "must be named"),
        ("a.v0.avsc", json.dumps(SCHEMA), "must be named"),
        ("a.v1.avsc", '{"type": "enum", "name": "A", "symbols": ["B"]}', "a record"),
        ("a.v1.avsc", "{", "cannot be read"),
        ("a.v1.avsc", '{"type": "record"}', "cannot be read"),
        (
            "a.v1.avsc",
            json.dumps(SCHEMA).replace("boolean", "zzz"),
            "define type crm.zzz",
        ),
        ("a.v1.avsc", json.dumps(SCHEMA).replace("boolean", "bytes"), "'bytes'"),
    ],
)
def test_a_file_that_is_not_an_event_schema_is_refused(file_name, text, reason):
    """
    The error has the file and the reason.
    """
    with pytest.raises(EventSchemaError, match=f"^{file_name}: .*{reason}"):
        EventSchemas.from_files([parse_file(file_name, text)])


def test_a_folder_without_schemas_is_refused(tmp_path):
    """
    The errors distinguish a missing folder from an empty one.
    """
    with pytest.raises(EventSchemaError, match="no file"):
        EventSchemas.from_folder(tmp_path)
    with pytest.raises(EventSchemaError, match="no such folder"):
        EventSchemas.from_folder(tmp_path / "none")


def test_schemas_from_several_folders_are_joined(folder):
    """
    The same schema may occur twice, but one version must not have two different texts.
    """
    one = EventSchemas.from_folder(folder)
    other = make_schema(json.dumps(SCHEMA | {"doc": "edited"}), 1)
    elsewhere = make_schema(json.dumps(SCHEMA | {"namespace": "erp"}))

    assert one.history == (one | one).history
    with pytest.raises(EventSchemaError, match="CustomerRegistered:1: two"):
        one | EventSchemas([other])
    with pytest.raises(EventSchemaError, match=r"crm.*and erp.*one event type"):
        one | EventSchemas([elsewhere])


PAID = {
    "type": "record",
    "name": "InvoicePaid",
    "namespace": "crm",
    "fields": [
        {
            "name": "amount",
            "type": {
                "type": "fixed",
                "name": "Money",
                "size": 8,
                "logicalType": "decimal",
                "precision": 12,
                "scale": 2,
            },
        },
        {"name": "fee", "type": ["null", "Money"], "default": None},
        {"name": "paid_on", "type": {"type": "int", "logicalType": "date"}},
        {"name": "invoice", "type": {"type": "string", "logicalType": "uuid"}},
        {
            "name": "way",
            "type": {"type": "enum", "name": "Way", "symbols": ["card", "cash"]},
        },
        {"name": "reference", "type": ["null", "string", "long"], "default": None},
    ],
}
PAYMENT = {
    "amount": Decimal("12.50"),
    "paid_on": 20_000,
    "invoice": uuid.UUID(int=7),
    "way": "card",
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, ""),
        ({"fee": Decimal("0.30"), "reference": 7}, ""),
        ({"fee": None, "reference": "R7"}, ""),
        ({"amount": Decimal("0.001")}, "amount"),
        ({"fee": 0.3}, "fee"),
        ({"paid_on": date(2026, 1, 1)}, "paid_on"),
        ({"way": "cheque"}, "way"),
        ({"reference": True}, "reference"),
    ],
)
def test_logical_types_enums_and_unions_are_checked_as_they_are_recorded(change, field):
    """
    Python's decimals and UUIDs become text first, as in every recorded event.
    """
    schemas = EventSchemas([make_schema(json.dumps(PAID))])
    payload = plain(PAYMENT | change)

    if not field:
        assert schemas.check("InvoicePaid", payload).name == "InvoicePaid"
        return
    with pytest.raises(InvalidEventError) as caught:
        schemas.check("InvoicePaid", payload)
    assert field == caught.value.field


@pytest.mark.parametrize("module", ["nowhere.schemas", "json.decoder"])
def test_a_declared_module_without_schemas_is_refused(module, monkeypatch):
    """
    The module does not exist, or is not a package with its own folder.
    """
    point = metadata.EntryPoint("shop", module, "towpath.events")
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [point])

    with pytest.raises(EventSchemaError):
        installed_schemas.__wrapped__()
