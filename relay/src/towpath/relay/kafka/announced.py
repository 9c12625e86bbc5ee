"""Which tables the relations topic announces: those whose rows topics have."""

from typing import Final

import orjson

from towpath.relay.kafka.reading import partition_counts, read_to_ends
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import relations_topic, table_topic
from towpath.settings import Kafka

_WHAT: Final = "the announced tables"


def read_announced(kafka: Kafka, prefix: str) -> frozenset[TableName]:
    """
    Return the announced tables whose topics are still there.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
        BrokerRefusedError: Kafka refuses the topic.
    """
    topic, existing = relations_topic(prefix), partition_counts(kafka)
    if topic not in existing:
        return frozenset()
    starts = {(topic, partition): 0 for partition in range(existing[topic])}
    found = (
        orjson.loads(value)
        for message in read_to_ends(kafka, starts, _WHAT)
        if (value := message.value()) is not None
    )
    names = {TableName(each["schema"], each["table"]) for each in found}
    return frozenset(name for name in names if table_topic(prefix, name) in existing)
