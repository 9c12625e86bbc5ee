"""The OpenAPI document, and the cursors of listings."""

import base64
import uuid

import pytest
from flask import Blueprint
from pydantic import AwareDatetime
from sqlalchemy import Column, DateTime, MetaData, Table, Uuid, select

from support.api_conformance import document_errors
from towpath.services.orders.app import create_app
from towpath.services.plumbing.http import MalformedError
from towpath.services.plumbing.openapi import install_openapi
from towpath.services.plumbing.pagination import Keyset, PageQuery, page_document
from towpath.services.plumbing.service import base_app

NOWHERE = "postgresql://127.0.0.1:1/shop"


@pytest.fixture(scope="module")
def document():
    """Provide the document of the orders service."""
    return create_app(NOWHERE, threads=1).test_client().get("/openapi.json").json


def test_the_openapi_document_is_valid(document):
    """
    It conforms to OpenAPI 3.1, and its schemas conform to JSON Schema.
    """
    assert ("3.1.0", []) == (document["openapi"], document_errors(document))


def test_the_openapi_document_has_every_route(document):
    """
    Each path and method of the application is an operation.
    """
    found = {
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method in operations
    }

    expected = {
        "GET /customers",
        "POST /customers",
        "GET /customers/{customer_id}",
        "GET /health/live",
        "GET /health/ready",
        "GET /openapi.json",
        "GET /orders",
        "POST /orders",
        "GET /orders/{order_id}",
        "POST /orders/{order_id}/cancel",
        "POST /orders/{order_id}/pay",
        "POST /orders/{order_id}/return",
    }

    assert expected == found


def test_a_command_declares_its_headers_and_its_statuses(document):
    """
    Placing an order accepts a key, and declares every status of its responses.
    """
    operation = document["paths"]["/orders"]["post"]
    taken = {each["name"] for each in operation["parameters"]}
    created = operation["responses"]["201"]["headers"]

    assert {"X-Request-Id", "traceparent", "Idempotency-Key"} == taken
    assert {"X-Request-Id", "Towpath-Lsn", "Idempotent-Replayed", "Location"} == set(
        created
    )
    assert {"201", "400", "413", "415", "422", "500", "503"} == set(
        operation["responses"]
    )


def test_a_route_without_a_declaration_is_refused():
    """
    The application is not created, and the message names the path.
    """
    app = base_app("bare", create_app(NOWHERE, threads=1).extensions["engine"], ())
    bare = Blueprint("bare", __name__)
    bare.add_url_rule("/forgotten", "forgotten", lambda: "")
    app.register_blueprint(bare)

    with pytest.raises(LookupError, match="/forgotten"):
        install_openapi(app, "Bare")


def test_a_405_lists_the_allowed_methods_on_every_path(document):
    """
    Its Allow header lists the methods in the document.
    """
    client = create_app(NOWHERE, threads=1).test_client()
    for path, operations in document["paths"].items():
        concrete = path.replace("{order_id}", "1").replace(
            "{customer_id}", str(uuid.UUID(int=0))
        )
        refused = client.delete(concrete)
        allowed = {method.strip() for method in refused.headers["Allow"].split(",")}
        documented = {method.upper() for method in operations}

        assert (405, documented) == (refused.status_code, allowed - {"HEAD", "OPTIONS"})
        assert allowed == set(client.options(concrete).headers["Allow"].split(", "))
        assert ("GET" in allowed) == ("HEAD" in allowed)


THINGS = Table(
    "things",
    MetaData(),
    Column("made_at", DateTime(timezone=True)),
    Column("id", Uuid, primary_key=True),
)
NEWEST = Keyset(tuple[AwareDatetime, uuid.UUID], THINGS.c.made_at, THINGS.c.id)


def encoded(text: bytes) -> str:
    """Encode a text as a cursor is encoded."""
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "é",
        "a",
        "***",
        encoded(b" "),
        encoded(b"[]"),
        encoded(b"[1]"),
        encoded(b"{}"),
        encoded(b'["2026-11-27T00:00:00Z"]'),
        encoded(b'["2026-11-27T00:00:00Z", "x"]'),
        encoded(b"\xff"),
    ],
)
def test_a_cursor_that_no_page_returned_is_refused(cursor: str):
    """
    The cursor is not base64 or not JSON, or its types are not those of the listing.
    """
    with pytest.raises(MalformedError) as refusal:
        NEWEST.page(None, select(THINGS), PageQuery(cursor=cursor))

    assert "cursor" == refusal.value.errors[0].field


def test_the_link_to_the_next_page_keeps_the_filters():
    """
    The document and the header have the same link; the last page has none.
    """
    query = PageQuery(limit=2)
    document, headers = page_document("/things", query, [1, 2], "abc")
    last = page_document("/things", query, [3], None)

    assert "/things?limit=2&cursor=abc" == document["next"]
    assert {"Link": '</things?limit=2&cursor=abc>; rel="next"'} == headers
    assert ({"items": [3], "next": None}, {}) == last
