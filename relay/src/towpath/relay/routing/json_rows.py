"""
Plain JSON of many rows of one shape at once. Hot path.

Column by column: a form says what stands around all values of a column, and changes
just those that need it; then each row is joined in one go. What the rows share is made
once for all of them.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from towpath.relay.routing.codec import Values
from towpath.relay.routing.forms.form import Form, Fragments
from towpath.relay.routing.row_records import key_text

NULL: Final = b"null"


class RowColumn(NamedTuple):
    """
    A column of an object.

    Attributes:
        at: Its place in the row.
        head: Its name, with the comma before it.
        form: What its values become.
        is_nullable: Whether a row may have none.
    """

    at: int
    head: bytes
    form: Form
    is_nullable: bool = True


def row_objects(
    opening: bytes, columns: Sequence[RowColumn], rows: Sequence[Values], closing: bytes
) -> list[bytes]:
    """
    Return each row as an object.

    Args:
        opening: What stands before each.
        columns: What the objects hold.
        rows: The rows, column by column.
        closing: What stands behind each.

    Raises:
        MalformedMessageError: A value is missing that must be there.
    """
    parts: list[Iterable[bytes]] = []
    constant = opening + b"{"
    for number, (at, head, form, is_nullable) in enumerate(columns):
        texts, mark = _fragments(form, rows[at], is_nullable=is_nullable)
        parts += (repeat(constant + (head if number else head[1:]) + mark), texts)
        constant = mark
    constant += b"}" + closing
    if not parts:
        return [constant] * len(rows[0])
    return list(map(b"".join, zip(*parts, repeat(constant), strict=False)))


def _fragments(form: Form, values: Values, *, is_nullable: bool) -> Fragments:
    present = [value for value in values if value is not None]
    if len(present) == len(values):
        return _written(form, present)
    if not is_nullable:
        key_text(None)
    if not present:
        return Fragments([NULL] * len(values))
    texts, mark = _written(form, present)
    found = iter(texts)
    return Fragments(
        [NULL if value is None else mark + next(found) + mark for value in values]
    )


def _written(form: Form, texts: Sequence[bytes]) -> Fragments:
    if form.column is not None:
        return form.column(texts)
    return Fragments(list(map(form.json, texts)))
