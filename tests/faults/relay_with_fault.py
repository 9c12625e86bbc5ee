"""
The real relay, which kills itself at a named point: ``CONFIG POINT NTH``.

Each point wraps one method of the relay. At its NTH call the process sends itself
SIGKILL: nothing is flushed, closed or confirmed, as when the machine fails. Points that
end in ``+`` first give the client's own thread time to reach the broker, so that the
broker has the records, but the relay has no acknowledgement.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from towpath.relay import recover
from towpath.relay.__main__ import run
from towpath.relay.kafka import recovery
from towpath.relay.kafka.producer import KafkaProducer
from towpath.relay.kafka.state import StateTopic
from towpath.relay.kafka.topics import KafkaTopics
from towpath.relay.loop import LoopDuties
from towpath.relay.publish.checkpoints import CheckpointWriter
from towpath.relay.publish.in_flight import DeliveryLedger, PartitionBatch
from towpath.relay.publish.publisher import Publisher
from towpath.relay.stream.snapshot_runner import SnapshotRunner
from towpath.schemas import headers

Counts = Callable[..., bool]

# Long enough for the client's thread to send, and for the broker to append.
_APPEND_S: Final = 0.15


class Fault:
    """Counts calls, and kills the process at the requested call."""

    def __init__(self, nth: int, *, is_late: bool) -> None:
        self._left = nth
        self._is_late = is_late

    def strike(self) -> None:
        """Count a call; kill the process at the requested call."""
        self._left -= 1
        if self._left:
            return
        if self._is_late:
            threading.Event().wait(_APPEND_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def before(self, owner: Any, name: str, counts: Counts = lambda *_, **__: True):
        """Strike before a method, at calls whose arguments ``counts`` accepts."""
        original = getattr(owner, name)

        def struck(*args: Any, **kwargs: Any) -> Any:
            if counts(*args, **kwargs):
                self.strike()
            return original(*args, **kwargs)

        setattr(owner, name, struck)

    def after(self, owner: Any, name: str, counts: Counts = lambda *_, **__: True):
        """Strike after a method, at calls whose arguments ``counts`` accepts."""
        original = getattr(owner, name)

        def struck(*args: Any, **kwargs: Any) -> Any:
            returned = original(*args, **kwargs)
            if counts(*args, **kwargs):
                self.strike()
            return returned

        setattr(owner, name, struck)

    def produced(self) -> None:
        """Strike when a streamed record has been handed to the client."""
        produce = KafkaProducer.produce

        def produced(producer: KafkaProducer, outgoing: Any) -> int:
            for taken, one in enumerate(outgoing):
                if not produce(producer, [one]):
                    return taken
                if one[0].position:
                    self.strike()
            return len(outgoing)

        KafkaProducer.produce = produced  # type: ignore[method-assign]

    def within(self, *, has_value: bool) -> None:
        """Strike when the delete, or the tombstone, of a key change is sent."""
        send = Publisher.publish_change
        moving = [False]

        def sent(publisher: Publisher, record: Any, delivery: Any) -> None:
            send(publisher, record, delivery)
            publisher.flush()
            is_delete = any(name == headers.NEW_KEY for name, _ in record.headers)
            is_tombstone = moving[0] and record.value is None
            moving[0] = is_delete
            if is_delete if has_value else is_tombstone:
                self.strike()

        Publisher.publish_change = sent  # type: ignore[method-assign]

    def stored(self) -> None:
        """Strike when a higher LSN has been stored, but not yet confirmed."""
        settle = CheckpointWriter._settle

        def settled(checkpoints: CheckpointWriter) -> bool:
            before = checkpoints.stored_lsn
            is_stored = settle(checkpoints)
            if checkpoints.stored_lsn > before:
                self.strike()
            return is_stored

        CheckpointWriter._settle = settled  # type: ignore[method-assign]

    def confirmed(self) -> None:
        """Strike when a higher LSN has been confirmed to Postgres."""
        confirm = LoopDuties.confirm

        def confirmed(duties: LoopDuties, lsn: int) -> None:
            is_new = 0 < duties._confirmed_lsn < lsn
            confirm(duties, lsn)
            if is_new:
                self.strike()

        LoopDuties.confirm = confirmed  # type: ignore[method-assign]


def _writes(key: str) -> Counts:
    return lambda _self, written, *_: written == key


POINTS: Final[dict[str, Callable[[Fault], None]]] = {
    "produced": Fault.produced,
    "acknowledged": lambda f: f.after(PartitionBatch, "acknowledge"),
    "before marks": lambda f: f.before(CheckpointWriter, "_write"),
    "marks produced": lambda f: f.after(CheckpointWriter, "_write"),
    "marks stored": Fault.stored,
    "postgres confirmed": Fault.confirmed,
    "deleted": lambda f: f.within(has_value=True),
    "tombstone": lambda f: f.within(has_value=False),
    "topic made": lambda f: f.after(KafkaTopics, "ensure"),
    "before first mark": lambda f: f.before(Publisher, "_admit"),
    "first mark": lambda f: f.after(Publisher, "_admit"),
    "signal held": lambda f: f.after(DeliveryLedger, "hold"),
    "signal answered": lambda f: f.before(DeliveryLedger, "release"),
    "before tails": lambda f: f.before(recover, "read_tails"),
    "in tails": lambda f: f.before(recovery.TailScan, "take"),
    "after tails": lambda f: f.after(recover, "read_tails"),
    "before lineage": lambda f: f.before(StateTopic, "write", _writes("lineage")),
    "lineage": lambda f: f.after(StateTopic, "write", _writes("lineage")),
    "before settings": lambda f: f.before(StateTopic, "write", _writes("settings")),
    "settings": lambda f: f.after(StateTopic, "write", _writes("settings")),
    "before commit": lambda f: f.before(KafkaProducer, "commit"),
    "commit": lambda f: f.after(KafkaProducer, "commit"),
    "skipped": lambda f: f.after(Publisher, "publish_internal", _is_skip),
    "stream begun": lambda f: f.after(SnapshotRunner, "resume"),
}


def _is_skip(_self: Any, record: Any, *_: Any) -> bool:
    return (record.key or b"").startswith(b"skip:")


def main() -> int:
    """Run the relay with the fault that the command line names."""
    config, point, nth = sys.argv[1:]
    POINTS[point.rstrip("+")](Fault(int(nth), is_late=point.endswith("+")))
    return run(Path(config))


if __name__ == "__main__":
    sys.exit(main())
