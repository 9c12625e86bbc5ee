"""
Requests and responses over HTTP: bodies, problems, preconditions, LSN.

A body whose media type is not JSON is refused (415). Bytes that are not JSON in UTF-8
are a 400; JSON with invalid values is a 422 that lists all of them.

Every refusal is a problem document (RFC 9457).

::

    ProblemError            a service's own refusal: status, slug, detail, fields
    ├── InvalidInputError   422  lists every invalid field
    ├── UnreadableError     400  the body is not JSON at all
    ├── MalformedError      400  a header or a query parameter cannot be read
    ├── NotFoundError       404
    ├── ConflictError       409  valid, but not in this state
    └── PreconditionFailedError  412  If-Match names a different version

A failure of the platform that may be retried is a 503 with ``Retry-After``. An HTTP
error that the framework raises, such as 405, keeps its status. Any other error is a 500
without details; its details are logged.

A response with a versioned aggregate has ``ETag: "<version>"``. A command
with ``If-Match`` is executed only if one of the header's tags is the current version
(RFC 9110, strong comparison: a weak tag never matches). ``*`` matches every version.

The header ``Towpath-Lsn`` is an LSN at or after the end of the request's commit. A
client can wait until a sink has applied everything up to this LSN, and then read its
own write there. The LSN is read after the commit, on the commit's own connection:

- With synchronous commits the commit's record was flushed before the commit returned,
  so the flush LSN, read afterwards, is at the record's end or after it. Other commits
  in between only raise the flush LSN: it is an upper bound. The insert LSN would be one
  too, but unflushed WAL is not sent, so a wait for the insert LSN could last until the
  next commit.
- With ``synchronous_commit = off`` the commit may not be flushed: then the insert LSN
  is the bound.
- On another connection to the same server (with a pooler), both bounds still hold:
  the LSNs are the server's, not the session's. On another *server* they would not, so
  after a lost connection there is no header at all rather than a wrong one. After a
  failover behind a pooler the LSN can still be the new server's, whose WAL may lack the
  commit: no LSN shows what a failover lost.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, get_origin

import structlog
from flask import Flask, Request, Response
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from werkzeug.exceptions import (
    HTTPException,
    RequestEntityTooLarge,
    UnsupportedMediaType,
)

from towpath.schemas.failure import (
    BusyError,
    DataError,
    UnavailableError,
    with_remedy,
)

MEDIA_TYPE: Final = "application/problem+json"
_TYPE_PREFIX: Final = "urn:towpath:problem:"

# The Retry-After of failures that name no delay; about as long as Postgres takes to
# restart.
_RETRY_AFTER_S: Final = 1.0

log = structlog.get_logger(__name__)


class FieldError(NamedTuple):
    """One mistake in the input, with its field."""

    field: str
    reason: str


class ProblemError(DataError):
    """A refusal of a request; never a failure of the platform."""

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
    """The input was read, and some of its values are invalid."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    slug = "invalid-input"


class MalformedError(ProblemError):
    """A header or a query parameter cannot be read."""

    slug = "malformed"


class NotFoundError(ProblemError):
    """The resource of the request does not exist."""

    status = HTTPStatus.NOT_FOUND
    slug = "not-found"


class ConflictError(ProblemError):
    """The state of the resource does not allow the request."""

    status = HTTPStatus.CONFLICT
    slug = "conflict"


class PreconditionFailedError(ProblemError):
    """The resource does not have the version that the request expects."""

    status = HTTPStatus.PRECONDITION_FAILED
    slug = "precondition-failed"
    remedy = "Read the resource again, and repeat the request with its new ETag."


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


def json_response(
    status: int, document: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Render a document of plain values as JSON."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    response = Response(body, status, mimetype="application/json")
    response.headers.update(headers or {})
    return response


def install_problems(app: Flask) -> None:
    """Install the error handlers that respond with problem documents."""
    app.register_error_handler(ProblemError, refusal_response)
    app.register_error_handler(UnavailableError, unavailable_response)
    app.register_error_handler(HTTPException, _on_http)
    app.register_error_handler(Exception, _on_unforeseen)


def refusal_response(error: ProblemError) -> Response:
    """Return the response to a refused request."""
    return problem(error.status, error.slug, error.detail, error.errors)


def unavailable_response(error: UnavailableError) -> Response:
    """Log a failure that a retry may resolve, and return the response."""
    log.warning("request refused: unavailable", reason=str(error), remedy=error.remedy)
    detail = with_remedy(str(error), error.remedy)
    response = problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail)
    delay_s = error.retry_after_s if isinstance(error, BusyError) else _RETRY_AFTER_S
    response.headers["Retry-After"] = str(max(1, math.ceil(delay_s)))
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
    log.error("request failed", exc_info=error)
    detail = "The service failed; its log says why."
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", detail)


