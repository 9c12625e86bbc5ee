"""What the worker's clerk does: it stores, looks up, and lets go."""

from collections.abc import Callable, Sequence

import psycopg
import structlog

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.frozen import FrozenViews
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.readable import Readable
from towpath.relay.postgres.snapshot_store import SnapshotStore
from towpath.relay.postgres.tables import (
    CATALOG_CHANGED,
    WRONG_VALUE,
    TableRefusedError,
    spell,
)
from towpath.relay.snapshot.effects import (
    AnswerSignal,
    ClaimSignal,
    InspectTables,
    ProbeLoad,
    ProbeVisibility,
    ReadEnded,
    SaveProgress,
    StoreKeys,
    StoreSignal,
    Thaw,
)
from towpath.relay.snapshot.facts import (
    LoadRead,
    TablesInspected,
    VisibilityRead,
    WorkerFact,
)
from towpath.relay.snapshot.shape import Key, TableShape
from towpath.relay.snapshot.visibility import XidSnapshot
from towpath.schemas.table_name import TableName

_OF_COLLECTION = (*WRONG_VALUE, CATALOG_CHANGED)

_LOG = structlog.get_logger("towpath.relay")

LookingUp = ProbeVisibility | InspectTables | ReadEnded | ClaimSignal | ProbeLoad
Storing = StoreSignal | StoreKeys | AnswerSignal | SaveProgress
Clerking = LookingUp | Storing | Thaw


class Clerk:
    """Does one thing after another, over whichever connection it is given."""

    def __init__(
        self,
        readable: Readable,
        frozen: FrozenViews,
        own_pids: Callable[[], Sequence[int]],
        relay: str,
    ) -> None:
        """
        Take what is needed.

        Args:
            readable: Where collections are looked for.
            frozen: The views of the database that are let go of.
            own_pids: The server's processes that work for us.
            relay: Whose signals and snapshots are stored.
        """
        self._relay = relay
        self._readable = readable
        self._frozen = frozen
        self._own_pids = own_pids

    def perform(self, connection: Connection, effect: Clerking) -> WorkerFact | None:
        """
        Do one thing; safe to repeat. None: nothing is to be told.

        Raises:
            psycopg.Error: The server refuses, or is gone.
        """
        match effect:
            case Thaw():
                self._frozen.thaw(effect.view)
                return None
            case StoreSignal() | StoreKeys() | AnswerSignal() | SaveProgress():
                return _store(SnapshotStore(connection, self._relay), effect)
            case _:
                return self._look_up(connection, effect)

    def _look_up(self, connection: Connection, effect: LookingUp) -> WorkerFact:
        match effect:
            case ProbeVisibility():
                row = connection.execute(query("read_visibility")).fetchone()
                return VisibilityRead(XidSnapshot.parse(str(row[0] if row else "")))
            case InspectTables():
                return self._inspect(connection, effect)
            case ReadEnded():
                return SnapshotStore(connection, self._relay).read_ended(effect)
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
        others = _exact_names(connection, effect)
        if others:
            return TablesInspected(effect.signal_id, {}, others)
        known, refusals = self._describe_all(connection, effect)
        for collection in effect.collections:
            if collection in refusals:
                continue
            try:
                shape = known.get(collection) or self._readable.describe(
                    connection, collection, effect.order_by
                )
                if effect.keys:
                    keys = spell(connection, shape, effect.keys)
                shapes[collection] = shape
            except TableRefusedError as refusal:
                refusals[collection] = str(refusal)
            except psycopg.Error as error:
                # What a view does when it is looked at is its author's; whoever drops
                # a collection that is looked at fails that collection alone.
                if not (error.sqlstate or "").startswith(_OF_COLLECTION):
                    raise
                refusals[collection] = str(error.diag.message_primary)
        return TablesInspected(effect.signal_id, shapes, refusals, keys)

    def _describe_all(
        self, connection: Connection, effect: InspectTables
    ) -> tuple[dict[str, TableShape], dict[str, str]]:
        """Describe many tables at once; none if one of them is in the way."""
        if len(effect.collections) == 1:
            return {}, {}
        try:
            found = self._readable.describe_all(
                connection, effect.collections, effect.order_by
            )
        except psycopg.errors.OperationalError:
            raise
        except psycopg.Error as error:
            # A table that changes while it is looked at fails by itself, and alone.
            _LOG.debug("snapshot tables are described one by one", reason=str(error))
            return {}, {}
        shapes = {n: one for n, one in found.items() if isinstance(one, TableShape)}
        refused = {n: str(one) for n, one in found.items() if n not in shapes}
        return shapes, refused


def _exact_names(connection: Connection, effect: InspectTables) -> dict[str, str]:
    """Refuse expressions that are the names of tables which they were not read as."""
    if not effect.expressions:
        return {}
    names = {"names": list(effect.expressions)}
    rows = connection.execute(query("read_tables_named"), names).fetchall()
    found = {name.joined: name for name in (TableName(*row) for row in rows)}
    return {
        joined: f"{name.text} is a table, which is not captured: add it to [source]"
        " tables, or write the expression so that it is no table's name"
        for joined, name in found.items()
        if name.text not in effect.collections
    }


def _store(store: SnapshotStore, effect: Storing) -> WorkerFact | None:
    match effect:
        case StoreSignal():
            _LOG.info(
                "signal",
                signal_id=effect.signal_id,
                status=effect.status,
                detail=effect.detail,
            )
            return store.store_signal(effect)
        case StoreKeys():
            _LOG.info(
                "rows are read by their new key",
                snapshot_id=effect.snapshot_id,
                keys={t.collection: t.asked_keys for t in effect.tables},
            )
            return store.store_keys(effect)
        case SaveProgress():
            return store.save_progress(effect)
        case AnswerSignal():
            store.answer_signal(effect)
            return None
