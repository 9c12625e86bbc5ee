"""Row forms that the file's own sinks cannot read are mistakes in the file."""

import pytest

from support.configuration import mistakes_of

TABLE = {"topic": "towpath.shop.orders", "name": "orders"}
LOG = {"topic": "outbox.event.*", "name": "shop.events", "kind": "event_log"}
CACHE = {"name": "cache", "kind": "cache", "url": "redis://x", "route": [TABLE]}
LAKE = {
    "name": "lake",
    "kind": "warehouse",
    "url": "postgresql://x",
    "folder": "lake",
    "route": [LOG],
}


def mistakes(relay: dict, *sinks: dict) -> tuple[str, ...]:
    """List the mistakes in a file with this relay and these sinks."""
    document = {
        "version": 1,
        "source": [{"dsn": "postgresql:///x", "tables": ["shop.orders"]}],
        "kafka": {"bootstrap_servers": "kafka:9092"},
        "registry": {"url": "http://x"},
        "relay": relay,
        "sink": list(sinks),
    }
    return mistakes_of(document)


@pytest.mark.parametrize(
    ("key", "form", "remedy"),
    [
        ("format", "json-schema", '"json"'),
        ("format", "avro", '"json"'),
        ("decimals", "precise", '"string"'),
        ("decimals", "double", '"string"'),
        ("times", "adaptive", '"iso"'),
        ("times", "connect", '"iso"'),
        ("intervals", "numeric", '"string"'),
        ("binaries", "base64-url-safe", '"bytes" or "base64"'),
        ("binaries", "hex", '"bytes" or "base64"'),
        ("hstore", "map", '"json"'),
        ("unknown_types", "bytes", '"text" or "omit"'),
    ],
)
def test_a_row_form_that_sinks_cannot_read_is_a_mistake(
    key: str, form: str, remedy: str
):
    """
    The message names the sinks that would read it, and the forms that they can read.
    """
    message = (
        f'relay.rows.{key}: sinks of tables (cache) cannot read "{form}": set it to '
    )

    assert (message + remedy,) == mistakes({"rows": {key: form}}, CACHE, LAKE)


def test_all_forms_of_the_preset_are_reported_at_once():
    """
    A form that the file does not set is reported with the preset that sets it.
    """
    found = mistakes({"preset": "debezium", "rows": {"hstore": "map"}}, CACHE)
    keys = ["format", "decimals", "times", "intervals", "hstore"]
    gives = ', which relay.preset = "debezium" sets: set it to '

    assert [f"relay.rows.{key}" for key in keys] == [m.split(":")[0] for m in found]
    assert [True, True, True, True, False] == [gives in m for m in found]


@pytest.mark.parametrize(
    "rows",
    [
        {"binaries": "base64", "unknown_types": "omit"},
        {"placeholder": "__unavailable", "tombstones": False, "sanitize_names": True},
        {"mask": [{"columns": ["shop.orders.name"], "form": "mask", "length": 3}]},
    ],
)
def test_row_forms_that_sinks_can_read_are_not_mistakes(rows: dict):
    """
    An excluded, renamed or masked column is announced as such, and read like any other.
    """
    assert () == mistakes({"rows": rows}, CACHE)


def test_a_preset_with_readable_forms_is_not_a_mistake():
    """Only the forms matter: sinks ignore the rest of an envelope."""
    forms = {
        "format": "json",
        "decimals": "string",
        "times": "iso",
        "intervals": "string",
    }

    assert () == mistakes({"preset": "debezium", "rows": forms}, CACHE)


@pytest.mark.parametrize("sinks", [(), (LAKE,)])
def test_a_relay_without_sinks_of_tables_writes_any_form(sinks: tuple[dict, ...]):
    """Events are not rows, so their payload is never converted."""
    rows = {"format": "avro", "times": "adaptive", "hstore": "map"}

    assert () == mistakes({"rows": rows}, *sinks)
    assert () == mistakes({"preset": "debezium"}, *sinks)


def test_an_invalid_row_form_is_reported_once():
    """
    A mistake in the key itself hides its contradictions.
    """
    (message,) = mistakes({"rows": {"format": "xml"}}, CACHE)

    assert "sinks of tables" not in message


@pytest.mark.parametrize("text", ["hex:zz", "hex:3", "hex:3f?"])
def test_a_placeholder_that_is_not_hex_is_a_mistake(text: str):
    """
    Otherwise the relay would detect the mistake only at its first table.
    """
    even = "must have an even number of hex digits"
    expected = f"relay.rows.placeholder: {text!r}: {even} after"

    assert (f"{expected} 'hex:'",) == mistakes({"rows": {"placeholder": text}})


@pytest.mark.parametrize("text", ["", "hex:", "hex:ff00", "hexagon", "__gone"])
def test_any_other_text_is_a_placeholder(text: str):
    """
    The bytes after ``hex:`` need not be valid text.
    """
    assert () == mistakes({"rows": {"placeholder": text}})
