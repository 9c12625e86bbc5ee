"""
A repeated request is executed once.

The key is claimed by inserting its row in the command's own transaction: a second
request with the key waits there until the first has ended. If the first committed, its
answer is repeated; if it did not, the key is free and the second claims it. A key
that comes with a different request is refused. Failed requests leave no key.
"""

import hashlib
import re
from typing import Any, Final, NamedTuple

from flask import Request
from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from towpath.services.orders.repository import idempotency
from towpath.services.plumbing.http import FieldError, InvalidInputError

HEADER: Final = "Idempotency-Key"
_KEY: Final = re.compile(r"[\x21-\x7e]{1,200}\Z")


class Answer(NamedTuple):
    """The answer to a request, stored under its key."""

    status: int
    document: dict[str, Any]


class Claim(NamedTuple):
    """A key and the hash of its request."""

    key: str
    request_hash: str


def claim_of(request: Request) -> Claim | None:
    """
    Read the request's key, if it has one.

    Raises:
        InvalidInputError: The key is not 1 to 200 visible ASCII characters.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if _KEY.match(key) is None:
        reason = "must be 1 to 200 visible ASCII characters"
        raise _refused(reason)
    content = f"{request.method} {request.path}\n".encode() + request.get_data()
    return Claim(key, hashlib.sha256(content).hexdigest())


def earlier_answer(session: Session, claim: Claim) -> Answer | None:
    """
    Claim the key, or return the earlier answer under it.

    Raises:
        InvalidInputError: The key was used for a different request.
    """
    row = {"key": claim.key, "request_hash": claim.request_hash}
    mine = insert(idempotency).values(row).on_conflict_do_nothing()
    if session.execute(mine.returning(idempotency.c.key)).first() is not None:
        return None
    query = select(idempotency).where(idempotency.c.key == claim.key)
    earlier = session.execute(query).one()
    if earlier.request_hash != claim.request_hash:
        reason = "was already used for a different request"
        raise _refused(reason)
    return Answer(earlier.status, earlier.response)


def keep_answer(session: Session, claim: Claim, answer: Answer) -> None:
    """Store the answer under the claimed key; it commits with the command."""
    kept = (
        update(idempotency)
        .where(idempotency.c.key == claim.key)
        .values(status=answer.status, response=answer.document)
    )
    session.execute(kept)


def _refused(reason: str) -> InvalidInputError:
    detail = f"The header {HEADER} {reason}."
    return InvalidInputError(detail, [FieldError(HEADER, reason)])
