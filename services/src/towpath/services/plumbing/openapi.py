"""
The OpenAPI 3.1 document of a service, at ``GET /openapi.json``.

A route declares its body, query and response next to its function. Summaries come
from the functions' docstrings, schemas from pydantic's models, and path parameters from
the converters in the path. An application with a route that declares nothing is refused
when it is created, so the document has every operation. Pages for people and
``/metrics`` are not operations: blueprints that are listed as pages are left out, and
``/metrics`` is added after the document is generated.

Every refusal is a problem document. The refusals of a route follow from its
declaration: a body can be unreadable, a resource unknown, a version outdated.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from flask import Blueprint, Flask, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema
from werkzeug.routing import Rule

from towpath.services.plumbing import http, idempotency
from towpath.services.plumbing.pagination import PageQuery
from towpath.services.plumbing.tracing import REQUEST_ID

OPENAPI: Final = "3.1.0"
PATH: Final = "/openapi.json"
_REF: Final = "#/components/schemas/{model}"
_MAX_BIGINT: Final = 2**63 - 1
_CONVERTERS: Final[dict[str, dict[str, Any]]] = {
    "bigint": {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": _MAX_BIGINT,
    },
    "uuid": {"type": "string", "format": "uuid"},
}
_IN_PATH: Final = re.compile(r"<(?:(?P<converter>\w+):)?(?P<name>\w+)>")

AnyView = TypeVar("AnyView", bound=Callable[..., object])


class Document(BaseModel):
    """A document that a service returns, without undeclared fields."""

    model_config = ConfigDict(extra="forbid")


class InvalidField(Document):
    """An invalid field, and the reason."""

    field: str
    reason: str


class ProblemDocument(Document):
    """A refusal (RFC 9457)."""

    type: str = Field(pattern="^urn:towpath:problem:", description="The problem type.")
    title: str
    status: int = Field(ge=400, le=599)
    detail: str = Field(description="One sentence, and the remedy, if any.")
    errors: list[InvalidField] = Field(default=[], description="All invalid fields.")


class HealthDocument(Document):
    """The state of a service that is live, or ready."""

    status: str


class AnyDocument(BaseModel):
    """An OpenAPI document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    The declaration of a route.

    Attributes:
        response: The model of its response.
        status: The status of its response.
        body: The model of its body.
        body_optional: Whether the body may be missing.
        query: The model of its query parameters.
        is_command: Whether it changes state. A command takes an idempotency key, and
            its response has an LSN.
        has_version: Whether its resource has a version. The response then has an
            ``ETag``, and a command takes ``If-Match``.
        waits: Whether it takes an LSN, and waits until the sinks have applied it.
        needs_database: Whether it fails while the database is unavailable.
        problems: The statuses of its other refusals.
    """

    response: type[BaseModel]
    status: HTTPStatus = HTTPStatus.OK
    body: type[BaseModel] | None = None
    body_optional: bool = False
    query: type[BaseModel] | None = None
    is_command: bool = False
    has_version: bool = False
    waits: bool = False
    needs_database: bool = True
    problems: tuple[HTTPStatus, ...] = ()

    def refusals(self, *, in_path: bool) -> set[HTTPStatus]:
        """Return the statuses of all its refusals."""
        found = {HTTPStatus.INTERNAL_SERVER_ERROR, *self.problems}
        if in_path:
            found.add(HTTPStatus.NOT_FOUND)
        if self.needs_database:
            found.add(HTTPStatus.SERVICE_UNAVAILABLE)
        if self.is_command or self.query:
            found.add(HTTPStatus.UNPROCESSABLE_ENTITY)
        if self.query or self.has_version:
            found.add(HTTPStatus.BAD_REQUEST)
        if self.body:
            found |= {
                HTTPStatus.BAD_REQUEST,
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                HTTPStatus.UNPROCESSABLE_ENTITY,
            }
        if self.waits:
            found |= {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED}
        if self.has_version and self.is_command:
            found.add(HTTPStatus.PRECONDITION_FAILED)
        return found


@dataclass(frozen=True, slots=True)
class Operations:
    """The declarations of a blueprint's routes, by endpoint."""

    blueprint: str
    declared: dict[str, Operation] = field(default_factory=dict)

    def add(self, operation: Operation) -> Callable[[AnyView], AnyView]:
        """Declare the decorated function's route."""

        def declare(view: AnyView) -> AnyView:
            self.declared[f"{self.blueprint}.{view.__name__}"] = operation
            return view

        return declare


