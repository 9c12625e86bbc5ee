"""A receiver that keeps OpenLineage events sent over HTTP, and the events' rules."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from support.waiting import until
from towpath.deploy.local.ports import LOOPBACK

_TEXT: Final = {"type": "string", "minLength": 1}
_URI: Final = {"type": "string", "pattern": "^(https://|urn:)"}
_NAMED: Final = {"namespace": _TEXT, "name": _TEXT}


def _facet(**known: Any) -> dict[str, Any]:
    """Describe a facet: every one has its producer and its schema."""
    return {
        "type": "object",
        "required": ["_producer", "_schemaURL", *known],
        "properties": {"_producer": _URI, "_schemaURL": _URI, **known},
    }


def _facets(**known: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": known, "additionalProperties": _facet()}


_FIELDS: Final = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["name", "type"],
        "properties": {"name": _TEXT, "type": _TEXT},
    },
}
_INPUT_FIELDS: Final = {
    "type": "object",
    "required": ["inputFields"],
    "properties": {
        "inputFields": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["namespace", "name", "field"],
                "properties": {**_NAMED, "field": _TEXT},
            },
        }
    },
}
_DATASETS: Final = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["namespace", "name"],
        "properties": {
            **_NAMED,
            "facets": _facets(
                schema=_facet(fields=_FIELDS),
                columnLineage=_facet(
                    fields={"type": "object", "additionalProperties": _INPUT_FIELDS}
                ),
            ),
        },
    },
}
# The rules of OpenLineage 2-0-2 for run events, and for the facets used here.
SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["eventTime", "eventType", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventTime": {"type": "string", "format": "date-time"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL"]},
        "producer": _URI,
        "schemaURL": {
            "pattern": r"^https://openlineage\.io/spec/2-0-\d/OpenLineage\.json#/"
        },
        "run": {
            "type": "object",
            "required": ["runId"],
            "properties": {
                "runId": {"type": "string", "format": "uuid"},
                "facets": _facets(
                    errorMessage=_facet(message=_TEXT, programmingLanguage=_TEXT)
                ),
            },
        },
        "job": {
            "type": "object",
            "required": ["namespace", "name"],
            "properties": {
                **_NAMED,
                "facets": _facets(
                    jobType=_facet(processingType=_TEXT, integration=_TEXT)
                ),
            },
        },
        "inputs": _DATASETS,
        "outputs": _DATASETS,
    },
}


def mistakes_of(event: Mapping[str, Any]) -> list[str]:
    """List an event's violations of the rules."""
    # The import takes more than a second, in each process that collects the tests.
    from jsonschema import Draft202012Validator, FormatChecker  # noqa: PLC0415

    validator = Draft202012Validator(SCHEMA, format_checker=FormatChecker())
    return [error.message for error in validator.iter_errors(event)]


class LineageReceiver:
    """
    The events that were accepted, and the paths of all requests.

    Attributes:
        status: The status of the next responses.
        paths: The paths of all requests.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 201
        self.paths: set[str] = set()
        self.events: list[dict[str, Any]] = []

    def of(self, job: str) -> list[dict[str, Any]]:
        """Return the events of a job."""
        return [event for event in self.events if event["job"]["name"] == job]

    def states(self, job: str) -> list[str]:
        """Return the states of a job's runs, in order, without consecutive repeats."""
        found = [event["eventType"] for event in self.of(job)]
        return [one for n, one in enumerate(found) if [one] != found[n - 1 : n]]

    def wait_for(self, job: str, state: str, timeout_s: float = 60.0) -> None:
        """Wait until a job has reached a state."""
        until(
            lambda: state in self.states(job),
            lambda: f"{job} is {state}: {self.states(job)}",
            timeout_s=timeout_s,
        )


@contextmanager
def lineage_receiver() -> Iterator[LineageReceiver]:
    """Run a receiver on a free port for the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.paths.add(self.path)
            if receiver.status < 300:
                receiver.events.append(json.loads(body))
            self.send_response(receiver.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    receiver = LineageReceiver(f"http://{LOOPBACK}:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
