"""Request ids, and the versions that a request expects."""

import pytest
import structlog
from flask import Flask
from structlog.testing import capture_logs

from towpath.schemas.failure import UnavailableError
from towpath.services.plumbing.http import (
    IfMatch,
    MalformedError,
    PreconditionFailedError,
    etag,
    install_problems,
)
from towpath.services.plumbing.tracing import (
    REQUEST_ID,
    install_request_context,
    request_headers,
    request_id_of,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.mark.parametrize("header", ["a", "x" * 128, "!~", "7d9f-42"])
def test_a_valid_request_id_is_kept(header: str):
    """
    It has 1 to 128 visible ASCII characters.
    """
    assert header == request_id_of(header)


@pytest.mark.parametrize("header", [None, "", "x" * 129, "a b", "a\n", "é", "\x7f"])
def test_an_invalid_request_id_is_replaced(header: str | None):
    """
    Each replacement is new, and is itself valid.
    """
    made = [request_id_of(header) for _ in range(2)]

    assert len({*made, header}) == 3
    assert made == [request_id_of(each) for each in made]


@pytest.fixture
def app() -> Flask:
    """Provide an application whose only route fails."""
    app = Flask("failing")
    install_request_context(app)
    install_problems(app)

    @app.get("/fail")
    def fail():
        message = "The database cannot be reached."
        raise UnavailableError(message)

    return app


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/fail", 503), ("GET", "/nowhere", 404), ("PUT", "/fail", 405)],
)
def test_every_problem_has_the_request_id(app: Flask, method, path, status):
    """
    Failures, unknown routes and wrong methods return it as well.
    """
    response = app.test_client().open(path, method=method, headers={REQUEST_ID: "r-1"})

    assert (status, "r-1") == (response.status_code, response.headers[REQUEST_ID])


def test_log_records_have_only_their_own_requests_ids(app: Flask):
    """
    The next request in the same thread, without a trace, has none of the earlier ids.
    """
    client = app.test_client()
    with capture_logs([structlog.contextvars.merge_contextvars]) as records:
        client.get("/fail", headers={REQUEST_ID: "r-1", "traceparent": TRACEPARENT})
        client.get("/fail", headers={REQUEST_ID: "r-2"})
    ids = [(record.get("request_id"), record.get("trace_id")) for record in records]

    assert [("r-1", TRACE), ("r-2", None)] == ids
    assert {} == structlog.contextvars.get_contextvars()


def test_a_called_service_gets_the_id_and_the_trace_of_the_request(app: Flask):
    """
    A request without a trace passes on only its id; outside a request there is neither.
    """
    app.get("/called")(request_headers)
    client = app.test_client()
    headers = {REQUEST_ID: "r-1", "traceparent": TRACEPARENT}
    passed_on = client.get("/called", headers=headers).json
    without = client.get("/called", headers={REQUEST_ID: "r-2"}).json

    assert (headers, {REQUEST_ID: "r-2"}, {}) == (passed_on, without, request_headers())


@pytest.mark.parametrize(
    ("header", "version"),
    [
        (None, 3),
        ("*", 3),
        (" * ", 3),
        ('"3"', 3),
        ('"2", "3"', 3),
        ('"2","3"', 3),
        (', "3",,', 3),
        ('W/"3", "3"', 3),
        ('"a,b", "3"', 3),
    ],
)
def test_an_expected_version_is_accepted(header: str | None, version: int):
    """
    The current version is one of the tags, or any version is accepted.
    """
    IfMatch.parse(header).check(version)


@pytest.mark.parametrize(
    "header", ['"2"', 'W/"3"', '"03"', '"a,b"', '""', 'W/"3", "4"']
)
def test_a_different_version_is_a_failed_precondition(header: str):
    """
    Tags are compared as text and strongly: a weak one never matches.
    """
    with pytest.raises(PreconditionFailedError) as refusal:
        IfMatch.parse(header).check(3)

    assert (412, '"3"' in refusal.value.detail) == (refusal.value.status, True)


@pytest.mark.parametrize(
    "header",
    ["", ",", "3", '"3', '3"', '"3" "4"', 'w/"3"', '*, "3"', '"3"; "4"', '"3 "'],
)
def test_a_malformed_expectation_is_refused(header: str):
    """
    It is neither the asterisk nor a list of entity tags.
    """
    with pytest.raises(MalformedError) as refusal:
        IfMatch.parse(header)

    assert (400, "If-Match") == (refusal.value.status, refusal.value.errors[0].field)


def test_an_entity_tag_is_accepted_as_the_expectation():
    """
    A client sends back the tag that it received.
    """
    IfMatch.parse(etag(12)).check(12)
    assert '"12"' == etag(12)
