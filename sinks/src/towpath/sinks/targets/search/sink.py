"""
A sink that writes rows into OpenSearch, each guarded by its version.

A whole row is one document, whose version the index compares. Two kinds of change need
the stored document first: partial ones, which are merged with it, and those whose
version other positions share (ordinals from 4,094 on), where the position itself
decides. A sink is the only writer of its indexes, so no other write can occur between
this read and the sink's write.

While a rebuild fills a second index of a route, each document of the route is written
to both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import structlog
from opensearchpy import OpenSearch

from towpath.schemas.clock import Clock
from towpath.schemas.events import EventSchema
from towpath.settings import Route, SearchOptions
from towpath.sinks.change import ALL_PRESENT, Change, Refusal
from towpath.sinks.errors import IndexGoneError, ShapeUnknownError
from towpath.sinks.fold import ABSENT_ROW
from towpath.sinks.ports import Batch, Checkpoint, RelationSource
from towpath.sinks.tally import Tally
from towpath.sinks.targets.search.client import connect, translated
from towpath.sinks.targets.search.indexes import Indexes, IndexWatch
from towpath.sinks.targets.search.schema import (
    DELETED_FIELD,
    POSITION_FIELD,
    RouteFields,
    event_schemas,
)
from towpath.sinks.targets.search.upkeep import (
    RefreshControl,
    SearchUpkeep,
    erase_documents,
)
from towpath.sinks.targets.search.write import (
    LONGEST_ID_BYTES,
    BulkWriter,
    WriteOutcome,
    action_prefix,
    calls,
    document_id,
    documents,
    has_shared_version,
)

READ_AT_ONCE: Final = 1000

_TOO_LONG: Final = f"the key is longer than {LONGEST_ID_BYTES} bytes"

_log = structlog.get_logger("towpath.sinks.search")


class SearchSink:
    """One OpenSearch cluster, written to by one sink."""

    creates_indexes: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - called in few places; the last four by name
        self,
        url: str,
        routes: tuple[Route, ...],
        relations: RelationSource,
        clock: Clock,
        *,
        options: SearchOptions = SearchOptions(),  # noqa: B008 - frozen
        watch: IndexWatch | None = None,
        client: OpenSearch | None = None,
        schemas: Mapping[str, EventSchema] | None = None,
    ) -> None:
        """
        Describe the indexes; nothing is opened yet.

        Args:
            url: The address of OpenSearch.
            routes: The routes, one index each.
            relations: Finds the tables' shapes.
            clock: The clock.
            options: How indexes are created and written.
            watch: Detects a replaced index and requests its rows; without a watch, it
                is detected only while this sink is open, and no rows are requested.
            client: The connection; by default, one to ``url``.
            schemas: The events' schemas; by default, those of installed packages and of
                the sink's folders.
        """
        self._clock = clock
        self._client = client or connect(url, thread_count=options.calls_in_flight)
        self._routes = routes
        self._options = options
        if schemas is None:
            schemas = event_schemas(options, routes)
        source = RouteFields(relations, schemas)
        self._indexes = Indexes(
            *(self._client, routes, source, options, watch),
            may_create=self.creates_indexes,
        )
        self._refresh_control = RefreshControl(self._client, self._indexes, options)
        self._upkeep = SearchUpkeep(self._client, self._indexes, options.purged_at_once)
        self._writer = BulkWriter(self._client, clock, options.calls_in_flight)
        self._tally = Tally()

    def open(self) -> None:
        with translated():
            self._client.info()
        self._indexes.load()
        self._indexes.discover()
        for route in self._routes:
            try:
                self._indexes.ensure(route.name)
            except ShapeUnknownError:
                # The table is announced with its first record, which is when the index
                # is needed.
                _log.info(
                    "index not created yet: its table is not announced",
                    route=route.name,
                )

    def apply(self, batch: Batch) -> None:
        try:
            tally = self._apply(batch)
        except IndexGoneError:
            # A rebuild may have ended since the indexes were looked up; the second
            # attempt finds the new index.
            tally = self._apply(batch)
        self._tally.add(tally)

    def flush(self) -> Checkpoint:
        # OpenSearch syncs its translog before it responds to a bulk call.
        return self._tally.take()

    def erase(self, route: str, keys: Sequence[str]) -> None:
        self._indexes.discover()
        erase_documents(
            self._client, self._indexes.index_names(route), keys, self._clock
        )

    def close(self) -> None:
        self._writer.close()
        self._client.close()

    def _apply(self, batch: Batch) -> Tally:
        tally = Tally()
        self._indexes.discover()
        changes = self._indexes.prepare(batch.changes)
        if self.creates_indexes:
            # Several instances may write; only the driver's sets the interval.
            self._refresh_control.adapt_interval(changes)
        for route, floor in self._indexes.floors.due(batch.floors):
            self._upkeep.sweep(route, floor)
        above = self._indexes.floors.above(changes, tally)
        whole, doubtful = _split(above, tally)
        for first in range(0, len(doubtful), READ_AT_ONCE):
            whole += self._resolve(doubtful[first : first + READ_AT_ONCE], tally)
        self._write(whole, tally)
        self._upkeep.purge(batch.safe)
        if self.creates_indexes:
            self._refresh_control.refresh_both()
        return tally

    def _write(self, changes: Iterable[Change], tally: Tally) -> None:
        action_prefixes = {
            r.name: [action_prefix(alias) for alias in self._indexes.aliases(r.name)]
            for r in self._routes
        }
        written = self._put(changes, action_prefixes)
        # Refused deletes are written again without the key's columns, which the index
        # may have refused.
        deletes = [r.change for r in written.refused if r.change.row is None]
        if deletes:
            written.refused = [r for r in written.refused if r.change.row is not None]
            bare = [change._replace(key_columns=()) for change in deletes]
            written.add(self._put(bare, action_prefixes))
        tally.applied += written.applied
        tally.stale += written.stale
        tally.refused += written.refused
        if written.refused_by_old:
            _log.warning(
                "index documents refused by the old index: the rebuild replaces it",
                documents=written.refused_by_old,
            )

    def _put(
        self, changes: Iterable[Change], action_prefixes: Mapping[str, list[bytes]]
    ) -> WriteOutcome:
        """Write the documents of changes, in bulk calls."""
        found = (d for c in changes for d in documents(c, action_prefixes[c.route]))
        return self._writer.write(calls(found, self._options))

    def _resolve(self, changes: list[Change], tally: Tally) -> list[Change]:
        """Compare with stored documents; return the changes to write, as whole rows."""
        resolved = []
        for change, stored in zip(changes, self._stored(changes), strict=True):
            if stored is not None and _position_of(stored) > change.position:
                tally.stale += 1
            elif not change.unchanged:
                resolved.append(change)
            elif stored is None or stored.get(DELETED_FIELD):
                tally.refused.append(Refusal(change, ABSENT_ROW, needs_refetch=True))
            else:
                resolved.append(_merged(change, stored))
        return resolved

    def _stored(self, changes: list[Change]) -> Iterator[Mapping[str, Any] | None]:
        """Yield each change's stored document; if there are two, the newer one."""
        each = [self._indexes.aliases(change.route) for change in changes]
        wanted = [
            {"_index": alias, "_id": document_id(change)}
            for change, aliases in zip(changes, each, strict=True)
            for alias in aliases
        ]
        with translated():
            response = self._client.mget(body={"docs": wanted})
        found = iter(response["docs"])
        for aliases in each:
            copies = [_source_of(next(found)) for _ in aliases]
            existing = [copy for copy in copies if copy is not None]
            yield max(existing, key=_position_of, default=None)


