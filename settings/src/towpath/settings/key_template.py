"""
Key templates: a row's id in a cache or an index, built from its key columns.

``orders:{tenant}:{id}`` has three parts, joined by colons. A part is plain text, or
contains one column. Sinks escape colons in values, so two keys never have the same id,
and the key can be read back from the id. Two columns in one part would be ambiguous:
``{a}-{b}`` is the same for 1-2, 3 and 1, 2-3. Pure.
"""

import re
from typing import Final, NamedTuple

_COLUMN: Final = re.compile(r"\{([^{}]*)\}")
_JOINT: Final = ":"


class Part(NamedTuple):
    """The text between two colons, with at most one column."""

    before: str
    column: str = ""
    after: str = ""


def parse_template(text: str) -> tuple[Part, ...]:
    """
    Parse a template.

    Raises:
        ValueError: It is malformed, or two keys could have the same id.
    """
    # Texts at even indices, columns at odd ones.
    pieces = _COLUMN.split(text)
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        _refuse(f"{text!r} has a brace outside a column: write it as 'order-{{id}}'")
    columns = pieces[1::2]
    if not columns or not all(columns):
        _refuse(f"{text!r} names no column of the key: write it as 'order-{{id}}'")
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        _refuse(f"{text!r} names {twice} twice")
    parts = [Part(piece) for piece in pieces[0].split(_JOINT)]
    for column, piece in zip(columns, pieces[2::2], strict=True):
        if parts[-1].column:
            _refuse(
                f"{text!r}: two keys could have the same id: put a colon between "
                f"{{{parts[-1].column}}} and {{{column}}}"
            )
        after, *rest = piece.split(_JOINT)
        parts[-1] = Part(parts[-1].before, column, after)
        parts += [Part(one) for one in rest]
    if Part("") in parts:
        _refuse(f"{text!r} has an empty part between colons")
    return tuple(parts)


def columns_of(template: str) -> tuple[str, ...]:
    """Return the columns of a template, in order."""
    return tuple(part.column for part in parse_template(template) if part.column)


def _refuse(reason: str) -> None:
    raise ValueError(reason)
