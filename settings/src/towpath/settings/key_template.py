"""
Key templates: how a row's id in a cache or an index is made of its key's columns.

``orders:{tenant}:{id}`` is three parts. A part is text of its own, or holds one column:
sinks write the parts so that no colon of a value looks like a joint, so two keys never
come to one id, and an id tells its key again. Two columns in one part could not be told
apart: ``{a}-{b}`` is the same for 1-2, 3 and 1, 2-3. Pure.
"""

import re
from typing import Final, NamedTuple

_COLUMN: Final = re.compile(r"\{([^{}]*)\}")
_JOINT: Final = ":"


class Part(NamedTuple):
    """What stands between two colons: text, and at most one column within it."""

    before: str
    column: str = ""
    after: str = ""


def parse_template(text: str) -> tuple[Part, ...]:
    """
    Read a template.

    Raises:
        ValueError: It is none, or two keys could come to one id.
    """
    # Texts stand at even places, columns between them.
    pieces = _COLUMN.split(text)
    if any(brace in piece for piece in pieces[::2] for brace in "{}"):
        _refuse(f"{text!r} has a brace that belongs to no column, as in 'order-{{id}}'")
    columns = pieces[1::2]
    if not columns or not all(columns):
        _refuse(f"{text!r} names no column of the key, as in 'order-{{id}}'")
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        _refuse(f"{text!r} names {twice} twice")
    parts = [Part(piece) for piece in pieces[0].split(_JOINT)]
    for column, piece in zip(columns, pieces[2::2], strict=True):
        if parts[-1].column:
            _refuse(
                f"{text!r}: two keys could come to one id: put a colon between "
                f"{{{parts[-1].column}}} and {{{column}}}"
            )
        after, *rest = piece.split(_JOINT)
        parts[-1] = Part(parts[-1].before, column, after)
        parts += [Part(one) for one in rest]
    if Part("") in parts:
        _refuse(f"{text!r}: nothing stands between two colons")
    return tuple(parts)


def columns_of(template: str) -> tuple[str, ...]:
    """Name the columns of a template, in its order."""
    return tuple(part.column for part in parse_template(template) if part.column)


def _refuse(reason: str) -> None:
    raise ValueError(reason)