_HEALTH: Final = {
    "health.live": Operation(response=HealthDocument, needs_database=False),
    "health.ready": Operation(response=HealthDocument),
    "openapi.document": Operation(response=AnyDocument, needs_database=False),
}


def install_openapi(
    app: Flask, title: str, *routes: Operations, pages: Collection[str] = ()
) -> None:
    """
    Add the route of the document, after all others.

    Args:
        app: The application, with all its routes.
        title: The name of the service in the document.
        routes: The declarations of its routes.
        pages: The names of blueprints whose routes return pages.

    Raises:
        LookupError: A route declares nothing.
    """
    blueprint = Blueprint("openapi", __name__)
    whole: dict[str, Any] = {}

    @blueprint.get(PATH)
    def document() -> Response:
        """Return this document."""
        return http.json_response(HTTPStatus.OK, whole)

    app.register_blueprint(blueprint)
    declared = dict(_HEALTH)
    for operations in routes:
        declared |= operations.declared
    whole |= _document(app, title, declared, pages)


def _document(
    app: Flask,
    title: str,
    declared: Mapping[str, Operation],
    pages: Collection[str],
) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        if rule.endpoint.partition(".")[0] in pages:
            continue
        operation = declared.get(rule.endpoint)
        if operation is None:
            message = f"The route {rule.rule} declares no operation."
            raise LookupError(message)
        methods = (rule.methods or set()) - {"HEAD", "OPTIONS"}
        view = app.view_functions[rule.endpoint]
        for method in methods:
            path = paths.setdefault(_IN_PATH.sub(r"{\g<name>}", rule.rule), {})
            path[method.lower()] = _operation(rule, operation, inspect.getdoc(view))
    used = declared.values()
    return {
        "openapi": OPENAPI,
        "info": {"title": title, "version": "1", "description": _DESCRIPTION},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": _schemas(used),
            "headers": _HEADERS,
            "responses": _problems(used),
        },
    }


def _operation(rule: Rule, operation: Operation, doc: str | None) -> dict[str, Any]:
    in_path = _path_parameters(rule)
    described: dict[str, Any] = {
        "operationId": rule.endpoint.replace(".", "_"),
        "tags": [rule.endpoint.partition(".")[0]],
        "summary": (doc or "").partition("\n")[0].rstrip("."),
        "parameters": [
            *in_path,
            *_query_parameters(operation.query),
            *_header_parameters(operation),
        ],
        "responses": {
            str(operation.status.value): _response(operation),
            **{
                str(status.value): {"$ref": f"#/components/responses/{status.name}"}
                for status in sorted(operation.refusals(in_path=bool(in_path)))
            },
        },
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": not operation.body_optional,
            "content": {"application/json": {"schema": _reference(operation.body)}},
        }
    return described


def _path_parameters(rule: Rule) -> list[dict[str, Any]]:
    return [
        {
            "name": found["name"],
            "in": "path",
            "required": True,
            "schema": _CONVERTERS[found["converter"]],
        }
        for found in _IN_PATH.finditer(rule.rule)
    ]


def _query_parameters(model: type[BaseModel] | None) -> list[dict[str, Any]]:
    if model is None:
        return []
    schema = model.model_json_schema(ref_template=_REF)
    required = schema.get("required", [])
    found = []
    for name, value in schema["properties"].items():
        # A query cannot express null: a parameter that may be null is optional.
        kinds = [k for k in value.get("anyOf", []) if k != {"type": "null"}]
        kept = {k: v for k, v in value.items() if k not in ("anyOf", "title")}
        if kept.get("default", "") is None:
            del kept["default"]
        described = (
            {"description": kept.pop("description")} if "description" in kept else {}
        )
        parameter = {"name": name, "in": "query", "required": name in required}
        found.append(
            {**parameter, **described, "schema": kept | (kinds[0] if kinds else {})}
        )
    return found