# A page loads only files from its own origin, and cannot be shown in a frame.
_PAGE_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def protect_page(response: Response, *, is_static: bool) -> Response:
    """Restrict a page to its own origin's files; only static files may be cached."""
    response.headers["Content-Security-Policy"] = _PAGE_POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "same-origin"
    if not is_static:
        response.headers["Cache-Control"] = "no-store"
    return response


# More than the largest order takes in UTF-8 (100 lines take under 20 kB, 50 attributes
# and a note under 230 kB), and small enough that memory holds a few hundred bodies.
MAX_BODY_BYTES: Final = 256 * 1024

AnyInput = TypeVar("AnyInput", bound="Input")


class Input(BaseModel):
    """The input of a command: strict, frozen, without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# The pattern, in a JSON schema, of text that ``without_nul`` accepts.
WITHOUT_NUL: Final = r"^[^\x00]*$"


def without_nul(text: str) -> str:
    """Refuse a NUL character, which Postgres cannot store in text."""
    if "\0" in text:
        message = "must not contain a NUL character"
        raise ValueError(message)
    return text


def _integral(value: object) -> object:
    # JSON has one kind of number: 1.0 is an integer, also in JSON Schema.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Integer = Annotated[int, BeforeValidator(_integral)]

_PRICE_PATTERN: Final = r"[0-9]{1,10}(\.[0-9]{1,2})?"
_PRICE: Final = re.compile(_PRICE_PATTERN + r"\Z")


def _price(value: object) -> Decimal:
    """Read a price from text only: a client may have rounded a JSON number."""
    if not isinstance(value, str) or _PRICE.match(value) is None:
        message = 'must be a number as text with at most two decimals, such as "9.99"'
        raise ValueError(message)
    return Decimal(value).quantize(Decimal("0.01"))


# pydantic derives no JSON schema from a validator, so the schema repeats its rule.
Price = Annotated[
    Decimal,
    BeforeValidator(_price),
    WithJsonSchema({"type": "string", "pattern": f"^{_PRICE_PATTERN}$"}),
]


def read_body(
    request: Request, model: type[AnyInput], *, optional: bool = False
) -> AnyInput:
    """
    Read the request's body as the model.

    Args:
        request: The request; its body is read once and kept.
        model: The model of the body.
        optional: Whether an empty body is read as an empty object.

    Raises:
        RequestEntityTooLarge: The body is larger than the application's limit.
        UnsupportedMediaType: The media type of the body is not JSON.
        UnreadableError: The body is not JSON in UTF-8.
        InvalidInputError: Some of the body's values are invalid.
    """
    data = _whole_body(request)
    if not data and optional:
        data = b"{}"
    elif request.mimetype != "application/json":
        message = "Send the body as application/json."
        raise UnsupportedMediaType(message)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _refusal(details) from error


def read_query(request: Request, model: type[AnyInput]) -> AnyInput:
    """
    Read the request's query parameters as the model.

    Raises:
        InvalidInputError: A parameter is unknown, repeated or invalid.
    """
    repeated = [name for name, values in request.args.lists() if len(values) > 1]
    if repeated:
        errors = [FieldError(name, "must not be repeated") for name in repeated]
        message = "Some parameters are repeated."
        raise InvalidInputError(message, errors)
    try:
        return model.model_validate_strings(request.args.to_dict())
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _refusal(details) from error


# Marks a list that a form sends as one string, with one value per line.
LINES: Final = "lines"


def read_form(request: Request, model: type[AnyInput], ignored: str) -> AnyInput:
    """
    Read the request's form as the model.

    An empty field counts as missing. A list takes one value from each field with its
    name or, if it is marked with ``LINES``, from each line of these fields.

    Args:
        request: The request.
        model: The model of the form.
        ignored: A field that every form has and that is not part of the input.

    Raises:
        RequestEntityTooLarge: The form is larger than the application's limit.
        InvalidInputError: A field is unknown or invalid.
    """
    _whole_body(request)
    fields = model.model_fields
    given: dict[str, Any] = {}
    for name, values in request.form.lists():
        if name == ignored:
            continue
        # Browsers end the lines of a form with CR and LF.
        texts = [text.replace("\r\n", "\n") for text in values]
        if name in fields and get_origin(fields[name].annotation) is list:
            if LINES in fields[name].metadata:
                texts = [line for text in texts for line in text.split("\n")]
            given[name] = [text for text in texts if text.strip()]
        elif texts[-1].strip():
            given[name] = texts[-1]
    try:
        return model.model_validate(given, strict=False)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise _refusal(details) from error


def _whole_body(request: Request) -> bytes:
    data = request.get_data()
    # werkzeug cuts off a body without a Content-Length at the limit, so a body of
    # exactly that size is refused.
    limit = request.max_content_length
    if limit is not None and request.content_length is None and len(data) >= limit:
        raise RequestEntityTooLarge
    return data


def _refusal(details: list[ErrorDetails]) -> UnreadableError | InvalidInputError:
    if details[0]["type"] == "json_invalid":
        return UnreadableError(f"The body is not JSON: {details[0]['ctx']['error']}.")
    errors = [FieldError(_field(d["loc"]), _reason(d)) for d in details]
    return InvalidInputError("Some fields are invalid.", errors)


def _field(loc: tuple[int | str, ...]) -> str:
    steps = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in loc)
    return steps.removeprefix(".") or "body"


def _reason(detail: ErrorDetails) -> str:
    return detail["msg"].removeprefix("Value error, ")


IF_MATCH: Final = "If-Match"
_ENTITY_TAG: Final = re.compile(r'(?P<weak>W/)?(?P<tag>"[\x21\x23-\x7e\x80-\xff]*")')


def etag(version: int) -> str:
    """Return the strong entity tag of a version."""
    return f'"{version}"'


class IfMatch(NamedTuple):
    """The strong entity tags that a request accepts; None accepts every version."""

    tags: frozenset[str] | None = None

    @classmethod
    def parse(cls, header: str | None) -> "IfMatch":
        """
        Read the header ``If-Match``; a missing header accepts every version.

        Raises:
            MalformedError: The header is neither ``*`` nor a list of entity tags.
        """
        if header is None or header.strip() == "*":
            return cls()
        tags: set[str] = set()
        elements = [e for e in map(str.strip, _split_tags(header)) if e]
        for element in elements:
            match = _ENTITY_TAG.fullmatch(element)
            if match is None:
                raise _malformed_if_match()
            if match["weak"] is None:
                tags.add(match["tag"])
        if not elements:
            raise _malformed_if_match()
        return cls(frozenset(tags))

    def check(self, version: int) -> None:
        """
        Compare the tags with the resource's current version, read under its lock.

        Raises:
            PreconditionFailedError: None of the tags is the current version.
        """
        if self.tags is not None and etag(version) not in self.tags:
            present = f"The resource has the version {etag(version)}"
            detail = with_remedy(present, PreconditionFailedError.remedy)
            errors = [FieldError(IF_MATCH, "names a different version")]
            raise PreconditionFailedError(detail, errors)


def _split_tags(header: str) -> list[str]:
    """Split a list at its commas; a comma within quotes belongs to its tag."""
    return re.findall(r'(?:[^,"]|"[^"]*"?)+', header)


def _malformed_if_match() -> MalformedError:
    reason = 'must be * or entity tags in quotes, such as "3"'
    return MalformedError(
        f"The header {IF_MATCH} {reason}.", [FieldError(IF_MATCH, reason)]
    )


HEADER: Final = "Towpath-Lsn"

_LSN_AFTER_COMMIT: Final = text(
    "select (case current_setting('synchronous_commit')"
    " when 'off' then pg_current_wal_insert_lsn()"
    " else pg_current_wal_flush_lsn() end)::text"
)


def written_lsn(connection: Connection) -> str | None:
    """
    Return an LSN at or after the last commit of this connection.

    Returns:
        The LSN in Postgres's form; None if the connection was lost after the commit.
    """
    try:
        lsn: str = connection.scalar(_LSN_AFTER_COMMIT)
    except DBAPIError as error:
        log.warning("LSN not read after a commit", reason=type(error.orig).__name__)
        return None
    return lsn
