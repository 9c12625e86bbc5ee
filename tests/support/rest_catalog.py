"""
A server of the REST catalog API, with the calls that the warehouse makes.

Tables and views are in memory, their metadata in files. Commits are checked with
pyiceberg's own requirements, so that conflicts are detected.
"""

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata

_NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
ENDPOINTS = [
    "POST /v1/{prefix}/namespaces",
    f"GET {_NAMESPACE}",
    *(f"POST {_NAMESPACE}/{kind}" for kind in ("tables", "views")),
    *(f"GET {_NAMESPACE}/{kind}s/{{{kind}}}" for kind in ("table", "view")),
    *(f"POST {_NAMESPACE}/{kind}s/{{{kind}}}" for kind in ("table", "view")),
]


class RefusedError(Exception):
    """A response with an error status."""

    def __init__(self, status, kind):
        super().__init__(kind)
        self.status = status
        self.kind = kind


class Catalog:
    """The tables and views of the server."""

    def __init__(self, folder: Path, token: str):
        self._folder = folder
        self._token = token
        self._lock = threading.Lock()
        self._namespaces = set()
        self._metadata = {}
        self._files = {}
        self.requests = 0

    def admit(self, presented):
        """Refuse a client without the token."""
        if self._token and presented != f"Bearer {self._token}":
            raise RefusedError(401, "NotAuthorizedException")

    def answer(self, method, path, body):
        """Process one request."""
        steps = [unquote(step) for step in path.strip("/").split("/")[1:]]
        verbs = {
            ("POST", "namespaces", 1): lambda: self._create_namespace(body),
            ("GET", "namespaces", 2): lambda: self._namespace(steps[1]),
            ("POST", "tables", 3): lambda: self._create_table(steps[1], body),
            ("POST", "views", 3): lambda: self._create_view(steps[1], body),
            ("GET", "tables", 4): lambda: self._load(tuple(steps[1:])),
            ("GET", "views", 4): lambda: self._load(tuple(steps[1:])),
            ("POST", "tables", 4): lambda: self._commit(tuple(steps[1:]), body),
            ("POST", "views", 4): lambda: self._replace_view(tuple(steps[1:]), body),
            ("GET", "config", 1): lambda: {
                "defaults": {},
                "overrides": {},
                "endpoints": ENDPOINTS,
            },
        }
        about = steps[2] if steps[2:] else steps[0]
        verb = verbs.get((method, about, len(steps)))
        if verb is None:
            raise RefusedError(406, "UnsupportedOperationException")
        with self._lock:
            self.requests += 1
            return verb()

    def _create_namespace(self, body):
        (name,) = body["namespace"]
        if name in self._namespaces:
            raise RefusedError(409, "AlreadyExistsException")
        self._namespaces.add(name)
        return {"namespace": [name], "properties": {}}

    def _namespace(self, name):
        if name not in self._namespaces:
            raise RefusedError(404, "NoSuchNamespaceException")
        return {"namespace": [name], "properties": {}}

    def _create_table(self, namespace, body):
        key = (namespace, "tables", body["name"])
        if key in self._metadata:
            raise RefusedError(409, "AlreadyExistsException")
        spec = body.get("partition-spec")
        metadata = new_table_metadata(
            schema=Schema.model_validate(body["schema"]),
            partition_spec=(
                PartitionSpec.model_validate(spec)
                if spec
                else UNPARTITIONED_PARTITION_SPEC
            ),
            sort_order=UNSORTED_SORT_ORDER,
            location=body.get("location") or f"file://{self._folder}/{'/'.join(key)}",
            properties=body.get("properties", {}),
        )
        if body.get("stage-create"):
            return {"metadata": metadata.model_dump(mode="json")}
        return self._keep(key, metadata)

    def _commit(self, key, body):
        if key not in self._metadata:
            raise RefusedError(404, "NoSuchTableException")
        request = CommitTableRequest.model_validate(
            {"identifier": {"namespace": [key[0]], "name": key[2]}, **body}
        )
        found = self._metadata[key]
        try:
            for requirement in request.requirements:
                requirement.validate(found)
        except CommitFailedException as error:
            raise RefusedError(409, "CommitFailedException") from error
        return self._keep(key, update_table_metadata(found, request.updates))

    def _keep(self, key, metadata):
        self._metadata[key] = metadata
        return self._written(key)

    def _load(self, key):
        if key not in self._metadata:
            kind = "View" if "views" in key else "Table"
            raise RefusedError(404, f"NoSuch{kind}Exception")
        # An unchanged file shows a client that it has the newest version.
        return self._files[key]

    def _written(self, key):
        found = self._metadata[key]
        is_view = isinstance(found, dict)
        metadata = found if is_view else json.loads(found.model_dump_json())
        file = self._folder / f"{'-'.join(key)}-{uuid.uuid4().hex}.metadata.json"
        file.write_text(json.dumps(metadata), encoding="utf-8")
        document = {"metadata-location": f"file://{file}", "metadata": metadata}
        self._files[key] = document
        return document

    def _create_view(self, namespace, body):
        key = (namespace, "views", body["name"])
        if key in self._metadata:
            raise RefusedError(409, "AlreadyExistsException")
        version = body["view-version"]
        schema = body["schema"] | {"schema-id": 0}
        version |= {"version-id": 1, "schema-id": 0}
        self._metadata[key] = {
            "view-uuid": str(uuid.uuid4()),
            "format-version": 1,
            "location": f"file://{self._folder}/{'/'.join(key)}",
            "schemas": [schema],
            "current-version-id": 1,
            "versions": [version],
            "version-log": [{"version-id": 1, "timestamp-ms": version["timestamp-ms"]}],
            "properties": body.get("properties", {}),
        }
        return self._written(key)

    def _replace_view(self, key, body):
        view = json.loads(json.dumps(self._metadata[key]))
        for update in body["updates"]:
            if update["action"] == "add-schema":
                number = len(view["schemas"])
                view["schemas"].append(update["schema"] | {"schema-id": number})
            elif update["action"] == "add-view-version":
                version = update["view-version"]
                if version["schema-id"] == -1:
                    version["schema-id"] = len(view["schemas"]) - 1
                version["version-id"] = len(view["versions"]) + 1
                view["versions"].append(version)
        newest = view["versions"][-1]
        view["current-version-id"] = newest["version-id"]
        view["version-log"].append(
            {
                "version-id": newest["version-id"],
                "timestamp-ms": newest["timestamp-ms"],
            }
        )
        self._metadata[key] = view
        return self._written(key)


@contextmanager
def serving(folder: Path, token: str = "") -> Iterator[tuple[str, Catalog]]:
    """
    Provide the address of a catalog.

    Args:
        folder: The folder of its files.
        token: The token that a client must present; if empty, none is required.
    """
    catalog = Catalog(folder, token)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or "{}")
            try:
                status = 200
                catalog.admit(self.headers.get("Authorization"))
                answer = catalog.answer(self.command, urlsplit(self.path).path, body)
            except RefusedError as error:
                status = error.status
                answer = {
                    "error": {
                        "message": error.kind,
                        "type": error.kind,
                        "code": status,
                    }
                }
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815 - the server's names

        def log_message(self, *_):
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", catalog
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
