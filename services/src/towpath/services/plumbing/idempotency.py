"""
A request that is repeated with the same key is executed only once.

A client sends its own key in ``Idempotency-Key``, as in the draft of the IETF's
HTTP API working group (draft-ietf-httpapi-idempotency-key-header). The key is claimed
by inserting its row in the command's own transaction:

- A second request with the key waits at its insert until the first has ended. If the
  first committed, its response is repeated with ``Idempotent-Replayed: true``; if it
  did not, the key is free and the second claims it. The lock timeout bounds the wait:
  when it expires, the second request is refused with 503 and ``Retry-After``.
- A key that is sent with a different method, path or body is refused (422).
- Failed requests leave no key: a retry is executed.
- A key is kept for a configured time, 24 hours by default, and may then be used again.
  Its row is then replaced by the next claim, or deleted in the background, a bounded
  number of rows at a time. The deletion skips every row that a request has locked, so
  a request waits for the deletion no longer than one short statement takes.

The age of a key is measured with the database's clock, which all processes share.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, Generic, NamedTuple, TypeVar

import structlog
from flask import Request, Response
from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    DateTime,
    Engine,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.orm import Session

from towpath.outbox import plain
from towpath.schemas.clock import Clock
from towpath.services.plumbing.database import (
    DatabaseBusyError,
    UnitOfWork,
    translated,
)
from towpath.services.plumbing.http import (
    HEADER as LSN,
)
from towpath.services.plumbing.http import (
    FieldError,
    InvalidInputError,
    json_response,
)
from towpath.services.plumbing.server import BackgroundTask
from towpath.services.plumbing.tracing import transaction_span

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
# Deleting this many rows takes milliseconds.
DELETED_AT_ONCE: Final = 500
DELETION_INTERVAL_S: Final = 60.0
_KEY: Final = re.compile(r"[\x21-\x7e]{1,200}\Z")
# An expired key can vanish, or be claimed by another request, between two statements.
_ATTEMPTS: Final = 3

log = structlog.get_logger(__name__)

AnyUnit = TypeVar("AnyUnit", bound=UnitOfWork)
Execute = Callable[[AnyUnit, datetime], Mapping[str, Any]]
Headers = Callable[[int, Mapping[str, Any]], Mapping[str, str]]


def idempotency_table(metadata: MetaData) -> Table:
    """Declare the table of keys in the schema of a service."""
    return Table(
        "idempotency",
        metadata,
        Column("key", Text, primary_key=True),
        Column("request_hash", Text, nullable=False),
        Column("status", Integer),
        Column("response", JSON(none_as_null=True)),
        Column(
            "created_at",
            DateTime(timezone=True),
            nullable=False,
            server_default=func.now(),
            index=True,
        ),
    )


def idempotency_statements(schema: str) -> str:
    """
    Return the SQL of a migration that creates the table.

    Released migrations call this function, so its text does not change: a new column
    needs a new migration in every service.
    """
    return f"""
create table {schema}.idempotency (
    key text constraint idempotency_pkey primary key,
    request_hash text not null,
    status integer,
    response json,
    created_at timestamptz not null default now()
);

