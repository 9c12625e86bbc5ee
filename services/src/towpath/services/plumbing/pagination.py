"""
Paged listings: a keyset, an opaque cursor, and a link to the next page.

A keyset orders rows newest first, by columns that are unique together. A page begins
after the last key of the previous page, never at a row offset. A row inserted in
the meantime therefore moves no other row to another page: following the links returns
every row that existed at the start, and still matches the filters, exactly once. A row
that is newer than the first page never appears on a later one.

The cursor is the last key of a page, as JSON in base64url. Clients neither parse nor
create cursors: they follow the document's ``next``, which is also the ``next`` link of
the ``Link`` header. Both are relative and keep the filters of the request.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import Field, TypeAdapter, ValidationError
from sqlalchemy import Column, Row, Select, tuple_
from sqlalchemy.orm import Session

from towpath.services.plumbing.http import FieldError, Input, MalformedError

MAX_LIMIT: Final = 100
DEFAULT_LIMIT: Final = 20
# Twice the length of a cursor with a time and a UUID; only a forged cursor is longer.
_MAX_CURSOR: Final = 200

AnyKey = TypeVar("AnyKey", bound=tuple[Any, ...])


class PageQuery(Input):
    """The query parameters of every listing."""

    limit: int = Field(
        default=DEFAULT_LIMIT,
        ge=1,
        le=MAX_LIMIT,
        description="The largest number of items on a page.",
    )
    cursor: str | None = Field(
        default=None,
        max_length=_MAX_CURSOR,
        description="The cursor after which the page begins, from a link to the page.",
    )


class Cursors(Generic[AnyKey]):
    """
    The cursors of a listing.

    Args:
        key: The type of the last key of a page, as a tuple type that pydantic reads.
    """

    def __init__(self, key: type[AnyKey]) -> None:
        self._key = TypeAdapter(key)

    def encode(self, key: AnyKey) -> str:
        """Return the cursor of a key."""
        return base64.urlsafe_b64encode(self._key.dump_json(key)).decode().rstrip("=")

    def decode(self, cursor: str) -> AnyKey:
        """
        Return the key of a cursor.

        Raises:
            MalformedError: The cursor does not belong to this listing.
        """
        try:
            text = cursor + "=" * (-len(cursor) % 4)
            content = base64.b64decode(text.encode("ascii"), b"-_", validate=True)
            return self._key.validate_json(content)
        except (binascii.Error, UnicodeEncodeError, ValidationError) as error:
            reason = "is not a cursor of this listing"
            errors = [FieldError("cursor", reason)]
            detail = f"The parameter cursor {reason}; follow the links from its start."
            raise MalformedError(detail, errors) from error


class Page(NamedTuple):
    """The rows of a page, and the cursor of the next one; None on the last page."""

    rows: Sequence[Row[Any]]
    cursor: str | None


class Keyset(Generic[AnyKey]):
    """
    The order of a listing, newest first.

    Args:
        key: The types of the columns, as a tuple type that pydantic reads.
        columns: The columns to sort by, each descending; together they are unique.
    """

    def __init__(self, key: type[AnyKey], *columns: Column[Any]) -> None:
        self._cursors = Cursors(key)
        self._columns = columns

    def page(self, session: Session, query: Select[Any], wanted: PageQuery) -> Page:
        """
        Read one page.

        Args:
            session: The transaction.
            query: Selects all rows of the listing, with the keyset's columns.
            wanted: The cursor and the limit of the request.

        Raises:
            MalformedError: The cursor does not belong to this listing.
        """
        if wanted.cursor is not None:
            after = tuple_(*self._cursors.decode(wanted.cursor))
            query = query.where(tuple_(*self._columns) < after)
        query = query.order_by(*(column.desc() for column in self._columns))
        rows = session.execute(query.limit(wanted.limit + 1)).all()
        if len(rows) <= wanted.limit:
            return Page(rows, None)
        last = rows[wanted.limit - 1]
        return Page(rows[: wanted.limit], self._encode(last))

    def _encode(self, row: Row[Any]) -> str:
        key: Any = tuple(row._mapping[column] for column in self._columns)  # noqa: SLF001 - SQLAlchemy's name for it
        return self._cursors.encode(key)


def page_document(
    path: str, wanted: PageQuery, items: Sequence[Any], cursor: str | None
) -> tuple[dict[str, Any], Mapping[str, str]]:
    """
    Return the document of a page, and its headers.

    Args:
        path: The path of the listing.
        wanted: The query of the request; its filters are kept in the link.
        items: The documents of the page.
        cursor: The cursor of the next page, if there is one.
    """
    if cursor is None:
        return {"items": items, "next": None}, {}
    given = wanted.model_dump(mode="json", exclude_none=True)
    following = given | {"cursor": cursor}
    link = f"{path}?{urlencode(following)}"
    return {"items": items, "next": link}, {"Link": f'<{link}>; rel="next"'}
