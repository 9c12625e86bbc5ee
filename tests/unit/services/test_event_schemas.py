"""The shop's event schemas: released files are not edited, versions are compatible."""

import hashlib
from importlib import resources

import pytest

from towpath.schemas.compatibility import check_history
from towpath.schemas.events import installed_schemas
from towpath.services.orders.events import SCHEMAS, shop_schemas

FOLDER = resources.files(SCHEMAS)
RELEASED = "released.sha256"


def released() -> dict[str, str]:
    """Read the list of released files: name to hash."""
    lines = (FOLDER / RELEASED).read_text(encoding="utf-8").splitlines()
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
    files = [f for f in FOLDER.iterdir() if f.name.endswith(".avsc")]
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
    assert check_history(shop_schemas().history) == ()


def test_versions_of_a_subject_count_from_one_without_gaps():
    """
    The registry gives the same numbers, because it counts the same way.
    """
    counted: dict[str, list[int]] = {}
    for schema in shop_schemas().history:
        counted.setdefault(schema.subject, []).append(schema.version)

    gaps = [
        s for s, numbers in counted.items() if numbers != [*range(1, len(numbers) + 1)]
    ]

    assert gaps == []


def test_the_installed_package_declares_its_schemas():
    """
    Each event type stands under its own name, its subject is the record's full name.
    """
    expected = {
        "CustomerRegistered": "shop.CustomerRegistered:1",
        "OrderCancelled": "shop.OrderCancelled:1",
        "OrderPaid": "shop.OrderPaid:1",
        "OrderPlaced": "shop.OrderPlaced:1",
    }
    found = installed_schemas().newest

    assert expected == {name: schema.reference for name, schema in found.items()}