create index ix_{schema}_idempotency_created_at on {schema}.idempotency (created_at);
"""


class Answer(NamedTuple):
    """The response to a request, as stored under its key."""

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
        raise _refusal(reason)
    content = f"{request.method} {request.path}\n".encode() + request.get_data()
    return Claim(key, hashlib.sha256(content).hexdigest())


class IdempotencyKeys:
    """
    The keys of a service.

    Args:
        table: The table that ``idempotency_table`` declares.
        hours: How long a key is kept.
    """

    def __init__(self, table: Table, *, hours: float) -> None:
        self._table = table
        self._lifetime = timedelta(hours=hours)
        of_key = table.c.key == bindparam("of_key")
        # Built once: SQLAlchemy takes longer to build a statement than to execute it.
        self._find = select(table, self._expired().label("expired")).where(of_key)
        self._claim = upsert(table).on_conflict_do_nothing().returning(table.c.key)
        self._keep = update(table).where(of_key)
        self._reclaim = (
            self._keep.where(self._expired())
            .values(created_at=func.now())
            .returning(table.c.key)
        )

    def earlier_answer(self, session: Session, claim: Claim) -> Answer | None:
        """
        Claim the key, or return the earlier response stored under it.

        Raises:
            InvalidInputError: The key was used for a different request.
            DatabaseBusyError: Other requests repeatedly claimed and released the key.
        """
        of_key = {"of_key": claim.key}
        for _ in range(_ATTEMPTS):
            if session.execute(self._claim, claim._asdict()).first() is not None:
                return None
            earlier = session.execute(self._find, of_key).one_or_none()
            if earlier is None:
                continue
            if earlier.expired:
                if self._replace(session, claim):
                    return None
                continue
            if earlier.request_hash != claim.request_hash:
                reason = "was already used for a different request"
                raise _refusal(reason)
            return Answer(earlier.status, earlier.response)
        message = f"The {HEADER} is in use by other requests."
        raise DatabaseBusyError(message, retry_after_s=1.0)

    def keep_answer(self, session: Session, claim: Claim, answer: Answer) -> None:
        """Store the response under the claimed key; it commits with the command."""
        row = {"status": answer.status, "response": answer.document}
        session.execute(self._keep, {"of_key": claim.key, **row})

    def delete_expired(self, engine: Engine) -> int:
        """
        Delete expired keys, each batch in its own transaction.

        Returns:
            The number of deleted keys.

        Raises:
            UnavailableError: The database cannot be reached.
        """
        batch = (
            select(self._table.c.key)
            .where(self._expired())
            .order_by(self._table.c.created_at)
            .limit(DELETED_AT_ONCE)
            .with_for_update(skip_locked=True)
            .cte("batch")
        )
        statement = delete(self._table).where(
            self._table.c.key.in_(select(batch.c.key))
        )
        count, deleted = 0, DELETED_AT_ONCE
        while deleted == DELETED_AT_ONCE:
            with translated(), engine.begin() as connection:
                deleted = connection.execute(statement).rowcount
            count += deleted
        if count:
            log.info("request keys deleted: expired", count=count)
        return count

    def deletion(self, engine: Engine) -> BackgroundTask:
        """Return the task that deletes expired keys while the service runs."""
        return BackgroundTask(
            "expired idempotency keys",
            DELETION_INTERVAL_S,
            lambda: self.delete_expired(engine),
        )

    def _expired(self) -> ColumnElement[bool]:
        return self._table.c.created_at < func.now() - self._lifetime

    def _replace(self, session: Session, claim: Claim) -> bool:
        """Claim an expired key, unless another request has just claimed it."""
        row = {
            "of_key": claim.key,
            "request_hash": claim.request_hash,
            "status": None,
            "response": None,
        }
        return session.execute(self._reclaim, row).first() is not None


def _refusal(reason: str) -> InvalidInputError:
    detail = f"The header {HEADER} {reason}."
    return InvalidInputError(detail, [FieldError(HEADER, reason)])


@dataclass(frozen=True, slots=True)
class CommandExecutor(Generic[AnyUnit]):
    """
    Executes the commands of requests: each in one transaction, each key once.

    Args:
        open_unit: Opens a unit of work, with the trace context of the request.
        keys: The keys of the service.
        clock: Gives the time of changes.
    """

    open_unit: Callable[[str | None], AnyUnit]
    keys: IdempotencyKeys
    clock: Clock

    def run(
        self,
        request: Request,
        execute: Execute[AnyUnit],
        *,
        status: HTTPStatus = HTTPStatus.OK,
        headers: Headers = lambda _status, _document: {},
    ) -> Response:
        """
        Execute the command in one transaction, or repeat its earlier response.

        Args:
            request: The request; its key and its trace context are read.
            execute: Executes the command in the unit of work, at the given time;
                returns the document of the response, whose values may have any type
                that ``towpath.outbox.plain`` accepts.
            status: The status of the response.
            headers: Returns further headers of a response, from its status and
                document.

        Raises:
            InvalidInputError: The key is invalid, or was used for a different request.
            UnavailableError: The database cannot be reached, or a lock wait timed out.
        """
        claim = claim_of(request)
        with transaction_span() as traceparent, self.open_unit(traceparent) as unit:
            earlier = self.keys.earlier_answer(unit.session, claim) if claim else None
            answer = earlier
            if answer is None:
                document = plain(execute(unit, self.clock.now()))
                answer = Answer(status.value, document)
                if claim:
                    self.keys.keep_answer(unit.session, claim, answer)
                unit.commit()
            response = json_response(*answer, headers(*answer))
            if earlier is not None:
                response.headers[REPLAYED] = "true"
            lsn = unit.written_lsn()
            if lsn is not None:
                response.headers[LSN] = lsn
            return response
