"""The contract of a configuration: all findings of a migration, in one order. Pure."""

from towpath.settings import Settings
from towpath.sinks.contracts.catalog import Catalog
from towpath.sinks.contracts.changes import changed_tables
from towpath.sinks.contracts.findings import (
    ContractFinding,
    gone_tables,
    is_captured,
    new_tables,
    outbox_findings,
    topic_findings,
)
from towpath.sinks.contracts.sinks import sink_findings


def evaluate(
    before: Catalog, after: Catalog, settings: Settings
) -> list[ContractFinding]:
    """
    Judge a migration by the catalogs before and after it.

    Tables that the relay neither captures nor reads have no findings.
    """
    found = [
        *gone_tables(before, after, settings),
        *new_tables(before, after, settings),
        *outbox_findings(before, after, settings),
    ]
    for change in changed_tables(before, after):
        if is_captured(change.before, settings):
            found += topic_findings(change, settings)
            found += sink_findings(change, settings)
    return found