class ExecutorSearchSink(SearchSink):
    """A search sink in an executor's task: only the driver's sink creates indexes."""

    creates_indexes = False


def _position_of(stored: Mapping[str, Any]) -> str:
    """Return a document's position; without one, it counts as older than any other."""
    return stored.get(POSITION_FIELD) or ""


def _source_of(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if "error" in found:
        message = "an index could not be read"
        raise IndexGoneError(message)
    return found.get("_source")


def _split(
    changes: Iterable[Change], tally: Tally
) -> tuple[list[Change], list[Change]]:
    """Separate changes that are written as they are from those to be resolved."""
    whole: list[Change] = []
    doubtful: list[Change] = []
    for change in changes:
        if len(document_id(change).encode()) > LONGEST_ID_BYTES:
            if change.row is None:
                # No document can have such an id.
                tally.applied += 1
            else:
                tally.refused.append(Refusal(change, _TOO_LONG))
        elif change.unchanged or has_shared_version(change):
            doubtful.append(change)
        else:
            whole.append(change)
    return whole, doubtful


def _merged(change: Change, stored: Mapping[str, Any]) -> Change:
    kept = {name: stored[name] for name in change.unchanged if name in stored}
    return change._replace(row=kept | dict(change.row or {}), unchanged=ALL_PRESENT)