def _header_parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    yield _header_parameter(
        REQUEST_ID,
        "The id of the request in logs. An invalid one is replaced.",
        {"type": "string"},
    )
    yield _header_parameter(
        "traceparent",
        "The W3C trace context. An invalid one is dropped.",
        {"type": "string"},
    )
    if operation.is_command:
        yield _header_parameter(
            idempotency.HEADER,
            _IDEMPOTENCY,
            {"type": "string", "pattern": "^[!-~]{1,200}$"},
        )
    if operation.waits:
        yield _header_parameter(http.HEADER, _WAITS, _LSN)
    if operation.is_command and operation.has_version:
        yield _header_parameter(
            http.IF_MATCH,
            "The ETag of the version that the command expects, or several, or `*`.",
            {"type": "string", "pattern": _IF_MATCH, "examples": ['"3"']},
        )


def _header_parameter(
    name: str, description: str, schema: Mapping[str, Any]
) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


_DESCRIPTION: Final = (
    "A request that is not HTTP, or whose first line or headers are too long, is"
    " refused by the server with 400, 414 or 431 before it reaches an operation; such"
    " a response is HTML and has no request id. A method that a path does not support"
    " is refused with 405 and `Allow`. `HEAD` is supported wherever `GET` is;"
    " `OPTIONS` is supported everywhere."
)
_IDEMPOTENCY: Final = (
    "A key that the client chooses for the request: with the same key, method, path and"
    " body the command is executed once, and its response is repeated with"
    " `Idempotent-Replayed: true`. While the first request is in progress, a second one"
    " waits for at most five seconds; then it is refused with 503 and `Retry-After`."
    " A key that was used for a different request is refused with 422. A failed request"
    " leaves no key. A key is kept for 24 hours unless the service is configured"
    " otherwise."
)
_WAITS: Final = (
    "The LSN from a write's response: the read waits until its targets have applied the"
    " write. If that takes too long, the read is refused with 503 and `Retry-After`."
)
_LSN: Final = {"type": "string", "pattern": "^[0-9A-F]{1,8}/[0-9A-F]{1,8}$"}
# The tags that services issue; RFC 9110 allows more forms.
_IF_MATCH: Final = r'^(\*|"[0-9]+"( *, *"[0-9]+")*)$'
_HEADERS: Final[dict[str, Any]] = {
    REQUEST_ID: {
        "description": "The id of the request, which is also in its log records.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    },
    http.HEADER: {
        "description": "An LSN at or after the end of the commit.",
        "schema": _LSN,
    },
    idempotency.REPLAYED: {
        "description": "Present if the response repeats that of an earlier request.",
        "schema": {"const": "true"},
    },
    "Location": {
        "description": "The path of the new resource.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds until a retry may succeed.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "ETag": {
        "description": "The version of the resource, for If-Match.",
        "required": True,
        "schema": {"type": "string", "pattern": '^"[0-9]+"$'},
    },
    "Link": {
        "description": "The next page, as `next`; missing on the last page.",
        "schema": {"type": "string"},
    },
}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _response(operation: Operation) -> dict[str, Any]:
    names = [REQUEST_ID]
    if operation.is_command:
        names += [http.HEADER, idempotency.REPLAYED]
    if operation.status is HTTPStatus.CREATED:
        names.append("Location")
    if operation.has_version:
        names.append("ETag")
    if operation.query is not None and issubclass(operation.query, PageQuery):
        names.append("Link")
    return {
        "description": operation.status.phrase,
        "headers": _headers(*names),
        "content": {"application/json": {"schema": _reference(operation.response)}},
    }


def _problems(operations: Iterable[Operation]) -> dict[str, Any]:
    """Describe each refusal once; operations refer to it by its status's name."""
    used: set[HTTPStatus] = set()
    for operation in operations:
        used |= operation.refusals(in_path=True)
    found = {}
    for status in sorted(used):
        is_temporary = status is HTTPStatus.SERVICE_UNAVAILABLE
        more = ["Retry-After"] if is_temporary else []
        found[status.name] = {
            "description": status.phrase,
            "headers": _headers(REQUEST_ID, *more),
            "content": {http.MEDIA_TYPE: {"schema": _reference(ProblemDocument)}},
        }
    return found


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _schemas(operations: Iterable[Operation]) -> dict[str, Any]:
    models: dict[type[BaseModel], None] = {ProblemDocument: None}
    for operation in operations:
        for model in (operation.response, operation.body, operation.query):
            if model is not None:
                models[model] = None
    _, schema = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REF
    )
    found: dict[str, Any] = schema["$defs"]
    return dict(sorted(found.items()))
