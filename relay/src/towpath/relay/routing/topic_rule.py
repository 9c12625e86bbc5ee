"""The topic of an event: a value of the row, rewritten and put into a template."""

from typing import Final

from towpath.relay.errors import UnroutableError
from towpath.schemas import topics
from towpath.settings.outbox import Outbox
from towpath.settings.rewriting import rewriting

ILLEGAL_TOPIC: Final = "the aggregate type makes no topic name that Kafka takes"
RESERVED_TOPIC: Final = (
    "the aggregate type makes a topic of Kafka's, of the relay's or of a table's"
)

_OF_KAFKA: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
    }
)


class TopicRule:
    """
    Names topics.

    Args:
        outbox: Template, pattern and replacement; checked before.
        reserved: Topics that no event may go to.
    """

    def __init__(self, outbox: Outbox, reserved: frozenset[str]) -> None:
        self._template = outbox.topic
        self._reserved = reserved
        self._rewritten = rewriting(outbox.route_regex, outbox.route_replacement)

    def topic(self, value: str) -> str:
        """
        Return the topic of a value.

        Raises:
            UnroutableError: There is none that events may be written to.
        """
        name = topics.outbox_topic(self._template, self._rewritten(value))
        if not value or not topics.is_legal_topic(name):
            raise UnroutableError(ILLEGAL_TOPIC)
        if name in self._reserved or name in _OF_KAFKA:
            raise UnroutableError(RESERVED_TOPIC)
        return name


def topics_of_relay(prefix: str) -> frozenset[str]:
    """Name the topics in which the relay keeps house: no event may go there."""
    return frozenset(
        {
            topics.state_topic(prefix),
            topics.relations_topic(prefix),
            topics.notifications_topic(prefix),
            topics.heartbeat_topic(prefix),
            topics.transaction_topic(prefix),
            topics.message_topic(prefix),
            topics.signal_topic(prefix),
            topics.dead_letter_topic(prefix, "relay"),
        }
    )
