"""The client of the schema registry, with a real registry and a broken one."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from support.registry import registry_client
from towpath.schemas.failure import (
    RegistryRefusedError,
    RegistryUnavailableError,
    SchemaRefusedError,
)
from towpath.schemas.registry import Reference, RegisteredSchema, SchemaRegistry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


def record(**fields: object) -> str:
    """Return the schema of a record with the given fields and types."""
    listed = [{"name": name, "type": kind} for name, kind in fields.items()]
    return json.dumps({"type": "record", "name": "Row", "fields": listed})


@pytest.fixture
def ids(stack) -> Iterator[SchemaRegistry]:
    """Provide a client of the real registry."""
    with closing(SchemaRegistry(stack.registry_url)) as registry:
        yield registry


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    """Provide a server that returns ``responses`` in turn, and records the paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            server.paths.append(self.path)
            status, body = server.responses[
                min(len(server.paths), len(server.responses)) - 1
            ]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.paths = []
    server.responses = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(server: HTTPServer) -> str:
    """Return the URL of a server."""
    return f"http://127.0.0.1:{server.server_port}"


def test_a_schema_is_registered_once(stack, ids: SchemaRegistry, unique: str):
    """
    A second client gets the same ids, and older schemas of a subject keep their ids.
    """
    first, second = record(a="int"), record(a="int", b="int")
    found = [ids(unique, schema) for schema in (first, second, first)]
    with closing(SchemaRegistry(stack.registry_url)) as other:
        repeated = [other(unique, schema) for schema in (first, second)]
    with closing(registry_client(stack.registry_url)) as client:
        versions = client.get_versions(unique)
        stored = json.loads(client.get_schema(found[1]).schema_str)

    assert ([1, 2], found[:2], found[0], json.loads(second)) == (
        versions,
        repeated,
        found[2],
        stored,
    )


def test_an_incompatible_schema_is_refused_until_the_subject_allows_it(
    stack, ids: SchemaRegistry, unique: str
):
    """
    The error names the subject; with relaxed compatibility, the schema is accepted.
    """
    first = record(a="int")
    registered = ids(unique, first)
    with closing(registry_client(stack.registry_url)) as client:
        client.set_compatibility(unique, "BACKWARD")
        with pytest.raises(SchemaRefusedError) as raised:
            ids(unique, record(a="string"))
        client.set_compatibility(unique, "NONE")
    with closing(SchemaRegistry(stack.registry_url)) as other:
        unchanged = other(unique, first)
    accepted = ids(unique, record(a="string"))

    assert (True, registered, True) == (
        f"the subject {unique}: 409" in str(raised.value),
        unchanged,
        accepted != registered,
    )


def test_an_invalid_schema_is_refused(ids: SchemaRegistry, unique: str):
    """
    A schema that the registry cannot parse is refused with its reason.
    """
    with pytest.raises(SchemaRefusedError) as raised:
        ids(unique, '{"type": "record", "name": "no-name", "fields": []}')

    assert f"the subject {unique}: 422" in str(raised.value)


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ((500, b""), RegistryUnavailableError),
        ((429, b'{"message": "slowly"}'), RegistryUnavailableError),
        ((401, b'{"message": "who"}'), RegistryRefusedError),
        ((404, b"<html>"), RegistryRefusedError),
        ((200, b"<html>"), RegistryRefusedError),
        ((200, b"[1]"), RegistryRefusedError),
    ],
)
def test_every_registry_error_has_its_failure_class(server, response, error):
    """
    Transient errors and permanent ones have different classes.
    """
    server.responses = [response]
    with closing(SchemaRegistry(url(server))) as ids, pytest.raises(error) as raised:
        ids("s", "{}")

    assert type(raised.value) is error


@pytest.mark.parametrize(
    "numbers", [b'{"1": 2}', b'["new"]', b"[null]", b"[[1]]", b"[1.5]"]
)
def test_versions_that_are_not_numbers_are_refused(server, numbers):
    """
    A server that returns any other list at this path is not a schema registry.
    """
    server.responses = [(200, numbers)]
    with (
        closing(SchemaRegistry(url(server))) as registry,
        pytest.raises(RegistryRefusedError, match="is not a schema registry"),
    ):
        registry.versions("s")


@pytest.mark.parametrize(
    "fields",
    [
        {"schema": 7},
        {"schemaType": 7},
        {"references": 7},
        {"references": ["s"]},
        {"references": [{"subject": "s"}]},
        {"references": [{"version": 1}]},
        {"references": [{"subject": "s", "version": "1"}]},
        {"references": [{"subject": 1, "version": 1}]},
    ],
)
def test_a_version_with_malformed_fields_is_refused(server, fields):
    """
    A server that returns any other object at this path is not a schema registry.
    """
    server.responses = [(200, json.dumps({"schema": "{}"} | fields).encode())]
    with (
        closing(SchemaRegistry(url(server))) as registry,
        pytest.raises(RegistryRefusedError, match="is not a schema registry"),
    ):
        registry.schema("s", 1)


def test_a_version_of_a_subject_has_the_references_of_its_schema(server):
    """
    Registries state the type of a schema only if it is not Avro.
    """
    named = {"name": "a.b", "subject": "s", "version": 2}
    documents = (
        {"schema": "{}", "references": [named]},
        {"schema": "x", "schemaType": "PROTOBUF", "references": None},
    )
    server.responses = [(200, json.dumps(each).encode()) for each in documents]
    with closing(SchemaRegistry(url(server))) as registry:
        found = [registry.schema("s", version) for version in (1, 2)]

    assert [
        RegisteredSchema("{}", "AVRO", (Reference("s", 2),)),
        RegisteredSchema("x", "PROTOBUF", ()),
    ] == found


def test_a_known_schema_is_not_requested_again(server):
    """
    There is one lookup per schema and subject, and one registration if none is found.
    """
    server.responses = [(404, b"{}"), (200, b'{"id": 7}')]
    with closing(SchemaRegistry(url(server))) as ids:
        found = [ids("a/b", "{}") for _ in range(3)]

    assert ([7, 7, 7], ["/subjects/a%2Fb", "/subjects/a%2Fb/versions"]) == (
        found,
        server.paths,
    )


def test_an_unreachable_or_hanging_registry_is_unavailable():
    """
    Neither error contains the password.
    """
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        address = f"http://me:secret@127.0.0.1:{hanging.getsockname()[1]}"
        with (
            closing(SchemaRegistry(address, timeout_s=0.2)) as ids,
            pytest.raises(RegistryUnavailableError) as silent,
        ):
            ids("s", "{}")
    with (
        closing(SchemaRegistry(address)) as ids,
        pytest.raises(RegistryUnavailableError) as closed,
    ):
        ids("s", "{}")

    assert (
        "the schema registry cannot be reached: ReadTimeout",
        "the schema registry cannot be reached: ConnectionError",
    ) == (str(silent.value), str(closed.value))


@pytest.mark.parametrize("address", ["127.0.0.1:8081", "redis://127.0.0.1", "http://"])
def test_an_invalid_registry_address_is_a_permanent_error(address: str):
    """
    The error for an invalid address is permanent.
    """
    with (
        closing(SchemaRegistry(address)) as ids,
        pytest.raises(RegistryRefusedError) as caught,
    ):
        ids("s", "{}")

    assert "not a valid URL" in str(caught.value)
