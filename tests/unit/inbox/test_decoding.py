"""Which payloads are taken as Avro, and what a missing or silent registry means."""

import importlib
import json
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from support.inbox_place import event
from towpath.inbox import avro
from towpath.inbox.avro import AvroDecoder
from towpath.schemas.failure import UnavailableError, UsageError

FRAMED = b"\0\0\0\0\1\2"


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain"])
def test_a_payload_without_avro_is_json(content_type):
    """
    The registry is not needed for it.
    """
    headers = {} if content_type is None else {"content-type": content_type}
    with closing(AvroDecoder({"url": "http://127.0.0.1:1"})) as decode:
        found = event(value=b'{"a": [1]}', headers=headers, decode=decode)
        gone = event(value=None, headers=headers, decode=decode)

        assert ({"a": [1]}, None) == (found.payload, gone.payload)


@pytest.mark.parametrize("content_type", ["application/json", "avro/binary"])
def test_a_tombstone_has_no_payload_in_any_form(content_type):
    """
    Even if the decoder is called without the event's own check.
    """
    gone = event(value=None, headers={"content-type": content_type})
    with closing(AvroDecoder({"url": "http://127.0.0.1:1"})) as decode:
        assert None is decode(gone)


@pytest.mark.parametrize(
    "found",
    [
        event(value=FRAMED),
        event(value=FRAMED, headers={"content-type": "application/octet-stream"}),
        event(value=b"\0\1", headers={"content-type": "application/json"}),
        event(value=b"{}", headers={"content-type": "application/vnd.apache.AVRO"}),
    ],
    ids=["framed", "framed, as bytes", "begins as no JSON does", "by its header"],
)
def test_a_payload_in_avro_is_not_read_as_json(found):
    """
    Its own form or its header says so.
    """
    with (
        closing(AvroDecoder({"url": "http://127.0.0.1:1"})) as decode,
        pytest.raises((UnavailableError, ValueError), match=r"registry|framing|magic"),
    ):
        decode(found)


@pytest.fixture
def answering():
    """Provide a function that starts a server with one answer, and returns its URL."""
    servers = []

    def start(status, answer=None):
        document = {"error_code": status, "message": "no"} if answer is None else answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, UnavailableError),
        (403, UnavailableError),
        (429, UnavailableError),
        (500, UnavailableError),
        (404, ValueError),
    ],
)
def test_only_a_schema_that_is_absent_is_the_fault_of_the_event(
    answering, status, error
):
    """
    A refused login and a failing server may answer otherwise later.
    """
    with (
        closing(AvroDecoder({"url": answering(status)})) as decode,
        pytest.raises(error, match=f"the schema registry responded: .*{status}"),
    ):
        decode(event(value=FRAMED))


def test_an_address_that_leads_nowhere_is_not_the_fault_of_the_event():
    """
    No event is parked for a mistake in the settings.
    """
    with (
        closing(AvroDecoder({"url": "http://\u20ac.example:1"})) as decode,
        pytest.raises(UnavailableError, match="cannot be reached: InvalidURL"),
    ):
        decode(event(value=FRAMED))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x02", b"\x02\x04a", b"\x0a\x02a", b"\x02\x02\xff", b"\x04\x02a"],
    ids=["empty", "half", "short text", "enum", "not UTF-8", "no such symbol"],
)
def test_a_payload_that_is_no_avro_of_its_schema_is_a_value_error(answering, data):
    """
    A handler needs to know one error only, whatever the bytes are.
    """
    mood = {"type": "enum", "name": "Mood", "symbols": ["OK", "SAD"]}
    fields = [{"name": "mood", "type": mood}, {"name": "note", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    url = answering(200, {"id": 1, "schema": schema})
    with closing(AvroDecoder({"url": url})) as decode:
        assert {"mood": "SAD", "note": "a"} == decode(
            event(value=b"\0\0\0\0\1\x02\x02a")
        )
        with pytest.raises(ValueError, match=r"Avro|utf-8|decode|symbol|schema"):
            decode(event(value=b"\0\0\0\0\1" + data))


def test_a_decoder_without_the_registrys_client_names_the_extra(monkeypatch):
    """
    The package is installed without it.
    """
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(UsageError, match=r"pip install 'towpath-inbox\[avro\]'"):
        importlib.reload(avro)
