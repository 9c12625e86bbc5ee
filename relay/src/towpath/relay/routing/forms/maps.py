r"""
``hstore``: ``"a"=>"1", "b"=>NULL`` to a text that holds JSON, or to a map.

Keys come in hstore's own order. Quotes hold everything; a backslash protects.
"""

import re
from typing import Final

import orjson

from towpath.relay.errors import MalformedMessageError
from towpath.relay.routing.forms.form import Form, Schema
from towpath.settings.rows import HstoreForm

_PAIR: Final = re.compile(
    rb'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, |\Z)', re.DOTALL
)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


def hstore(mode: HstoreForm) -> Form:
    """Return the form of hstore."""
    if mode is HstoreForm.MAP:
        schema = Schema("map", items=Schema("string").optional())
        return Form(schema, lambda text: orjson.dumps(parse_hstore(text)), parse_hstore)
    schema = Schema("string", name="io.debezium.data.Json", version=1)
    return Form(schema, lambda text: orjson.dumps(_document(text)), _document)


def parse_hstore(text: bytes) -> dict[str, str | None]:
    """
    Return the pairs of an hstore.

    Raises:
        MalformedMessageError: It is not an hstore.
    """
    pairs: dict[str, str | None] = {}
    at = 0
    while at < len(text):
        match = _PAIR.match(text, at)
        if match is None:
            reason = f"not an hstore: {len(text)} bytes"
            raise MalformedMessageError(reason)
        key, value = match.groups()
        pairs[_plain(key)] = None if value is None else _plain(value)
        at = match.end()
    return pairs


def _document(text: bytes) -> str:
    return orjson.dumps(parse_hstore(text)).decode()


def _plain(text: bytes) -> str:
    return _ESCAPED.sub(rb"\1", text).decode()
