r"""
Arrays: ``{1,NULL,"a\"b",{..}}`` becomes a list of values. Hot path for flat arrays.

NULL without quotes is null; ambiguous elements are quoted. Bounds before the braces
(``[0:1]={..}``) are dropped. JSON without schemas keeps every dimension, as lists of
lists. With a schema, all elements are in one list, row by row: a schema fixes the
number of dimensions, and Postgres does not.

Composite types: ``(1,"a b",)`` becomes an object of the fields, by name.

An empty field is NULL, and two quotes are the empty string; in quotes, a backslash or a
quote escapes the next character. A row may be older or newer than the known type: a
value with a different number of fields remains a string if there is no schema; with a
schema, additional fields are dropped and reported to ``on_lost``, and missing fields
are null.

``hstore``: ``"a"=>"1", "b"=>NULL`` becomes a string of JSON, or a map, in hstore's
order of keys. All keys and values but NULL are quoted; a backslash escapes the next
character.

With Debezium's preset, points and PostGIS's types become Debezium's structs. The other
geometric types count as unknown types.

==================================  ==================================================
point                               ``x``, ``y``, ``wkb`` (little-endian), ``srid`` null
geometry, geography                 ``wkb`` (PostGIS's own bytes), ``srid`` if included
line, lseg, box, path, polygon,     where unknown types are opaque bytes: the text with
circle                              every number as Java writes a double
==================================  ==================================================
"""

import base64
import binascii
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Final, Literal

import orjson

from towpath.relay.encode.types.form import Form, Schema
from towpath.relay.encode.types.scalar import OnLost, float_json, text_json
from towpath.relay.errors import MalformedMessageError
from towpath.settings.rows import HstoreForm

Nested = "list[bytes | Nested | None]"

_ARRAY_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_QUOTE: Final = b'"'
_NULL: Final = b"null"


def array(element: Form, delimiter: bytes, *, has_schema: bool) -> Form:
    """Return the form of an array."""
    write = _flat_writer(element, delimiter) if has_schema else None
    nested = _nested_writer(element, delimiter)

    def json(text: bytes) -> bytes:
        if write is None or is_flat(text):
            return nested(text)
        return write(text)

    def value(text: bytes) -> list[object]:
        leaves = flatten(parse_array(text, delimiter))
        return [None if leaf is None else element.value(leaf) for leaf in leaves]

    schema = Schema("array", items=element.schema.optional())
    return Form(schema, json, value)


def is_flat(text: bytes) -> bool:
    """Return whether an array has one dimension, and no quoted elements."""
    has_braces = text[:1] == b"{" and text.count(b"{") == text.count(b"}") == 1
    return has_braces and _QUOTE not in text


def parse_array(text: bytes, delimiter: bytes = b",") -> list[object]:
    """
    Return the elements: bytes, None for NULL, and lists for further dimensions.

    Raises:
        MalformedMessageError: The text is not an array.
    """
    body = text[text.index(b"=") + 1 :] if text[:1] == b"[" and b"=" in text else text
    if is_flat(body):
        if body[-1:] != b"}":
            raise _malformed_array(text)
        inside = body[1:-1]
        flat = inside.split(delimiter) if inside else []
        return [None if item == b"NULL" else item for item in flat]
    return _parse_nested(body, delimiter)


def flatten(elements: list[object]) -> Iterator[bytes | None]:
    """Yield the elements of every dimension, row by row."""
    for element in elements:
        if isinstance(element, list):
            yield from flatten(element)
        elif element is None or isinstance(element, bytes):
            yield element


def _parse_nested(text: bytes, delimiter: bytes) -> list[object]:
    root: list[object] = []
    open_lists = [root]
    end = 0
    for token in _tokens(delimiter).finditer(text):
        if token.start() != end or not open_lists:
            raise _malformed_array(text)
        end = token.end()
        _add_token(token, open_lists)
    if end != len(text) or len(open_lists) != 1 or len(root) != 1:
        raise _malformed_array(text)
    (whole,) = root
    if not isinstance(whole, list):
        raise _malformed_array(text)
    return whole


def _add_token(token: re.Match[bytes], open_lists: list[list[object]]) -> None:
    """Add an element to the innermost list, or open or close a list."""
    quoted, plain = token.groups()
    if quoted is not None:
        open_lists[-1].append(_ARRAY_ESCAPED.sub(rb"\1", quoted))
    elif plain is not None:
        open_lists[-1].append(None if plain == b"NULL" else plain)
    elif token[0] == b"{":
        inner: list[object] = []
        open_lists[-1].append(inner)
        open_lists.append(inner)
    elif token[0] == b"}":
        open_lists.pop()


