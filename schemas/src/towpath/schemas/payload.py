"""
Validation of a JSON payload against an Avro schema, compiled once per schema.

The payload is plain JSON: the value of a union is written bare, and a record is an
object with exactly the schema's fields. A field may be absent only if the schema gives
it a default. A field that the schema does not name is refused, because no reader would
see it. Numbers must be finite and in the range of their type, a boolean is not a
number, and text must be encodable as UTF-8.

A logical type has the JSON form of its underlying type: a ``date`` is a whole number.
The exception is ``decimal``, because its underlying types ``bytes`` and ``fixed`` have
no JSON form: it is the text of a decimal number with no more digits than its precision
and scale allow. A schema that uses these types for anything else does not compile.

``compile_check(schema)`` returns a function ``value -> Mismatch | None`` that reports
the first mismatch and its path.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple


class Mismatch(NamedTuple):
    """The first value in a payload that the schema does not allow."""

    path: tuple[str | int, ...]
    reason: str

    @property
    def field(self) -> str:
        """The path as text, such as ``lines[0].quantity``."""
        text = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in self.path)
        return text.removeprefix(".")

    def under(self, step: str | int) -> "Mismatch":
        """Return the same mismatch with one more step in front of its path."""
        return Mismatch((step, *self.path), self.reason)


Check = Callable[[object], Mismatch | None]
_Names = dict[str, Check]

_DECIMAL: Final = re.compile(r"-?(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]+))?")
_INT_BITS: Final = 31
_LONG_BITS: Final = 63
_FLOAT: Final = struct.Struct("<f")


def compile_check(schema: object) -> Check:
    """
    Turn a parsed schema (with full names, as fastavro returns it) into a check.

    Raises:
        ValueError: The schema uses an unknown type, or one that has no JSON form.
    """
    return _compile(schema, {})


def _compile(schema: object, names: _Names) -> Check:
    if isinstance(schema, list):
        return _union(schema, names)
    if isinstance(schema, dict):
        kind = schema["type"]
        if schema.get("logicalType") == "decimal":
            return _decimal(schema, names)
        complex_kind = _COMPLEX.get(kind)
        return complex_kind(schema, names) if complex_kind else _compile(kind, names)
    if isinstance(schema, str) and schema in _PRIMITIVES:
        return _PRIMITIVES[schema]
    if isinstance(schema, str) and schema in names:
        return names[schema]
    message = f"an event schema cannot use the type {schema!r}"
    raise ValueError(message)


def _null(value: object) -> Mismatch | None:
    return None if value is None else Mismatch((), "is not null")


def _boolean(value: object) -> Mismatch | None:
    return None if isinstance(value, bool) else Mismatch((), "is not true or false")


def _whole(bits: int, name: str) -> Check:
    low, high = -(1 << bits), (1 << bits) - 1

    def check(value: object) -> Mismatch | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return Mismatch((), "is not a whole number")
        if not low <= value <= high:
            return Mismatch((), f"is out of the range of {name}")
        return None

    return check


def _floating(value: object, name: str = "double") -> Mismatch | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return Mismatch((), "is not a number")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        return Mismatch((), f"is out of the range of a {name}")
    return None if finite else Mismatch((), "is not a finite number")


def _float(value: object) -> Mismatch | None:
    found = _floating(value, "float")
    if found is None:
        try:
            _FLOAT.pack(value)
        except (OverflowError, struct.error):
            return Mismatch((), "is out of the range of a float")
    return found


def _string(value: object) -> Mismatch | None:
    if not isinstance(value, str):
        return Mismatch((), "is not text")
    try:
        if not value.isascii():
            value.encode()
    except UnicodeEncodeError:
        return Mismatch((), "is text that cannot be encoded as UTF-8")
    return None


def _decimal(schema: Mapping[str, Any], names: _Names) -> Check:
    precision, scale = schema["precision"], schema.get("scale", 0)
    reason = f"is not the text of a decimal({precision}, {scale})"

    def check(value: object) -> Mismatch | None:
        match = _DECIMAL.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return Mismatch((), reason)
        whole, part = match["whole"].lstrip("0"), match["part"] or ""
        fits = len(whole) <= precision - scale and len(part) <= scale
        return None if fits else Mismatch((), reason)

    if "name" in schema:
        names[schema["name"]] = check
    return check


def _enum(schema: Mapping[str, Any], names: _Names) -> Check:
    symbols = frozenset(schema["symbols"])
    reason = f"is not one of {', '.join(schema['symbols'])}"

    def check(value: object) -> Mismatch | None:
        known = isinstance(value, str) and value in symbols
        return None if known else Mismatch((), reason)

    names[schema["name"]] = check
    return check


def _array(schema: Mapping[str, Any], names: _Names) -> Check:
    item = _compile(schema["items"], names)

    def check(value: object) -> Mismatch | None:
        if not isinstance(value, list | tuple):
            return Mismatch((), "is not an array")
        for index, element in enumerate(value):
            if (found := item(element)) is not None:
                return found.under(index)
        return None

    return check


def _map(schema: Mapping[str, Any], names: _Names) -> Check:
    item = _compile(schema["values"], names)

    def check(value: object) -> Mismatch | None:
        if not isinstance(value, Mapping):
            return Mismatch((), "is not an object")
        for key, element in value.items():
            if (found := _string(key)) is not None:
                return Mismatch((), "has a key that " + found.reason)
            if (found := item(element)) is not None:
                return found.under(key)
        return None

    return check


class _Field(NamedTuple):
    name: str
    required: bool
    check: Check


def _record(schema: Mapping[str, Any], names: _Names) -> Check:
    fields: list[_Field] = []
    known = frozenset(f["name"] for f in schema["fields"])

    def check(value: object) -> Mismatch | None:
        if not isinstance(value, Mapping):
            return Mismatch((), "is not an object")
        if (found := _first_wrong(fields, value)) is not None:
            return found
        unknown = value.keys() - known
        if unknown:
            return Mismatch((min(map(str, unknown)),), "is not in the schema")
        return None

    # Named before its fields are compiled, because they may refer to it.
    names[schema["name"]] = check
    fields.extend(
        _Field(f["name"], "default" not in f, _compile(f["type"], names))
        for f in schema["fields"]
    )
    return check


def _first_wrong(fields: list[_Field], value: Mapping[str, object]) -> Mismatch | None:
    for name, required, check in fields:
        if name in value:
            if (found := check(value[name])) is not None:
                return found.under(name)
        elif required:
            return Mismatch((name,), "is missing")
    return None


def _union(branches: list[object], names: _Names) -> Check:
    checks = [_compile(branch, names) for branch in branches]
    others = [c for c in checks if c is not _null]

    def check(value: object) -> Mismatch | None:
        # Each branch is checked only once: in a nested union, further checks multiply.
        found = None
        for branch in checks:
            mismatch = branch(value)
            if mismatch is None:
                return None
            if branch is not _null:
                found = mismatch
        if len(others) == 1:
            return found
        return Mismatch((), "matches no branch of its union")

    return check


_PRIMITIVES: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "null": _null,
        "boolean": _boolean,
        "int": _whole(_INT_BITS, "int"),
        "long": _whole(_LONG_BITS, "long"),
        "float": _float,
        "double": _floating,
        "string": _string,
    }
)

_COMPLEX: Final[Mapping[str, Callable[[Mapping[str, Any], _Names], Check]]] = (
    MappingProxyType({"enum": _enum, "array": _array, "map": _map, "record": _record})
)
