"""Every refusal and every failure is a problem document."""

import json
from io import BytesIO

import pytest
from flask import Flask, abort, request
from pydantic import Field
from structlog.testing import capture_logs

from towpath.schemas.failure import BusyError, UnavailableError
from towpath.services.plumbing.http import (
    ConflictError,
    Input,
    NotFoundError,
    install_problems,
    read_body,
    read_form,
)


class Thing(Input):
    """An input with rules."""

    size: int = Field(ge=1)
    name: str


FAILURES = {
    "missing": NotFoundError("There is no thing 7."),
    "conflict": ConflictError("It has been changed in the meantime."),
    "outage": UnavailableError("The database cannot be reached."),
    "busy": BusyError("Too much to do.", retry_after_s=4.2),
    "idle": BusyError("Nothing to wait for.", retry_after_s=0.0),
    "bug": ZeroDivisionError("secret"),
}


@pytest.fixture
def client():
    """Provide a client of an application that fails on request."""
    app = Flask("failing")
    app.config["MAX_CONTENT_LENGTH"] = 100
    install_problems(app)

    @app.post("/things")
    def things():
        return read_body(request, Thing).model_dump()

    @app.post("/forms")
    def forms():
        if "parsed" in request.args:
            assert request.form
        return read_form(request, Thing, ignored="word").model_dump()

    @app.get("/fail/<case>")
    def fail(case: str):
        raise FAILURES[case]

    @app.get("/abort/<int:status>")
    def stop(status: int):
        abort(status)

    return app.test_client()


@pytest.mark.parametrize(
    ("case", "status", "slug", "retry_after"),
    [
        ("missing", 404, "not-found", None),
        ("conflict", 409, "conflict", None),
        ("outage", 503, "unavailable", "1"),
        ("busy", 503, "unavailable", "5"),
        ("idle", 503, "unavailable", "1"),
        ("bug", 500, "internal", None),
    ],
)
def test_a_failure_is_a_problem_document(client, case, status, slug, retry_after):
    """
    Its class determines the status, the type and whether to retry.

    The delay is rounded up to whole seconds, so that no client returns too early.
    """
    response = client.get(f"/fail/{case}")
    found = (
        response.status_code,
        response.mimetype,
        response.json["status"],
        response.json["type"],
        response.headers.get("Retry-After"),
    )

    expected = (
        status,
        "application/problem+json",
        status,
        f"urn:towpath:problem:{slug}",
        retry_after,
    )

    assert expected == found


def test_an_unforeseen_failure_is_hidden_from_the_caller(client):
    """
    The cause remains in the log.
    """
    with capture_logs() as records:
        response = client.get("/fail/bug")

    assert "secret" not in response.text
    assert [("request failed", FAILURES["bug"])] == [
        (record["event"], record["exc_info"]) for record in records
    ]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("PUT", "/things", 405), ("GET", "/abort/418", 418)],
)
def test_the_frameworks_refusals_are_problem_documents(client, method, path, status):
    """
    Unknown routes and methods are reported in the same format as other refusals.
    """
    response = client.open(path, method=method)
    found = (response.status_code, response.mimetype, response.json["status"])

    assert (status, "application/problem+json", status) == found


def test_a_405_lists_the_allowed_methods(client):
    """
    The header that the framework adds is kept.
    """
    assert "POST" in client.put("/things").headers["Allow"]


@pytest.mark.parametrize(
    ("body", "media_type", "status", "slug"),
    [
        (b"{}", "text/plain", 415, "unsupported-media-type"),
        (b"{}", None, 415, "unsupported-media-type"),
        (b"{", "application/json", 400, "unreadable"),
        (b"", "application/json", 400, "unreadable"),
        (b'{"name": "\xff"}', "application/json", 400, "unreadable"),
        (b'{"name": "\\ud800"}', "application/json", 400, "unreadable"),
        (b"[" * 99, "application/json", 400, "unreadable"),
        (b"[]", "application/json", 422, "invalid-input"),
        (b" " * 100, "application/json", 400, "unreadable"),
        (b" " * 99, "application/json", 400, "unreadable"),
        (b" " * 101, "application/json", 413, None),
    ],
)
def test_an_unreadable_body_is_refused(client, body, media_type, status, slug):
    """
    The reason may be its media type, size, encoding, syntax or structure.
    """
    response = client.post("/things", data=body, content_type=media_type)
    kind = response.json["type"].removeprefix("urn:towpath:problem:")

    assert (status, slug or kind) == (response.status_code, kind)


def test_all_invalid_fields_are_reported_at_once(client):
    """
    One response lists every invalid field and the reason.
    """
    body = json.dumps({"size": 0, "color": "red"})
    response = client.post("/things", data=body, content_type="application/json")

    expected = [
        {"field": "size", "reason": "Input should be greater than or equal to 1"},
        {"field": "name", "reason": "Field required"},
        {"field": "color", "reason": "Extra inputs are not permitted"},
    ]

    assert (422, expected) == (response.status_code, response.json["errors"])


def test_a_valid_body_is_read(client):
    """
    Valid JSON becomes the model, even if the content type names a charset.
    """
    response = client.post(
        "/things",
        data=b'{"size": 1, "name": "\xc3\xa9"}',
        content_type="application/json; charset=utf-8",
    )

    assert response.json == {"size": 1, "name": "é"}


@pytest.mark.parametrize(("length", "status"), [(87, 200), (88, 413), (500, 413)])
@pytest.mark.parametrize("query", ["", "?parsed"])
def test_a_chunked_form_above_the_limit_is_refused(client, query, length, status):
    """
    It is not executed with a truncated field, even if the form was parsed before.
    """
    body = b"size=1&name=" + b"x" * length
    response = client.post(
        "/forms" + query,
        input_stream=BytesIO(body),
        content_type="application/x-www-form-urlencoded",
        headers={"Transfer-Encoding": "chunked"},
        environ_overrides={"wsgi.input_terminated": True},
    )

    assert status == response.status_code
