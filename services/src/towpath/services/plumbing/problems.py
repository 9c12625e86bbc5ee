"""
Errors as problem documents (RFC 9457), the one form in which a service says no.

::

    ProblemError            a service's own refusal: status, slug, detail, fields
    ├── InvalidInputError   422  every field that is wrong, at once
    ├── UnreadableError     400  the body is not JSON at all
    ├── NotFoundError       404
    └── ConflictError       409  right in form, but not in this state

Failures of the platform become problems by their class: what may be tried again is a
503 with ``Retry-After``. Anything unforeseen is a 500 that tells the caller nothing and
the log everything.
"""

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, NamedTuple

import structlog
from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from towpath.schemas.failure import BusyError, DataError, UnavailableError

MEDIA_TYPE: Final = "application/problem+json"
_TYPE_PREFIX: Final = "urn:towpath:problem:"

# What a client is told to wait when the part that failed did not say; about the time
# that Postgres takes to start again.
_RETRY_AFTER_S: Final = 1.0

log = structlog.get_logger(__name__)


class FieldError(NamedTuple):
    """One thing that is wrong with the input, and where."""

    field: str
    reason: str


class ProblemError(DataError):
    """A refusal that the caller can read; never the platform's failure."""

    status: ClassVar[HTTPStatus] = HTTPStatus.BAD_REQUEST
    slug: ClassVar[str] = "bad-request"
    remedy = "Correct the request; the problem document says what is wrong with it."

    def __init__(self, detail: str, errors: Sequence[FieldError] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = tuple(errors)


class UnreadableError(ProblemError):
    """The body cannot be read as JSON."""

    slug = "unreadable"


class InvalidInputError(ProblemError):
    """The input was read, and some of it is not allowed."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    slug = "invalid-input"


class NotFoundError(ProblemError):
    """What the request names does not exist."""

    status = HTTPStatus.NOT_FOUND
    slug = "not-found"


class ConflictError(ProblemError):
    """The state does not allow what the request asks for."""

    status = HTTPStatus.CONFLICT
    slug = "conflict"


def problem(
    status: HTTPStatus, slug: str, detail: str, errors: Sequence[FieldError] = ()
) -> Response:
    """Render a problem document."""
    document: dict[str, Any] = {
        "type": _TYPE_PREFIX + slug,
        "title": status.phrase,
        "status": status.value,
        "detail": detail,
    }
    if errors:
        document["errors"] = [error._asdict() for error in errors]
    return Response(json.dumps(document), status.value, mimetype=MEDIA_TYPE)


def install_problems(app: Flask) -> None:
    """Have the application answer every error with a problem document."""
    app.register_error_handler(ProblemError, _on_refusal)
    app.register_error_handler(UnavailableError, _on_unavailable)
    app.register_error_handler(HTTPException, _on_http)
    app.register_error_handler(Exception, _on_unforeseen)


def _on_refusal(error: ProblemError) -> Response:
    return problem(error.status, error.slug, error.detail, error.errors)


def _on_unavailable(error: UnavailableError) -> Response:
    log.warning("a part is unavailable", reason=str(error), remedy=error.remedy)
    detail = f"{error} {error.remedy}"
    response = problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail)
    delay_s = error.retry_after_s if isinstance(error, BusyError) else _RETRY_AFTER_S
    response.headers["Retry-After"] = str(max(1, round(delay_s)))
    return response


def _on_http(error: HTTPException) -> Response:
    status = HTTPStatus(error.code or HTTPStatus.INTERNAL_SERVER_ERROR)
    slug = status.phrase.lower().replace(" ", "-")
    response = problem(status, slug, error.description or status.phrase)
    for name, value in error.get_headers():
        if name.lower() != "content-type":
            response.headers[name] = value
    return response


def _on_unforeseen(error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    detail = "The service failed; its log says why. Nothing was changed."
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", detail)
