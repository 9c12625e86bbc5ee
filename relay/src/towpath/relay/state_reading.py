"""What every command of the state needs: the state topic as it stands, and the slot."""

from towpath.relay.errors import StateRefusedError
from towpath.relay.finding import Finding
from towpath.relay.kafka.reading import partition_counts
from towpath.relay.kafka.state import StateTopic, write_now
from towpath.relay.lineage import parse_lineages
from towpath.relay.postgres.catalog import PostgresCatalog, SlotFacts
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.source_checks import source_problems
from towpath.relay.postgres.table_report import TableReport, report
from towpath.relay.routing.record import FIRST_PARTITION, Record
from towpath.relay.state import parse_state
from towpath.schemas import topics as names
from towpath.schemas.failure import TowpathError, UnavailableError
from towpath.settings import Settings


def newest(settings: Settings) -> dict[str, bytes]:
    """
    Return the newest value of each key of the state topic.

    Raises:
        StateRefusedError: There is no state topic.
        BrokerUnavailableError: Kafka does not answer.
    """
    require_topic(settings)
    newest: dict[str, bytes] = {}
    for message in StateTopic(settings.kafka, settings.database.prefix).messages():
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        newest.pop(key, None)
        if value:
            newest[key] = value
    return newest


def require_topic(settings: Settings) -> None:
    """
    Make sure that there is a state topic.

    Raises:
        StateRefusedError: There is none.
        BrokerUnavailableError: Kafka does not answer.
    """
    topic = names.state_topic(settings.database.prefix)
    if topic not in partition_counts(settings.kafka):
        reason = f"there is no state topic {topic}"
        raise StateRefusedError(reason)


def lineage_offset(settings: Settings) -> int:
    """
    Return what the present lineage adds to each LSN of the log.

    0 where the state topic does not tell: the first lineage adds nothing.
    """
    try:
        lineages = parse_lineages(parse_state(newest(settings)).lineage)
    except TowpathError:
        return 0
    return lineages[-1].offset if lineages else 0


def take_back(settings: Settings, key: str) -> None:
    """
    Remove a key from the state topic; it is gone when this returns.

    Raises:
        BrokerUnavailableError: Kafka does not answer.
    """
    topic = names.state_topic(settings.database.prefix)
    name, size = key.encode(), len(key)
    gone = Record(topic, name, None, [], b"", 0, size, FIRST_PARTITION)
    write_now(settings.kafka, gone)


def slot_facts(settings: Settings) -> tuple[SlotFacts | None, str | None]:
    """Ask the server for its view of the slot; why it did not answer, otherwise."""
    source = settings.database
    try:
        with connect(source.dsn) as connection:
            return PostgresCatalog(connection).slot(source.slot), None
    except UnavailableError as error:
        return None, str(error)


def table_report(settings: Settings) -> tuple[TableReport, list[Finding]]:
    """
    Look at all captured tables, and at publications and outbox.

    Raises:
        SourceUnavailableError: The source does not answer.
    """
    with connect(settings.database.dsn) as connection:
        return report(connection, settings), source_problems(connection, settings)
