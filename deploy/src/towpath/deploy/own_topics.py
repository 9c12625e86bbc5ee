"""
What a sink has of its own on the broker: its dead letters and what was read for it.

The rows that snapshots read for one sink, and the letters that it set aside, are nobody
else's. Before the topics go, snapshots that still read for it are stopped: the relay
would wait for a topic that is gone.
"""

from collections.abc import Collection, Iterator
from typing import Final, Protocol

from towpath.deploy import signals
from towpath.deploy.errors import SignalRefusedError, SourceUnreachableError
from towpath.deploy.snapshot_watch import wait_answer
from towpath.schemas.clock import Clock
from towpath.schemas.topics import BACKFILL, backfill_topic, dead_letter_topic, table_of
from towpath.settings import Settings, Sink, Source
from towpath.sinks.declare import filled

_ANSWERED_WITHIN_S: Final = 30.0
_OPEN: Final = frozenset({"queued", "running", "paused"})


class Broker(Protocol):
    """The broker, as far as a sink that goes needs it."""

    def names(self) -> list[str]:
        """
        List every topic.

        Raises:
            UnavailableError: The broker does not answer.
        """

    def delete(self, names: Collection[str]) -> dict[str, str]:
        """
        Delete topics; return those that are kept, each with the broker's reason.

        Raises:
            UnavailableError: The broker does not answer.
        """


def own_topics(
    settings: Settings, name: str, sink: Sink | None, existing: Collection[str]
) -> list[str]:
    """
    List the topics that are one sink's own.

    Those of routes that it had before are among them; those of a sink of the same name
    that reads another source are not.
    """
    prefix = settings.database.prefix
    mine = {dead_letter_topic(prefix, name)}
    mine |= {backfill_topic(r.topic, name) for r in filled(sink)} if sink else set()
    mine |= {
        topic
        for topic in existing
        if topic.endswith(f"{BACKFILL}{name}")
        and table_of(prefix, topic.removesuffix(f"{BACKFILL}{name}")) is not None
    }
    return sorted(mine & set(existing))


def delete_own(
    settings: Settings, name: str, sink: Sink | None, broker: Broker, clock: Clock
) -> Iterator[str]:
    """
    Delete a sink's own topics; safe to repeat. Tell of each what became of it.

    Raises:
        UnavailableError: The broker or the relay does not answer.
    """
    topics = own_topics(settings, name, sink, broker.names())
    if any(BACKFILL in topic for topic in topics):
        yield from _stop_snapshots(settings.database, name, clock)
    kept = broker.delete(topics)
    for topic in topics:
        why = kept.get(topic)
        yield f"kept: topic {topic}: {why}" if why else f"deleted: topic {topic}"


def _stop_snapshots(source: Source, sink: str, clock: Clock) -> Iterator[str]:
    """End the snapshots that still read for a sink, its own included."""
    try:
        found = signals.progress(source, own=True)
    except (SourceUnreachableError, SignalRefusedError) as error:
        # Then nothing is read either.
        yield f"snapshots for {sink} were not looked for: {error}"
        return
    going = {one.snapshot_id for one in found if _reads_for(one, sink)}
    for snapshot_id in sorted(going):
        asked = signals.send(source, "stop-snapshot", {"snapshot-id": snapshot_id})
        wait_answer(source, asked, clock, _ANSWERED_WITHIN_S)
        yield f"stopped: snapshot {snapshot_id}"


def _reads_for(one: signals.Progress, sink: str) -> bool:
    return one.target == sink and one.state in _OPEN
