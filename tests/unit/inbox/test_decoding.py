"""Which payloads are decoded as Avro, and failures of the registry."""

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
def test_a_payload_that_is_not_avro_is_read_as_json(content_type):
    """
    The registry is not needed.
    """
    headers = {} if content_type is None else {"content-type": content_type}
    with closing(AvroDecoder({"url": "http://127.0.0.1:1"})) as decode:
        found = event(value=b'{"a": [1]}', headers=headers, decode=decode)
        gone = event(value=None, headers=headers, decode=decode)

        assert ({"a": [1]}, None) == (found.payload, gone.payload)


@pytest.mark.parametrize("content_type", ["application/json", "avro/binary"])
def test_a_tombstone_has_no_payload_in_any_format(content_type):
    """
    This holds even if the decoder is called without the event's own check.
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
    ids=["framed", "framed, as bytes", "not the beginning of JSON", "by its header"],
)
def test_an_avro_payload_is_not_read_as_json(found):
    """
    It is recognized by its bytes or by its header.
    """
    with (
        closing(AvroDecoder({"url": "http://127.0.0.1:1"})) as decode,
        pytest.raises((UnavailableError, ValueError), match=r"registry|framing|magic"),
    ):
        decode(found)


@pytest.fixture
def serving():
    """Provide a function that starts a server with one response and returns its URL."""
    servers = []

    def start(status, response=None):
        document = (
            {"error_code": status, "message": "no"} if response is None else response
        )

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
def test_only_an_absent_schema_is_the_fault_of_the_event(serving, status, error):
    """
    A refused login or a failing server may be temporary.
    """
    with (
        closing(AvroDecoder({"url": serving(status)})) as decode,
        pytest.raises(error, match=f"the schema registry responded: .*{status}"),
    ):
        decode(event(value=FRAMED))


def test_an_invalid_address_is_not_the_fault_of_the_event():
    """
    No event may be parked because of a mistake in the settings.
    """
    with (
        closing(AvroDecoder({"url": "http://\u20ac.example:1"})) as decode,
        pytest.raises(UnavailableError, match="cannot be reached: InvalidURL"),
    ):
        decode(event(value=FRAMED))


@pytest.mark.parametrize(
    "data",
    [b"", b"\x02", b"\x02\x04a", b"\x0a\x02a", b"\x02\x02\xff", b"\x04\x02a"],
    ids=["empty", "half", "short string", "enum", "not UTF-8", "no such symbol"],
)
def test_a_payload_that_does_not_match_its_avro_schema_is_a_value_error(serving, data):
    """
    A handler has to catch only one error, whatever the bytes are.
    """
    mood = {"type": "enum", "name": "Mood", "symbols": ["OK", "SAD"]}
    fields = [{"name": "mood", "type": mood}, {"name": "note", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    url = serving(200, {"id": 1, "schema": schema})
    with closing(AvroDecoder({"url": url})) as decode:
        assert {"mood": "SAD", "note": "a"} == decode(
            event(value=b"\0\0\0\0\1\x02\x02a")
        )
        with pytest.raises(ValueError, match=r"Avro|utf-8|decode|symbol|schema"):
            decode(event(value=b"\0\0\0\0\1" + data))


def test_a_decoder_without_the_registrys_client_names_the_extra(monkeypatch):
    """
    The package alone does not install the client.
    """
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(UsageError, match=r"pip install 'towpath-inbox\[avro\]'"):
        importlib.reload(avro)