def _tokens(delimiter: bytes) -> re.Pattern[bytes]:
    found = _TOKENS.get(delimiter)
    if found is None:
        mark = re.escape(delimiter)
        found = _TOKENS[delimiter] = re.compile(
            rb'"((?:[^"\\]|\\.)*)"|[{}]|' + mark + rb'|([^{}"\\' + mark + rb"]+)",
            re.DOTALL,
        )
    return found


# One pattern per delimiter: the comma, and the semicolon of boxes.
_TOKENS: Final[dict[bytes, re.Pattern[bytes]]] = {}


def _nested_writer(element: Form, delimiter: bytes) -> Callable[[bytes], bytes]:
    encode = element.json

    def write(elements: list[object]) -> bytes:
        parts = [
            encode(item)
            if isinstance(item, bytes)
            else write(item)
            if isinstance(item, list)
            else _NULL
            for item in elements
        ]
        return b"[" + b",".join(parts) + b"]"

    return lambda text: write(parse_array(text, delimiter))


def _flat_writer(element: Form, delimiter: bytes) -> Callable[[bytes], bytes]:
    encode = element.json

    def write(text: bytes) -> bytes:
        leaves = flatten(parse_array(text, delimiter))
        parts = [_NULL if leaf is None else encode(leaf) for leaf in leaves]
        return b"[" + b",".join(parts) + b"]"

    return write


def _malformed_array(text: bytes) -> MalformedMessageError:
    return MalformedMessageError(f"not an array: {len(text)} bytes")


FIELDS_LOST: Final = "a composite value has more fields than its current type"

_FIELD: Final = re.compile(rb'(?:"((?:[^"\\]|""|\\.)*)"|([^,()"\\]*))([,)])', re.DOTALL)
_COMPOSITE_ESCAPED: Final = re.compile(rb'(?:\\|"(?="))(.)', re.DOTALL)

CompositeField = tuple[str, Form]


def composite(
    name: str, fields: Sequence[CompositeField], on_lost: OnLost, *, has_schema: bool
) -> Form:
    """Return the form of a composite type."""
    schema = Schema(
        "struct",
        name=name,
        fields=tuple((field, form.schema.optional()) for field, form in fields),
    )

    def value(text: bytes) -> dict[str, object]:
        parts = _fitted(parse_composite(text), len(fields), on_lost)
        return {
            field: None if part is None else form.value(part)
            for (field, form), part in zip(fields, parts, strict=True)
        }

    return Form(schema, _writer(fields, on_lost, has_schema=has_schema), value)


def parse_composite(text: bytes) -> list[bytes | None]:
    """
    Return the texts of a composite's fields; None for NULL.

    Raises:
        MalformedMessageError: The text is not a composite.
    """
    if text[:1] != b"(":
        raise _malformed_composite(text)
    parts: list[bytes | None] = []
    at = 1
    while True:
        match = _FIELD.match(text, at)
        if match is None:
            raise _malformed_composite(text)
        quoted, plain, end = match.groups()
        parts.append(
            _COMPOSITE_ESCAPED.sub(rb"\1", quoted)
            if quoted is not None
            else plain or None
        )
        at = match.end()
        if end == b")":
            break
    if at != len(text):
        raise _malformed_composite(text)
    return parts


def _writer(
    fields: Sequence[CompositeField], on_lost: OnLost, *, has_schema: bool
) -> Callable[[bytes], bytes]:
    heads = [(orjson.dumps(name) + b":", form.json) for name, form in fields]

    def json(text: bytes) -> bytes:
        parts = parse_composite(text)
        if len(parts) != len(heads):
            if not has_schema:
                return text_json(text)
            parts = _fitted(parts, len(heads), on_lost)
        written = [
            head + (_NULL if part is None else encode(part))
            for (head, encode), part in zip(heads, parts, strict=True)
        ]
        return b"{" + b",".join(written) + b"}"

    return json


def _fitted(
    parts: list[bytes | None], count: int, on_lost: OnLost
) -> list[bytes | None]:
    if len(parts) > count:
        on_lost(FIELDS_LOST)
    return (parts + [None] * count)[:count]


def _malformed_composite(text: bytes) -> MalformedMessageError:
    return MalformedMessageError(f"not a composite value: {len(text)} bytes")


_PAIR: Final = re.compile(
    rb'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, |\Z)', re.DOTALL
)
_HSTORE_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


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
        MalformedMessageError: The text is not an hstore.
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
    return _HSTORE_ESCAPED.sub(rb"\1", text).decode()


