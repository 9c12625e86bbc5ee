"""SQL is named data: every statement stands in ``queries.sql``, by its name."""

import functools
import re
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Final

_NAME: Final = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def query(name: str) -> bytes:
    """
    Return the statement of this name.

    Raises:
        KeyError: There is none.
    """
    return _queries()[name]


@functools.cache
def _queries() -> Mapping[str, bytes]:
    text = resources.files(__package__).joinpath("queries.sql").read_text("utf-8")
    pieces = _NAME.split(text)[1:]
    named = zip(pieces[::2], pieces[1::2], strict=True)
    return MappingProxyType({name: body.strip().encode() for name, body in named})
