"""
Checks that a new sink can be filled, before it is declared.

The relay reads the rows for it; so the relay must follow its slot, and each table and
view that the sink's routes need must be one that the relay would read. Nothing is
written: what only the reading itself can tell ends the snapshot, with its reason.
"""

from collections.abc import Iterator, Sequence

import psycopg

from towpath.deploy.errors import RelaySilentError
from towpath.relay.commands.state import slot_facts
from towpath.relay.postgres.connect import Connection, connect, translated_errors
from towpath.relay.postgres.tables import TableRefusedError
from towpath.relay.postgres.views import CollectionCatalog
from towpath.settings import Settings
from towpath.sinks.errors import SinkUnfitError


def check(settings: Settings, sink: str, collections: Sequence[str]) -> None:
    """
    See that the relay can read every collection that a sink is to be filled with.

    Raises:
        SinkUnfitError: The relay would refuse to read some; everything is listed.
        RelaySilentError: No relay follows the slot.
        SourceUnavailableError: The source does not answer.
    """
    if not collections:
        return
    with connect(settings.database.dsn) as connection:
        found = list(_refusals(connection, settings, collections))
    if found:
        raise SinkUnfitError("\n".join(f"{sink}: {reason}" for reason in found))
    facts, _ = slot_facts(settings)
    if facts is None or not facts.is_active:
        message = (
            f"no relay follows the slot {settings.database.slot}: nobody would fill "
            f"{sink}, which is not declared"
        )
        raise RelaySilentError(message)


def _refusals(
    connection: Connection, settings: Settings, collections: Sequence[str]
) -> Iterator[str]:
    """List why the relay would refuse collections."""
    views = {view.collection: view for view in settings.relay.outbox.view}
    readable = CollectionCatalog(settings.database.publication, views)
    for collection in collections:
        try:
            with translated_errors(f"looking {collection} up"):
                readable.describe(connection, collection)
        except (TableRefusedError, psycopg.errors.InsufficientPrivilege) as error:
            yield f"{collection} cannot be read: {error}"
