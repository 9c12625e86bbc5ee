"""Event schemas: the released files, and the check of a payload."""

import hashlib

import pytest

from towpath.schemas import events
from towpath.schemas.compatibility import check_history
from towpath.schemas.events import (
    InvalidEventError,
    check_event,
    event_history,
    event_schemas,
)

CUSTOMER = {
    "customer_id": "0af76519-16cd-43dd-8448-eb211c80319c",
    "name": "Ada",
    "email": "ada@example.org",
    "active": True,
    "created_at": "2026-01-01T00:00:00.000000Z",
    "updated_at": "2026-01-01T00:00:00.000000Z",
}


def released() -> dict[str, str]:
    """Read the list of released files: name to hash."""
    lines = (events.FOLDER / events.RELEASED).read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def unfrozen(files: dict[str, bytes], frozen: dict[str, str]) -> list[str]:
    """Name the files that are not what was released, or were never released."""
    found = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return sorted(
        name
        for name in found.keys() | frozen.keys()
        if found.get(name) != frozen.get(name)
    )


def schema_files() -> dict[str, bytes]:
    """Read every schema file."""
    files = [f for f in events.FOLDER.iterdir() if f.name.endswith(".avsc")]
    return {f.name: f.read_bytes() for f in files}


def test_released_schemas_are_not_edited():
    """
    Each schema file is listed with its hash and has that hash: a change is a new file.
    """
    assert unfrozen(schema_files(), released()) == []


@pytest.mark.parametrize("change", ["edit", "remove", "add"])
def test_an_edit_of_a_released_schema_is_found(change: str):
    """
    An edited, a removed and an unlisted file are each named.
    """
    files = schema_files()
    if change == "edit":
        files["order_paid.v1.avsc"] += b"\n"
    elif change == "remove":
        del files["order_paid.v1.avsc"]
    else:
        files["order_paid.v2.avsc"] = files["order_paid.v1.avsc"]

    expected = ["order_paid.v2.avsc" if change == "add" else "order_paid.v1.avsc"]

    assert expected == unfrozen(files, released())


def test_every_version_reads_what_earlier_versions_wrote():
    """
    No version of an event schema breaks compatibility with any before it.
    """
    assert check_history(event_history()) == ()


def test_versions_of_a_subject_count_from_one_without_gaps():
    """
    The registry gives the same numbers, because it counts the same way.
    """
    counted: dict[str, list[int]] = {}
    for schema in event_history():
        counted.setdefault(schema.subject, []).append(schema.version)

    gaps = [
        s for s, numbers in counted.items() if numbers != [*range(1, len(numbers) + 1)]
    ]

    assert gaps == []


def test_event_types_are_found_by_name():
    """
    Each event type stands under its own name, its subject is the record's full name.
    """
    expected = {
        "CustomerRegistered": "shop.CustomerRegistered:1",
        "OrderCancelled": "shop.OrderCancelled:1",
        "OrderPaid": "shop.OrderPaid:1",
        "OrderPlaced": "shop.OrderPlaced:1",
    }

    assert expected == {n: s.reference for n, s in event_schemas().items()}


def test_a_good_payload_gives_its_schema():
    """
    A payload that follows its schema is answered with that schema.
    """
    schema = check_event("CustomerRegistered", CUSTOMER)

    assert schema.reference == "shop.CustomerRegistered:1"


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"name": 7}, "name", "is not text"),
        ({"active": 1}, "active", "is not true or false"),
        ({"email": None}, "email", "is not text"),
        ({"nickname": "A"}, "nickname", "is not in the schema"),
        ({"name": "\ud800"}, "name", "is text that cannot be encoded as UTF-8"),
    ],
)
def test_a_bad_payload_is_refused_by_field(change, field, reason):
    """
    The error names the event type, the field and what is wrong with it.
    """
    with pytest.raises(InvalidEventError) as caught:
        check_event("CustomerRegistered", CUSTOMER | change)

    told = (caught.value.event_type, caught.value.field, caught.value.reason)

    assert ("CustomerRegistered", field, reason) == told


def test_an_unknown_event_type_is_refused():
    """
    An event type without a schema is refused, and the known ones are named.
    """
    with pytest.raises(InvalidEventError, match=r"has no schema.*OrderPlaced"):
        check_event("OrderEaten", {})


@pytest.mark.parametrize(
    ("file_name", "text"),
    [
        ("order_paid.avsc", '{"type": "record", "name": "A", "fields": []}'),
        ("a.v1.avsc", '{"type": "enum", "name": "A", "symbols": ["B"]}'),
    ],
)
def test_an_invalid_event_schema_file_is_refused(file_name: str, text: str):
    """
    A file without a version, and one that holds no record, are named.
    """
    with pytest.raises(ValueError, match=file_name):
        events._read(file_name, text)
