"""
A stand-in for what Spark uses of Kubernetes' API server; pods are processes.

It keeps pods, lists and watches them by selectors, starts the command of each created
pod with its variables, and ends it with its pod. It allows only what a role permits.
"""

import json
import re
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from towpath.deploy.local.ports import LOOPBACK

Pod = dict[str, Any]

_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?")
_ENDED_WITHIN_S = 60.0
_TERM = re.compile(r"([\w./-]+)(?:\s+in\s+\(([^)]*)\)|(!?=)([^,]*))")


@dataclass
class _Event:
    kind: str
    pod: Pod


@dataclass
class PodServer:
    """
    The pods of a namespace, and the calls that were made.

    Attributes:
        folder: The folder of the pods' volumes and logs.
        image: The environment variables of the image.
        verbs: The verbs that are permitted on pods; everything else is refused.
        requested: The verbs of all calls, each with its kind of object.
        created: The pods as they were created.
    """

    folder: Path
    image: Mapping[str, str]
    verbs: frozenset[str]
    requested: set[tuple[str, str]] = field(default_factory=set)
    created: list[Pod] = field(default_factory=list)
    _pods: dict[str, Pod] = field(default_factory=dict)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _events: list[_Event] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_closed: bool = False

    def add_running(self, namespace: str, name: str) -> None:
        """Add a pod that is already running: the driver's."""
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        metadata = {"name": name, "namespace": namespace, "uid": str(uuid.uuid4())}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        self._store("ADDED", {**pod, "spec": {}, "status": status})

    def names(self) -> list[str]:
        """List the pods that were created and not deleted."""
        with self._changed:
            return sorted(self._processes.keys() & self._pods.keys())

    def log(self) -> str:
        """Return the output of all pods."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(log.read_text(encoding="utf-8") for log in logs)

    def kill(self, name: str) -> None:
        """Kill the process of a pod."""
        self._processes[name].kill()

    def create(self, namespace: str, pod: Pod) -> Pod:
        """Start a pod's process."""
        self.created.append(json.loads(json.dumps(pod)))
        pod["metadata"].update(namespace=namespace, uid=str(uuid.uuid4()))
        pod["status"] = {"phase": "Running"}
        name = pod["metadata"]["name"]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                **self._process_of(pod), stdout=log, stderr=subprocess.STDOUT
            )
        self._processes[name] = process
        self._store("ADDED", pod)
        threading.Thread(target=self._record_end, args=(name, process)).start()
        return pod

    def delete(self, name: str) -> None:
        """End a pod's process, and forget the pod."""
        process = self._processes.get(name)
        if process is not None:
            process.send_signal(signal.SIGTERM)
            process.wait(_ENDED_WITHIN_S)
        with self._changed:
            pod = self._pods.pop(name, None)
        if pod is not None:
            self._announce("DELETED", pod)

    def patch(self, name: str, change: Pod) -> Pod:
        """Change labels and annotations of a pod."""
        pod = json.loads(json.dumps(self._pods[name]))
        for key in ("labels", "annotations"):
            pod["metadata"].setdefault(key, {}).update(
                change.get("metadata", {}).get(key, {})
            )
        self._store("MODIFIED", pod)
        return pod

    def get(self, name: str) -> Pod | None:
        """Return a pod."""
        return self._pods.get(name)

    def selected(self, wanted: Callable[[Pod], bool]) -> tuple[list[Pod], int]:
        """Return the wanted pods, and the number of the last event."""
        with self._changed:
            return [p for p in self._pods.values() if wanted(p)], len(self._events)

    def events(self, after: int, wanted: Callable[[Pod], bool]) -> Iterator[_Event]:
        """Yield the events of wanted pods, until the server is closed."""
        while True:
            with self._changed:
                while len(self._events) <= after and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                fresh, after = self._events[after:], len(self._events)
            yield from (event for event in fresh if wanted(event.pod))

    def close(self) -> None:
        """Kill all processes."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        for process in self._processes.values():
            process.kill()
            process.wait(_ENDED_WITHIN_S)

    def _process_of(self, pod: Pod) -> dict[str, Any]:
        """Return a pod's only container as arguments of ``Popen``."""
        (container,) = pod["spec"]["containers"]
        volumes = {}
        for mount in container["volumeMounts"]:
            folder = self.folder / pod["metadata"]["name"] / mount["name"]
            folder.mkdir(parents=True)
            volumes[mount["mountPath"]] = str(folder)
        fields = {"status.podIP": LOOPBACK, "metadata.name": pod["metadata"]["name"]}
        given = {}
        for entry in container["env"]:
            source = entry.get("valueFrom")
            path = source and source["fieldRef"]["fieldPath"]
            text = fields[path] if source else entry.get("value", "")
            given[entry["name"]] = volumes.get(text, text)
        return {
            "args": [*container["command"], *container["args"]],
            "env": {**self.image, **given, "TMPDIR": volumes["/tmp"]},  # noqa: S108 - of the pod
            "cwd": volumes[container["workingDir"]],
        }

    def _record_end(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._changed:
            pod = self._pods.get(name)
        if pod is None or self._is_closed:
            return
        state = {"terminated": {"exitCode": code & 0xFF}}
        phase = "Failed" if code else "Succeeded"
        container = pod["spec"]["containers"][0]["name"]
        statuses = [{"name": container, "state": state}]
        status = {"phase": phase, "containerStatuses": statuses}
        self._store("MODIFIED", {**pod, "status": status})

    def _store(self, kind: str, pod: Pod) -> None:
        with self._changed:
            self._pods[pod["metadata"]["name"]] = pod
        self._announce(kind, pod)

    def _announce(self, kind: str, pod: Pod) -> None:
        with self._changed:
            version = str(len(self._events) + 1)
            pod["metadata"]["resourceVersion"] = version
            self._events.append(_Event(kind, json.loads(json.dumps(pod))))
            self._changed.notify_all()


def _selects(query: Mapping[str, list[str]]) -> Callable[[Pod], bool]:
    """Return a function that tests whether a pod has a query's labels and fields."""
    labels = list(_TERM.finditer(query.get("labelSelector", [""])[0]))
    fields = list(_TERM.finditer(query.get("fieldSelector", [""])[0]))

    def holds(term: re.Match[str], found: str | None) -> bool:
        if term[2] is not None:
            return found in [value.strip() for value in term[2].split(",")]
        return (found == term[4]) is (term[3] == "=")

    def wanted(pod: Pod) -> bool:
        own = pod["metadata"].get("labels", {})
        known = {
            "metadata.name": pod["metadata"]["name"],
            "status.phase": pod["status"]["phase"],
        }
        return all(holds(term, own.get(term[1])) for term in labels) and all(
            holds(term, known[term[1]]) for term in fields
        )

    return wanted


class _Handler(BaseHTTPRequestHandler):
    """Serves Spark's client."""

    protocol_version = "HTTP/1.1"
    pods: PodServer

    def handle_call(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length)) if length else {}
        address = urlsplit(self.path)
        found = _PATH.fullmatch(address.path)
        query = parse_qs(address.query)
        if found is None:
            self._refuse(404, "NotFound")
            return
        namespace, kind, name = found.groups()
        verb = self._verb(name, query)
        self.pods.requested.add((verb, kind))
        if kind != "pods" or verb not in self.pods.verbs:
            self._refuse(403, "Forbidden")
        elif self.headers.get("upgrade"):
            # The client then retries without a WebSocket.
            self._refuse(503, "ServiceUnavailable")
        elif verb == "watch":
            self._watch(query)
        elif name is not None:
            self._handle_one(name, body)
        elif verb == "create":
            self._respond(self.pods.create(namespace, body), 201)
        else:
            self._handle_all(verb, query)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_call  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _verb(self, name: str | None, query: Mapping[str, list[str]]) -> str:
        if self.command == "GET" and name is None:
            return "watch" if query.get("watch") == ["true"] else "list"
        if self.command == "DELETE" and name is None:
            return "deletecollection"
        verbs = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
        return verbs[self.command]

    def _handle_one(self, name: str, body: Pod) -> None:
        pod = self.pods.get(name)
        if pod is None:
            self._refuse(404, "NotFound")
            return
        if self.command == "PATCH":
            pod = self.pods.patch(name, body)
        elif self.command == "DELETE":
            self.pods.delete(name)
        self._respond(pod)

    def _handle_all(self, verb: str, query: Mapping[str, list[str]]) -> None:
        found, version = self.pods.selected(_selects(query))
        if verb == "deletecollection":
            for pod in found:
                self.pods.delete(pod["metadata"]["name"])
        metadata = {"resourceVersion": str(version)}
        listed = {"apiVersion": "v1", "kind": "PodList", "metadata": metadata}
        self._respond({**listed, "items": found})

    def _watch(self, query: Mapping[str, list[str]]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        after = int(query.get("resourceVersion", ["0"])[0])
        try:
            for event in self.pods.events(after, _selects(query)):
                line = json.dumps({"type": event.kind, "object": event.pod})
                self.wfile.write(line.encode() + b"\n")
                self.wfile.flush()
        except OSError:
            # The client has disconnected.
            return

    def _refuse(self, code: int, reason: str) -> None:
        status = {"apiVersion": "v1", "kind": "Status", "status": "Failure"}
        self._respond({**status, "code": code, "reason": reason}, code)

    def _respond(self, document: Pod, code: int = 200) -> None:
        content = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(pods: PodServer) -> Iterator[str]:
    """Provide the server's address."""
    handler = type("Handler", (_Handler,), {"pods": pods})
    server = ThreadingHTTPServer((LOOPBACK, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{LOOPBACK}:{server.server_port}"
    finally:
        pods.close()
        server.shutdown()
        server.server_close()
