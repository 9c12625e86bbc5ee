"""
The snapshot worker: performs the snapshot driver's effects in the database.

Each thread has its own connection, so that the loop never blocks and an answer never
waits for a chunk. The *readers* write watermarks, read plans and read chunks; a failure
is a fact, and the driver decides whether to retry. The *commands* store and look up, in
order, since later ones depend on earlier ones: each is retried as long as it may
succeed; an error that no retry can resolve ends the worker, and the loop raises it.

As for every statement of the relay, ``connect`` decides from the SQLSTATE whether an
error is temporary. Two kinds are temporary only here: 25P03 and 25P04 (the timeouts
of a transaction) and 25006 (a standby, while another server takes over).
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from queue import SimpleQueue
from typing import Final

import psycopg
import structlog

from towpath.relay.postgres.chunk_reader import ChunkReader, ReadOptions
from towpath.relay.postgres.connect import (
    Connection,
    ConnectionWorker,
    Effects,
    connect,
    failure,
    translated_errors,
)
from towpath.relay.postgres.exported_snapshots import ExportedSnapshots, ViewLostError
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.store import SnapshotStore
from towpath.relay.postgres.tables import (
    CATALOG_CHANGED,
    WRONG_VALUE,
    TableRefusedError,
    canonical_keys,
)
from towpath.relay.postgres.views import CollectionCatalog
from towpath.relay.snapshot.protocol import (
    AnswerSignal,
    ClaimSignal,
    InspectTables,
    LoadRead,
    ProbeLoad,
    ProbeVisibility,
    ReadChunk,
    ReadFailed,
    ReadPlan,
    ReadSnapshotTables,
    ReleaseSnapshot,
    SaveProgress,
    StoreKeys,
    StoreSignal,
    TablesInspected,
    UnfinishedRead,
    VisibilityRead,
    WatermarkWritten,
    WorkerEffect,
    WorkerFact,
    WriteWatermark,
)
from towpath.relay.snapshot.shape import Key, TableShape
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.schemas.clock import Backoff, Deadline, SystemClock
from towpath.schemas.failure import Disposition, HaltError, TowpathError
from towpath.schemas.table_name import TableName
from towpath.settings.outbox import AggregateView
from towpath.settings.relay import Watermarks

_COLLECTION_ERRORS = (*WRONG_VALUE, CATALOG_CHANGED)

_LOG = structlog.get_logger("towpath.relay")

LookupEffect = (
    ProbeVisibility | InspectTables | ReadSnapshotTables | ClaimSignal | ProbeLoad
)
StoreEffect = StoreKeys | AnswerSignal | SaveProgress
CommandEffect = LookupEffect | StoreSignal | StoreEffect | ReleaseSnapshot


class SnapshotCommands:
    """Performs effects that store and look up data, over the given connection."""

    def __init__(
        self,
        catalog: CollectionCatalog,
        exported: ExportedSnapshots,
        own_pids: Callable[[], Sequence[int]],
        relay: str,
    ) -> None:
        """
        Create the commands of a relay.

        Args:
            catalog: The tables and views that can be read.
            exported: The exported snapshots.
            own_pids: Returns the ids of the server processes of the relay's readers.
            relay: The relay whose signals and snapshots are stored.
        """
        self._relay = relay
        self._catalog = catalog
        self._exported = exported
        self._own_pids = own_pids
        # The answer that is being stored, and when its attempts began.
        self._answer: StoreSignal | None = None
        self._attempts: list[datetime] = []

    def perform(
        self, connection: Connection, effect: CommandEffect
    ) -> WorkerFact | None:
        """
        Perform an effect and return its fact, if it has one; safe to repeat.

        Raises:
            psycopg.Error: The server refuses a statement, or the connection is lost.
        """
        match effect:
            case ReleaseSnapshot():
                self._exported.release(effect.view)
                return None
            case StoreSignal():
                return self._store_signal(connection, effect)
            case StoreKeys() | AnswerSignal() | SaveProgress():
                return _store(SnapshotStore(connection, self._relay), effect)
            case _:
                return self._look_up(connection, effect)

    def _store_signal(self, connection: Connection, effect: StoreSignal) -> WorkerFact:
        """Store an answer, and log whether it is the signal's first."""
        if effect is not self._answer:
            self._answer, self._attempts = effect, []
        store = SnapshotStore(connection, self._relay)
        fact = store.store_signal(effect, self._attempts)
        self._answer = None
        if fact.is_new:
            _LOG.info(
                "signal answered",
                signal_id=effect.signal_id,
                status=effect.status,
                detail=effect.detail,
            )
        else:
            _LOG.info(
                "signal not run: already answered, or its id is already in use",
                signal_id=effect.signal_id,
            )
        return fact

    def _look_up(self, connection: Connection, effect: LookupEffect) -> WorkerFact:
        match effect:
            case ProbeVisibility():
                row = connection.execute(query("read_visibility")).fetchone()
                return VisibilityRead(XidSnapshot.parse(str(row[0] if row else "")))
            case InspectTables():
                return self._inspect(connection, effect)
            case ReadSnapshotTables():
                return SnapshotStore(connection, self._relay).read_tables(effect)
            case ClaimSignal():
                return SnapshotStore(connection, self._relay).claim(effect)
            case ProbeLoad():
                own = {"own_pids": list(self._own_pids())}
                row = connection.execute(query("read_load"), own).fetchone()
                return LoadRead(int(row[0]) if row else 0)

    def _inspect(
        self, connection: Connection, effect: InspectTables
    ) -> TablesInspected:
        shapes: dict[str, TableShape] = {}
        keys: tuple[Key, ...] = ()
        name_refusals = _exact_names(connection, effect)
        if name_refusals:
            return TablesInspected(effect.signal_id, {}, name_refusals)
        known, refusals = self._describe_all(connection, effect)
        for collection in effect.collections:
            if collection in refusals:
                continue
            try:
                shape = known.get(collection) or self._catalog.describe(
                    connection, collection, effect.order_by
                )
                if effect.keys:
                    keys = canonical_keys(connection, shape, effect.keys)
                shapes[collection] = shape
            except TableRefusedError as refusal:
                refusals[collection] = str(refusal)
            except psycopg.Error as error:
                # An error in a view's own query, or in a collection that is dropped
                # meanwhile, fails only that collection.
                if not (error.sqlstate or "").startswith(_COLLECTION_ERRORS):
                    raise
                refusals[collection] = str(error.diag.message_primary)
        return TablesInspected(effect.signal_id, shapes, refusals, keys)

    def _describe_all(
        self, connection: Connection, effect: InspectTables
    ) -> tuple[dict[str, TableShape], dict[str, str]]:
        """Describe several tables together; return none of them if one fails."""
        if len(effect.collections) == 1:
            return {}, {}
        try:
            found = self._catalog.describe_all(
                connection, effect.collections, effect.order_by
            )
        except psycopg.errors.OperationalError:
            raise
        except psycopg.Error as error:
            # When tables are described one by one, only the one that changed fails.
            _LOG.debug("snapshot tables described one by one", reason=str(error))
            return {}, {}
        shapes = {n: one for n, one in found.items() if isinstance(one, TableShape)}
        refused = {n: str(one) for n, one in found.items() if n not in shapes}
        return shapes, refused


