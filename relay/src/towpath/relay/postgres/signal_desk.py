"""
Signals and snapshots for whoever asks over the admin port or leaves one in Kafka.

A connection for each errand, so that threads share nothing and a source that is away
is noticed at once: there are few of these.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from towpath.relay.postgres.connect import Connection, translated
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.signal_inbox import connect_to_insert, insert
from towpath.relay.snapshot.left import LeftSignal

# Tables of snapshots on one page: more than anybody reads, and no burden.
MAX_LISTED: Final = 1_000


class SourceSignals:
    """Leaves signals in the source, and tells what became of them."""

    def __init__(self, dsn: str, relay: str) -> None:
        """
        Describe the source; nothing is connected yet.

        Args:
            dsn: The source.
            relay: The relay that signals are for if they name none.
        """
        self._dsn = dsn
        self._relay = relay

    def leave(self, signal: LeftSignal) -> None:
        """
        Insert a signal; one that is there already is let be.

        Raises:
            SignalRejectedError: Another signal has its id.
            TowpathError: The source is away, or not prepared.
        """
        with self._connected("leaving a signal") as connection:
            insert(connection, signal._replace(relay=self._relay))

    def signal(self, signal_id: str) -> Any:  # noqa: ANN401 - JSON
        """
        Return a signal's row, or None.

        Raises:
            TowpathError: The source is away, or not prepared.
        """
        with self._connected("reading a signal") as connection:
            row = connection.execute(query("show_signal"), {"id": signal_id}).fetchone()
        return row[0] if row else None

    def snapshots(self, snapshot_id: str | None) -> list[Any]:
        """
        Return the tables of one snapshot, or of all that signals asked of this relay.

        Raises:
            TowpathError: The source is away, or not prepared.
        """
        names = {"id": snapshot_id, "limit": MAX_LISTED, "relay": self._relay}
        with self._connected("reading snapshots") as connection:
            return [
                row[0] for row in connection.execute(query("list_snapshots"), names)
            ]

    @contextmanager
    def _connected(self, doing: str) -> Iterator[Connection]:
        with connect_to_insert(self._dsn) as connection, translated(doing):
            yield connection
