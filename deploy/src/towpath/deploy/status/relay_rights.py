"""The Kafka rights that the relay's user needs, as docs/rights.md lists them."""

from typing import Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # no __all__ there
    AclOperation,
)

from towpath.relay.kafka.topics import compacted_topics, streamed_topics
from towpath.settings import Settings
from towpath.sinks.kafka.rights import Rights

_OWN: Final = frozenset(
    {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE_CONFIGS}
)


def rights_of_relay(settings: Settings) -> Rights:
    """Return what the relay does with the topics that the configuration names."""
    prefix, outbox = settings.database.prefix, settings.relay.outbox
    own = [
        *compacted_topics(prefix),
        *streamed_topics(prefix, settings.capture.names),
        *dict.fromkeys(outbox.topic_of(view.aggregate_type) for view in outbox.view),
    ]
    wanted = dict.fromkeys(own, _OWN)
    if settings.signal_topic:
        own.append(settings.signal_topic)
        wanted[settings.signal_topic] = _OWN - {AclOperation.WRITE}
    return Rights(wanted, own, [f"{settings.database.slot}-signals"])
