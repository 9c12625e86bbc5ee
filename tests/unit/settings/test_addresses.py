"""Addresses that no server of their kind can have are mistakes in the file."""

import pytest

from support.configuration import ADDRESSES, mistakes_of

DSN = "postgresql://localhost/shop"


def mistakes(
    kind: str = "cache",
    url: str | None = None,
    dsn: str = DSN,
    registry: str | None = None,
    **relay: object,
) -> tuple[str, ...]:
    """List the mistakes in a file that has these addresses."""
    route = {"topic": "towpath.shop.orders", "name": "shop.orders"}
    sink = {"name": "it", "kind": kind, "url": url or ADDRESSES[kind], "route": [route]}
    if kind == "warehouse":
        sink["folder"] = "lake"
    if kind == "webhook":
        sink["webhook"] = {"secrets": ["whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"]}
    document: dict[str, object] = {
        "version": 1,
        "source": [{"dsn": dsn, "tables": ["shop.orders"]}],
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "relay": relay,
        "sink": [] if relay else [sink],
    }
    if registry is not None:
        document["registry"] = {"url": registry}
    return mistakes_of(document)


@pytest.mark.parametrize("kind", list(ADDRESSES))
def test_a_valid_address_is_accepted(kind: str):
    """
    A file with a valid address has no mistake.
    """
    assert () == mistakes(kind)


@pytest.mark.parametrize(
    ("kind", "url", "expected"),
    [
        ("cache", "http://localhost:6379", "redis://"),
        ("cache", "localhost:6379", "redis://"),
        ("search", "localhost:9200", "http://"),
        ("search", "redis://localhost", "http://"),
        ("warehouse", "mysql://localhost/lake", "postgresql://"),
        ("warehouse", "http://localhost:8181", "postgresql://"),
        ("webhook", "ftp://localhost", "http://"),
        ("postgres", "redis://localhost", "postgresql://"),
        ("postgres", "localhost", "postgresql://"),
    ],
)
def test_an_address_of_the_wrong_kind_is_a_mistake(kind: str, url: str, expected: str):
    """
    The message names the sink and the expected prefix.
    """
    message = "\n".join(mistakes(kind, url))

    assert (
        "it" in message or "sink" in message,
        "url" in message,
        expected in message,
    ) == (
        True,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("dsn", "is_valid"),
    [
        ("postgresql://localhost/shop", True),
        ("postgres://user:pass=word@localhost/shop", True),
        ("host=localhost dbname=shop", True),
        ("service=shop", True),
        ("dbname = 'a://b'", True),
        ("mysql://localhost/shop", False),
        ("localhost:5432/shop", False),
        ("shop", False),
    ],
)
def test_a_source_has_an_address_for_libpq(dsn: str, *, is_valid: bool):
    """
    The address is a Postgres URL, or consists of key=value pairs.
    """
    assert is_valid == (mistakes(dsn=dsn) == ())


@pytest.mark.parametrize(
    ("url", "is_valid"),
    [
        ("http://localhost:8081", True),
        ("https://registry.example.org", True),
        ("ftp://localhost:8081", False),
        ("localhost:8081", False),
        ("postgresql://localhost", False),
    ],
)
def test_a_registry_url_has_an_http_scheme(url: str, *, is_valid: bool):
    """
    The format of the records does not matter.
    """
    expected = (
        () if is_valid else ("registry.url: must begin with http:// or https://",)
    )

    assert expected == mistakes(registry=url)


def test_a_malformed_registry_url_is_a_mistake():
    """
    It is reported like any other mistake in the file.
    """
    (found,) = mistakes(registry="http://[::1")

    assert found.startswith("registry.url: malformed: ")


def test_only_avro_needs_a_registry():
    """
    Without Avro, none is needed, but an address that is given must be an HTTP URL.
    """
    assert (
        (),
        ('registry.url: missing: relay.rows.format = "avro" needs a registry',),
        ("registry.url: must begin with http:// or https://",),
    ) == (
        mistakes(),
        mistakes(rows={"format": "avro"}),
        mistakes(registry="localhost:8081"),
    )
