"""
Whether each table can be captured, from facts alone.

A table that the file names must be fit to be captured. One that only an expression
takes is left out while it is not, with a warning, unless the publication has it
already: then leaving it out would end its stream.
"""

from collections.abc import Iterator
from typing import Final

from towpath.relay.finding import Finding, Level, error, warning
from towpath.relay.postgres import generated
from towpath.relay.postgres.connect import quoted
from towpath.relay.postgres.source_facts import (
    MemberFacts,
    PublicationFacts,
    SourceFacts,
    TableFacts,
)
from towpath.relay.topic_owners import topic_findings
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

_ORDINARY: Final = frozenset("rp")
_PERMANENT: Final = "p"


def tables_to_capture(facts: SourceFacts, settings: Settings) -> tuple[str, ...]:
    """Return the tables that are captured: what expressions take, only if it is fit."""
    return tuple(
        name
        for name in settings.capture.chosen(facts.tables)
        if not _is_optional(name, facts, settings)
        or refusal(name, facts, settings) is None
    )


def refusal(name: str, facts: SourceFacts, settings: Settings) -> Finding | None:
    """Return the first that stands in the way of capturing a table; None: nothing."""
    for finding in table_findings(name, facts, settings):
        if finding.level is Level.ERROR:
            return finding
    return None


def all_findings(facts: SourceFacts, settings: Settings) -> Iterator[Finding]:
    """Tell of every table that is named or taken, and of expressions that take none."""
    for name in settings.capture.chosen(facts.tables):
        refused = refusal(name, facts, settings)
        if refused is not None and _is_optional(name, facts, settings):
            yield refused._replace(
                level=Level.WARNING, why=f"{refused.why}, so it is left out"
            )
        else:
            yield from table_findings(name, facts, settings)
    for entry in settings.capture.expressions:
        alone = settings.capture.only(entry)
        if not any(alone.takes(name) for name in facts.tables):
            yield warning(
                f"[source] tables: {entry} takes no table",
                "nothing comes from it until there is one",
                "correct it, or make the table",
            )


def topic_problems(facts: SourceFacts, settings: Settings) -> list[Finding]:
    """Find captured tables that have no topic of their own; each problem once."""
    found = topic_findings(settings, tables_to_capture(facts, settings))
    return list(dict.fromkeys(found.values()))


def _is_optional(name: str, facts: SourceFacts, settings: Settings) -> bool:
    """Tell whether a table is only taken by an expression, and not captured yet."""
    publication = facts.publications.get(settings.database.publication)
    is_sent = publication is not None and publication.covers(name)
    return name not in settings.capture.names and not is_sent


def table_findings(
    name: str, facts: SourceFacts, settings: Settings
) -> Iterator[Finding]:
    """Tell what stands in the way of capturing one table, or may."""
    table = facts.tables.get(name)
    if table is None:
        yield error(
            f"{name}: there is no such table",
            "nothing would ever come from it",
            "correct [source] tables",
        )
        return
    if table.kind not in _ORDINARY:
        yield error(
            f"{name}: not a table",
            "views and foreign tables have no log",
            "remove it from [source] tables",
        )
        return
    publication = facts.publications.get(
        settings.database.publication, generated.new_publication(facts.server.version)
    )
    wanted = settings.relay.rows.key_columns.get(name, table.key)
    for member in table.members:
        yield from _member_findings(member, table, frozenset(wanted), publication)
    if not wanted:
        yield warning(
            f"{name}: no primary key",
            "its rows are streamed without a key and cannot be snapshotted",
            f"ALTER TABLE {_sql(name)} ADD PRIMARY KEY (...)",
        )
    yield from _key_findings(name, table, frozenset(wanted), publication)
    yield from generated.findings(name, facts, settings)


def _member_findings(
    member: MemberFacts,
    table: TableFacts,
    wanted: frozenset[str],
    publication: PublicationFacts,
) -> Iterator[Finding]:
    """Check what keeps a table's rows: whether log is written, and old rows told."""
    alter = f"ALTER TABLE {_sql(member.name)}"
    if member.persistence != _PERMANENT:
        yield error(
            f"{member.name}: not logged",
            "its changes are not in the log",
            f"run {alter} SET LOGGED",
        )
    is_identified = member.identity == "f" or bool(member.identity_columns)
    if not publication.sends_old_rows:
        if not is_identified:
            yield warning(
                f"{member.name}: its rows cannot be identified",
                "only its inserts are streamed, as its publication sends no more",
                f"run {alter} REPLICA IDENTITY FULL before it sends updates",
            )
    elif not is_identified:
        cure = f"{alter} REPLICA IDENTITY FULL"
        if table.key:
            cure = f"{alter} REPLICA IDENTITY DEFAULT"
        else:
            cure = f"{alter} ADD PRIMARY KEY (...), or {cure}"
        yield error(
            f"{member.name}: its rows cannot be identified",
            "Postgres refuses the application's updates and deletes of published rows",
            f"run {cure}",
        )
    elif member.identity != "f" and not wanted <= member.identity_columns:
        lacking = ", ".join(sorted(wanted - member.identity_columns))
        yield error(
            f"{member.name}: its replica identity lacks {lacking}",
            "a delete would not tell the record's key",
            f"run {alter} REPLICA IDENTITY "
            + ("DEFAULT" if wanted <= set(table.key) else "FULL"),
        )


def _key_findings(
    name: str, table: TableFacts, wanted: frozenset[str], publication: PublicationFacts
) -> Iterator[Finding]:
    published = publication.tables.get(name)
    columns = published.columns if published else None
    if columns is not None and not wanted <= columns:
        lacking = ", ".join(sorted(wanted - columns))
        yield error(
            f"{name}: the publication's column list leaves out {lacking}",
            "records would have no key",
            "list the key's columns too: run ALTER PUBLICATION ... SET TABLE "
            f"{_sql(name)} ({', '.join(sorted(columns | wanted))})",
        )
    if table.unstable_key:
        yield warning(
            f"{name}: the collation of {', '.join(table.unstable_key)} is not "
            "deterministic",
            "different keys count as equal, so it cannot be snapshotted",
            f"ALTER TABLE {_sql(name)} ALTER COLUMN {quoted(table.unstable_key[0])} "
            'TYPE text COLLATE "C"',
        )
    if table.has_row_security:
        yield warning(
            f"{name}: row security is on",
            "a snapshot sees only the rows that the role may see, the stream all",
            "run ALTER ROLE ... BYPASSRLS for the role of [source] dsn",
        )


def _sql(name: str) -> str:
    return TableName.parse(name).sql