_POINT_WKB: Final = struct.Struct("<BIdd")
_POINT_TYPE: Final = 1
_LITTLE_ENDIAN: Final = 1
_HAS_SRID: Final = 0x2000_0000

_NUMBER: Final = re.compile(rb"[-+]?(?:[0-9.]+(?:e[-+]?[0-9]+)?|Infinity|NaN)")
# Outside these bounds Java writes doubles with an exponent.
_JAVA_PLAIN_FROM: Final = 1e-3
_JAVA_PLAIN_BELOW: Final = 1e7

_POINT_SCHEMA: Final = Schema(
    "struct",
    name="io.debezium.data.geometry.Point",
    version=1,
    fields=(
        ("x", Schema("double")),
        ("y", Schema("double")),
        ("wkb", Schema("bytes", is_optional=True)),
        ("srid", Schema("int32", is_optional=True)),
    ),
)


def point_value(text: bytes) -> dict[str, object]:
    """
    Return a point as a struct.

    Raises:
        MalformedMessageError: The text is not a point.
    """
    x, y = (float(number) for number in _coordinates(text))
    wkb = _POINT_WKB.pack(_LITTLE_ENDIAN, _POINT_TYPE, x, y)
    return {"x": x, "y": y, "wkb": wkb, "srid": None}


def point_json(text: bytes) -> bytes:
    """
    Return a point as a JSON struct.

    Raises:
        MalformedMessageError: The text is not a point.
    """
    x, y = _coordinates(text)
    wkb = _POINT_WKB.pack(_LITTLE_ENDIAN, _POINT_TYPE, float(x), float(y))
    return b'{"x":%b,"y":%b,"wkb":"%b","srid":null}' % (
        float_json(x),
        float_json(y),
        base64.b64encode(wkb),
    )


POINT: Final = Form(_POINT_SCHEMA, point_json, point_value)


def postgis(name: Literal["Geometry", "Geography"]) -> Form:
    """Return the form of a PostGIS type, whose text is extended WKB in hex."""
    schema = Schema(
        "struct",
        name=f"io.debezium.data.geometry.{name}",
        version=1,
        fields=(
            ("wkb", Schema("bytes")),
            ("srid", Schema("int32", is_optional=True)),
        ),
    )
    return Form(schema, _postgis_json, _postgis_value)


def java_numbers(text: bytes) -> bytes:
    """Rewrite every number in a string the way Java writes a double."""
    return _NUMBER.sub(lambda match: java_double(float(match[0])), text)


def java_double(number: float) -> bytes:
    """Write a double as Java's ``toString`` does."""
    if number != number:  # noqa: PLR0124 - only NaN differs from itself
        return b"NaN"
    text = repr(number)
    if "inf" in text:
        return text.replace("inf", "Infinity").encode()
    if number == 0 or _JAVA_PLAIN_FROM <= abs(number) < _JAVA_PLAIN_BELOW:
        return text.encode()
    sign, digits, power = Decimal(text).normalize().as_tuple()
    first, *rest = map(str, digits)
    exponent = len(rest) + int(power)
    return f"{'-' * sign}{first}.{''.join(rest) or '0'}E{exponent}".encode()


def _coordinates(text: bytes) -> list[bytes]:
    numbers = text.removeprefix(b"(").removesuffix(b")").split(b",")
    if len(numbers) != 2 or text[:1] != b"(":  # noqa: PLR2004 - x and y
        reason = f"not a point: {len(text)} bytes"
        raise MalformedMessageError(reason)
    return numbers


def _postgis_json(text: bytes) -> bytes:
    wkb, srid = _postgis(text)
    code = b"null" if srid is None else b"%d" % srid
    return b'{"wkb":"%b","srid":%b}' % (base64.b64encode(wkb), code)


def _postgis_value(text: bytes) -> dict[str, object]:
    wkb, srid = _postgis(text)
    return {"wkb": wkb, "srid": srid}


def _postgis(text: bytes) -> tuple[bytes, int | None]:
    """Return the bytes, and the reference system if the type's flag is set."""
    try:
        wkb = binascii.unhexlify(text)
        order = "<" if wkb[0] == _LITTLE_ENDIAN else ">"
        (kind,) = struct.unpack_from(f"{order}I", wkb, 1)
        if not kind & _HAS_SRID:
            return wkb, None
        (srid,) = struct.unpack_from(f"{order}i", wkb, 5)
    except (binascii.Error, IndexError, struct.error) as error:
        reason = f"not extended WKB in hex: {len(text)} bytes"
        raise MalformedMessageError(reason) from error
    return wkb, srid
