"""The named SQL statements of ``queries.sql``."""

import functools
import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def query(name: str) -> bytes:
    """Return the statement of this name; ``KeyError`` if there is none."""
    return _queries()[name]


@functools.cache
def together(*names: str) -> bytes:
    """Return one statement whose only row holds the named statements' rows as JSON."""
    parts = (
        b"(select coalesce(json_agg(part), '[]') from (\n%s\n) part)" % query(name)
        for name in names
    )
    return b"select " + b", ".join(parts)


@functools.cache
def _queries() -> Mapping[str, bytes]:
    text = resources.files(__package__).joinpath("queries.sql").read_text("utf-8")
    pieces = _NAME.split(text)[1:]
    named = zip(pieces[::2], pieces[1::2], strict=True)
    return MappingProxyType({name: body.strip().encode() for name, body in named})