def _exact_names(connection: Connection, effect: InspectTables) -> dict[str, str]:
    """Return refusals of patterns that exactly name a table that is not captured."""
    if not effect.expressions:
        return {}
    names = {"names": list(effect.expressions)}
    rows = connection.execute(query("read_tables_named"), names).fetchall()
    found = {name.joined: name for name in (TableName(*row) for row in rows)}
    return {
        joined: f"{name.text} is a table, which is not captured: add it to [source]"
        " tables, or write the expression so that it is not a table's name"
        for joined, name in found.items()
        if name.text not in effect.collections
    }


def _store(store: SnapshotStore, effect: StoreEffect) -> WorkerFact | None:
    match effect:
        case StoreKeys():
            _LOG.info(
                "snapshot of moved rows stored",
                snapshot_id=effect.snapshot_id,
                keys={t.collection: t.asked_keys for t in effect.tables},
            )
            return store.store_keys(effect)
        case SaveProgress():
            return store.save_progress(effect)
        case AnswerSignal():
            store.answer_signal(effect)
            return None


# The bound on a chunk's size as COPY text. Rows take about twice as much in memory.
# ``snapshot.queue`` bounds the number of chunks in flight.
MAX_CHUNK_BYTES: Final = 8 * 1024 * 1024

# ``lock_timeout``: a chunk that waits for a lock must not block others for long.
# ``row_security``: a policy causes an error, not fewer rows. ``synchronous_commit``: an
# absent standby must not stop a snapshot.
_SESSION: Final = (
    b"set lock_timeout = '2s'",
    b"set row_security = off",
    b"set synchronous_commit = local",
    b"set standard_conforming_strings = on",
)
# In addition to the SQLSTATEs that ``connect`` retries.
_ALSO_RECOVERABLE: Final = ("25P03", "25P04", "25006")

