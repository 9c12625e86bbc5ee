"""
Writes rows into OpenSearch, guarded by their version.

A whole row is one document, whose version the index compares. Two kinds of change need
a look at the stored document first: partial ones, which are merged with it, and those
whose version other positions share (ordinals from 4,094 on), where the position itself
decides. One sink is the only writer of its indexes, so nothing comes in between.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog

from towpath.schemas.backoff import Backoff
from towpath.schemas.clock import Clock
from towpath.schemas.events import event_schemas
from towpath.settings import Route
from towpath.sinks.change import ALL_PRESENT, Change, Refusal
from towpath.sinks.errors import (
    ShapeUnknownError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Batch, Checkpoint, RelationSource
from towpath.sinks.search.answer import FILTER_PATH, Verdict, outcomes
from towpath.sinks.search.client import FULL_RETRY_AFTER_S, connect, translated
from towpath.sinks.search.fields import RouteFields
from towpath.sinks.search.indexes import Indexes
from towpath.sinks.search.mapping import DELETED_FIELD, POSITION_FIELD
from towpath.sinks.search.request import (
    LONGEST_ID_BYTES,
    Call,
    Document,
    calls,
    document,
    document_id,
    has_shared_version,
)
from towpath.sinks.tally import Tally

# Six tries take some seconds: longer than a burst fills the index's queues, shorter
# than anyone wants a batch to hang before it is reported.
ATTEMPTS: Final = 6
READ_AT_ONCE: Final = 1000

_TOO_LONG: Final = f"the key is longer than {LONGEST_ID_BYTES} bytes"

_log = structlog.get_logger("towpath.sinks.search")


class SearchSink:
    """One OpenSearch, written by one sink."""

    def __init__(
        self,
        url: str,
        routes: tuple[Route, ...],
        relations: RelationSource,
        clock: Clock,
    ) -> None:
        """Describe the index; nothing is opened yet."""
        self._client = connect(url)
        self._routes = routes
        source = RouteFields(relations, event_schemas())
        self._indexes = Indexes(self._client, routes, source)
        self._clock = clock
        self._backoff = Backoff(first_s=0.2, ceiling_s=3.0)
        self._tally = Tally()

    def open(self) -> None:
        with translated():
            self._client.info()
        for route in self._routes:
            try:
                self._indexes.ensure(route.name)
            except ShapeUnknownError:
                # Announced with the table's first record, which is when it is needed.
                _log.info("table not announced yet", route=route.name)

    def apply(self, batch: Batch) -> None:
        tally = Tally()
        self._indexes.prepare(batch.changes)
        for route, floor in self._indexes.floors.due(batch.floors):
            self._indexes.sweep(route, floor)
        above = self._indexes.floors.above(batch.changes, tally)
        whole, doubtful = _part(above, tally)
        for first in range(0, len(doubtful), READ_AT_ONCE):
            whole += self._resolve(doubtful[first : first + READ_AT_ONCE], tally)
        for call in calls(document(change) for change in whole):
            self._write(call, tally)
        self._tally.add(tally)

    def flush(self) -> Checkpoint:
        # The index syncs its log before it answers a bulk call.
        return self._tally.take()

    def close(self) -> None:
        self._client.close()

    def _resolve(self, changes: list[Change], tally: Tally) -> list[Change]:
        """Look at the stored documents; return what is left to write, as whole rows."""
        wanted = [{"_index": c.route, "_id": document_id(c)} for c in changes]
        with translated():
            answer = self._client.mget(body={"docs": wanted})
        left = []
        for change, found in zip(changes, answer["docs"], strict=True):
            stored = found.get("_source")
            if stored is not None and stored[POSITION_FIELD] > change.position:
                tally.stale += 1
            elif not change.unchanged:
                left.append(change)
            elif stored is None or stored.get(DELETED_FIELD):
                tally.refused.append(Refusal(change, ABSENT_ROW))
            else:
                left.append(_merged(change, stored))
        return left

    def _write(self, call: Call, tally: Tally) -> None:
        """Write a call, and again those of its items that the index asks for."""
        for attempt in range(ATTEMPTS):
            again = self._write_once(call, tally)
            if not again:
                return
            call = Call(tuple(again))
            self._clock.wait(self._backoff.delay_s(attempt))
        message = f"the search index has no room for {len(call.documents)} documents"
        raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S)

    def _write_once(self, call: Call, tally: Tally) -> list[Document]:
        with translated():
            answer = self._client.bulk(
                body=call.body,
                params={"require_alias": "true", "filter_path": FILTER_PATH},
            )
        again = []
        for item, outcome in zip(call.documents, outcomes(answer), strict=True):
            match outcome.verdict:
                case Verdict.WRITTEN:
                    tally.applied += 1
                case Verdict.STALE:
                    tally.stale += 1
                case Verdict.AGAIN:
                    again.append(item)
                case Verdict.REFUSED:
                    tally.refused.append(Refusal(item.change, outcome.reason))
                case Verdict.GONE:
                    self._indexes.forget()
                    message = f"an index went away: {outcome.reason}"
                    raise TargetUnavailableError(message)
        return again


def _part(changes: Iterable[Change], tally: Tally) -> tuple[list[Change], list[Change]]:
    """Tell changes that can be written as they are from those that need a look."""
    whole: list[Change] = []
    doubtful: list[Change] = []
    for change in changes:
        if len(document_id(change).encode()) > LONGEST_ID_BYTES:
            tally.refused.append(Refusal(change, _TOO_LONG))
        elif change.unchanged or has_shared_version(change):
            doubtful.append(change)
        else:
            whole.append(change)
    return whole, doubtful


def _merged(change: Change, stored: Mapping[str, Any]) -> Change:
    kept = {name: stored[name] for name in change.unchanged if name in stored}
    return change._replace(row=kept | dict(change.row or {}), unchanged=ALL_PRESENT)