# The SQLSTATE of a statement timeout.
_CANCELLED: Final = "57014"

# Shutdown waits this long for stores in progress, and then abandons the threads.
_CLOSE_TIMEOUT_S: Final = 2.0

_ReadEffect = WriteWatermark | ReadPlan | ReadChunk


class SnapshotWorker:
    """Performs submitted effects in threads and collects their facts for the loop."""

    def __init__(  # noqa: PLR0913 - built in one place, the rest by name
        self,
        dsn: str,
        wake: Callable[[], None],
        *,
        publication: str,
        relay: str,
        offset: int = 0,
        readers: int = 1,
        watermarks: Watermarks = Watermarks.MESSAGES,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
        views: Sequence[AggregateView] = (),
    ) -> None:
        """
        Start the threads; they connect when they have work.

        Args:
            dsn: The source.
            wake: Called, from another thread, when there are new facts.
            publication: The publication that streams the tables' changes.
            relay: The relay whose signals and snapshots are stored.
            offset: The offset of the lineage that is followed.
            readers: The number of chunks that are read at the same time.
            watermarks: The form of watermarks in the log.
            max_chunk_bytes: The bound on a chunk's size as COPY text.
            views: The declared views of aggregates.
        """
        self._dsn = dsn
        self._wake = wake
        catalog = CollectionCatalog(
            publication, {view.collection: view for view in views}
        )
        self._options = ReadOptions(catalog, watermarks, max_chunk_bytes, SystemClock())
        self._facts: deque[WorkerFact] = deque()
        self._failure: TowpathError | None = None
        self._backoff = Backoff()
        self._stopping = threading.Event()
        self._exported = ExportedSnapshots(self._connect)
        self._read_effects: Effects[_ReadEffect] = SimpleQueue()
        self._readers = [self._make_reader(number) for number in range(readers)]
        self._relay, self._offset = relay, offset
        self._commands = SnapshotCommands(
            catalog, self._exported, self._reading_pids, relay
        )
        self._command_worker: ConnectionWorker[CommandEffect] = ConnectionWorker(
            "snapshot-commands", self._connect, self._store, self._fail
        )

    def _make_reader(self, number: int) -> ConnectionWorker[_ReadEffect]:
        return ConnectionWorker(
            f"snapshot-reader-{number}",
            self._connect,
            self._read,
            self._fail,
            self._read_effects,
        )

    def adopt(self, view: str, exported_name: str) -> None:
        """
        Add a snapshot that another session has exported, before its first use.

        Args:
            view: Its name in effects.
            exported_name: Its name in the server. The caller keeps the session open
                until the snapshot is released.
        """
        self._exported.adopt(view, exported_name)

    def read_stored(self) -> UnfinishedRead:
        """
        Return the snapshots that have not ended. Blocks; called once, at start.

        Raises:
            TowpathError: The source cannot be read.
        """
        with (
            self._connect() as connection,
            translated_errors("reading stored snapshots"),
        ):
            return SnapshotStore(connection, self._relay).read_unfinished(self._offset)

    def submit(self, effect: WorkerEffect) -> None:
        """Queue an effect; ``wake`` is called when its fact is available."""
        if isinstance(effect, _ReadEffect):
            self._read_effects.put(effect)
        else:
            self._command_worker.submit(effect)

    def facts(self) -> Sequence[WorkerFact]:
        """
        Return the facts that have arrived since the last call.

        Raises:
            TowpathError: The worker has failed.
        """
        if self._failure is not None:
            raise self._failure
        facts = []
        while self._facts:
            facts.append(self._facts.popleft())
        return facts

    def close(self) -> None:
        """Stop reading, store the submitted effects, and close. Never raises."""
        self._stopping.set()
        for reader in self._readers:
            reader.end(_CLOSE_TIMEOUT_S, is_urgent=True)
        self._command_worker.end(_CLOSE_TIMEOUT_S, is_urgent=False)
        deadline = Deadline(SystemClock(), _CLOSE_TIMEOUT_S)
        for reader in self._readers:
            reader.join(deadline.remaining_s())
        self._command_worker.join(deadline.remaining_s())
        self._exported.close()

    # In the threads ------------------------------------------------------------

    def _connect(self) -> Connection:
        connection = connect(self._dsn)
        with translated_errors("preparing a session"):
            for setting in _SESSION:
                connection.execute(setting)
        return connection

    def _reading_pids(self) -> list[int]:
        pids = (reader.server_pid for reader in self._readers)
        return [pid for pid in pids if pid is not None]

    def _add_fact(self, fact: WorkerFact) -> None:
        self._facts.append(fact)
        self._wake()

    def _fail(self, error: BaseException) -> None:
        """Report to the loop that a thread has failed."""
        if isinstance(error, psycopg.Error):
            error = failure(error, "storing snapshots")
        if not isinstance(error, TowpathError):
            halt = HaltError(f"the snapshot worker failed: {error!r}")
            halt.__cause__ = error
            error = halt
        self._failure = error
        self._wake()

    def _read(self, effect: _ReadEffect, worker: ConnectionWorker[_ReadEffect]) -> None:
        """Perform one effect in a reader's thread; its result or failure is a fact."""
        if self._stopping.is_set():
            return
        request_id = (
            effect.chunk_id if isinstance(effect, ReadChunk) else effect.request_id
        )
        try:
            fact = self._read_with(worker.connection(), effect)
        except TableRefusedError as refusal:
            fact = ReadFailed(request_id, str(refusal), may_recover=False)
        except ViewLostError as error:
            reason = str(error)
            fact = ReadFailed(request_id, reason, may_recover=True, has_lost_view=True)
        except TowpathError as error:
            # Connecting failed, or a table was altered: a retry may succeed.
            fact = ReadFailed(request_id, str(error), may_recover=True)
        except psycopg.Error as error:
            failed = failure(error, "reading")
            fact = ReadFailed(
                request_id,
                str(failed),
                may_recover=_may_recover(error, failed),
                has_timed_out=error.sqlstate == _CANCELLED,
            )
            worker.discard_broken()
        if isinstance(fact, ReadFailed):
            _LOG.warning(
                "snapshot read failed",
                reason=fact.reason,
                may_recover=fact.may_recover,
            )
        self._add_fact(fact)

    def _read_with(self, connection: Connection, effect: _ReadEffect) -> WorkerFact:
        reader = ChunkReader(connection, self._options, self._exported)
        match effect:
            case WriteWatermark():
                reader.write_watermark(effect.token)
                return WatermarkWritten(effect.request_id)
            case ReadPlan():
                return reader.read_plan(effect)
            case ReadChunk():
                return reader.read_chunk(effect)

    def _store(
        self, effect: CommandEffect, worker: ConnectionWorker[CommandEffect]
    ) -> None:
        """Perform one effect in the commands' thread; retry recoverable errors."""
        attempt = 0
        while True:
            try:
                fact = self._commands.perform(worker.connection(), effect)
            except TowpathError as error:
                reason, is_lost = str(error), error.disposition is Disposition.HALT
                problem: Exception = error
            except psycopg.Error as error:
                failed = failure(error, "storing")
                reason, is_lost = str(failed), not _may_recover(error, failed)
                problem = error
                worker.discard_broken()
            else:
                if fact is not None:
                    self._add_fact(fact)
                return
            if is_lost:
                raise problem
            _LOG.warning("snapshot store failed: retrying", reason=reason)
            if self._stopping.wait(self._backoff.delay_s(attempt)):
                return
            attempt += 1


def _may_recover(error: psycopg.Error, failed: TowpathError) -> bool:
    """Return whether a retry may help, given the driver's error and ours for it."""
    if (error.sqlstate or "").startswith(_ALSO_RECOVERABLE):
        return True
    return failed.disposition is Disposition.RETRY
