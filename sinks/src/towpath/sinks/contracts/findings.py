"""
The contract of a table: each change by a migration, judged for row topics.

A finding is *fine*, a *notice* (the change works, and the steps say what to do), or
*refused*: a reader, a writer or a sink would fail or lose values. A refused finding
lists the steps of a safe migration: expand, migrate, contract. ``accepted`` marks a
refused finding that ``--accept`` names. This module does no I/O.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from towpath.schemas.topics import table_topic
from towpath.settings import OnDrop, Settings
from towpath.settings.outbox import MissingColumn
from towpath.settings.rows import RecordFormat, Rows
from towpath.settings.syntax import compiled, parse_placement
from towpath.sinks.contracts.catalog import FULL, Catalog, Table, TableColumn
from towpath.sinks.contracts.changes import ChangeKind, ColumnChange, TableChange


class Level(enum.StrEnum):
    """How a change is judged."""

    FINE = "fine"
    NOTICE = "notice"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ContractFinding:
    """
    One effect of a migration.

    Attributes:
        level: The judgment.
        place: Where the effect shows: ``source``, ``relay``, a topic or a sink's route.
        name: The table, or the table and the column. The name is that before the
            migration, except for tables and columns that the migration adds.
        change: The change, such as ``column dropped``.
        sentence: The effect, as one sentence.
        steps: Safe steps to the same result, or the steps that remain.
    """

    level: Level
    place: str
    name: str
    change: str
    sentence: str
    steps: tuple[str, ...] = ()


SOURCE: Final = "source"


class Published:
    """The columns and key columns that the relay publishes, as configured."""

    def __init__(self, rows: Rows) -> None:
        self._keys = rows.key_columns
        self._include = [compiled(text) for text in rows.include_columns]
        self._exclude = [compiled(text) for text in rows.exclude_columns]

    def has(self, table: Table, column: TableColumn) -> bool:
        """Return whether a column is in the values of the table's records."""
        name = f"{table.name.joined}.{column.name}"
        if self._include:
            return any(pattern.fullmatch(name) for pattern in self._include)
        return not any(pattern.fullmatch(name) for pattern in self._exclude)

    def carries(self, table: Table, column: TableColumn | None) -> bool:
        """Return whether a column, if there is one, is in the table's records."""
        if column is None:
            return False
        return column.name in self.key(table) or self.has(table, column)

    def key(self, table: Table) -> tuple[str, ...]:
        """Return the key columns of a table's records; empty if they have no key."""
        configured = self._keys.get(table.name.text)
        if configured is None:
            return table.names(table.key)
        names = {column.name for column in table.columns.values()}
        return tuple(name for name in configured if name in names)


def topic_findings(change: TableChange, settings: Settings) -> list[ContractFinding]:
    """Judge the changes to a captured table for its writers and its row topic."""
    published = Published(settings.relay.rows)
    topic = topic_of(change.before, settings)
    found = [*_table_findings(change, topic, settings)]
    for each in change.columns:
        name = column_name(change.before, each.name)
        was = published.carries(change.before, each.before)
        will_be = published.carries(change.after, each.after)
        if not was and not will_be and not _affects_writers(each):
            sentence = "The column is not published."
            found.append(ContractFinding(Level.FINE, topic, name, each.kind, sentence))
        elif each.kind is ChangeKind.RENAMED and not was:
            found.append(_published_finding(each, name, topic))
        elif each.kind is ChangeKind.RENAMED and not will_be:
            # Records lose the column.
            lost = _column_finding(each._replace(kind=ChangeKind.DROPPED), name, topic)
            found.append(replace(lost, change=each.kind))
        else:
            found.append(_column_finding(each, name, topic))
        if (was or will_be) and _may_refuse(each, settings):
            found.append(_registry_finding(name, topic, each))
    return found


def topic_of(table: Table, settings: Settings) -> str:
    """Return the name of a table's row topic."""
    return table_topic(settings.database.prefix, table.name)


def column_name(table: Table, column: str) -> str:
    """Return a column's name as ``--accept`` expects it."""
    return f"{table.name.text}.{column}"


def _affects_writers(change: ColumnChange) -> bool:
    """Return whether writers can fail, even if the column is not published."""
    added = change.after if change.kind is ChangeKind.ADDED else None
    is_needed = added is not None and added.is_required and not added.is_filled
    return is_needed or change.kind is ChangeKind.REQUIRED


def _published_finding(change: ColumnChange, name: str, topic: str) -> ContractFinding:
    new_name = change.after.name if change.after else ""
    sentence = (
        f"The unpublished column would be published as {new_name}: its values would "
        "reach every reader."
    )
    step = f"Exclude {new_name} in relay.rows first, or do not include it."
    return ContractFinding(
        *(Level.REFUSED, topic, name, "column published", sentence), (step,)
    )


def _table_findings(
    change: TableChange, topic: str, settings: Settings
) -> Iterable[ContractFinding]:
    published = Published(settings.relay.rows)
    before, after = change.before, change.after
    if before.name != after.name:
        yield _renamed_table_finding(change, topic, settings)
    old, new = published.key(before), published.key(after)
    if old != new:
        yield _key_finding(before.name.text, topic, old, new)
    if before.is_identified and not after.is_identified:
        yield ContractFinding(
            Level.REFUSED,
            SOURCE,
            before.name.text,
            "replica identity lost",
            "Updates and deletes of the table fail in the application, because a "
            "published table needs a replica identity.",
            ("Keep the primary key, or name a unique index as the identity.",),
        )
    if before.identity == FULL != after.identity:
        yield ContractFinding(
            Level.NOTICE,
            topic,
            before.name.text,
            "replica identity changed",
            "Records of updates and deletes no longer have all old values.",
            ("Check that no reader uses the old values.",),
        )


def _renamed_table_finding(
    change: TableChange, topic: str, settings: Settings
) -> ContractFinding:
    name, new_name = change.before.name.text, change.after.name.text
    sentence = (
        f"The table becomes {new_name}: its changes no longer reach the topic, and "
        f"{_former_rows(settings)}."
    )
    steps = (
        f"Create {new_name} as a separate table, and write to both.",
        f"Move writers and readers to {new_name}; add its topic and its routes.",
        f"Remove {name} from source.tables, and then the table itself.",
    )
    return ContractFinding(Level.REFUSED, topic, name, "table renamed", sentence, steps)


def _former_rows(settings: Settings) -> str:
    """Return a clause that says what happens to the rows of a vanished table."""
    if settings.database.on_drop is OnDrop.TRUNCATE:
        return "each sink deletes the table's rows (on_drop)"
    return "its rows stay in the topic and in every sink (on_drop)"


def _key_finding(
    name: str, topic: str, old: tuple[str, ...], new: tuple[str, ...]
) -> ContractFinding:
    before, after = (", ".join(key) or "nothing" for key in (old, new))
    sentence = (
        f"The key of the table's records changes from {before} to {after}: older "
        "records, and the rows in every sink, keep the former key."
    )
    steps = (
        "Create a new table with the new key, and write to both.",
        "Add the new table to source.tables, and routes for it; fill them.",
        "Move readers to the new table, then remove the former one.",
    )
    return ContractFinding(Level.REFUSED, topic, name, "key changed", sentence, steps)


def _column_finding(change: ColumnChange, name: str, topic: str) -> ContractFinding:
    if change.kind is ChangeKind.ADDED:
        return _addition_finding(change, name, topic)
    if change.kind is ChangeKind.REQUIRED:
        return _not_null_finding(change, name)
    level, sentence, steps = _JUDGED[change.kind]
    values = {
        "old": change.before.full_type if change.before else "",
        "new": change.after.full_type if change.after else "",
        "name": name,
        "column": change.name,
        "renamed": change.after.name if change.after else "",
        "detail": change.detail,
    }
    return ContractFinding(
        *(level, topic, name, change.kind, sentence.format(**values)),
        tuple(step.format(**values) for step in steps),
    )


def _addition_finding(change: ColumnChange, name: str, topic: str) -> ContractFinding:
    if _affects_writers(change):
        return ContractFinding(
            Level.REFUSED,
            SOURCE,
            name,
            "not null column added",
            "The column is NOT NULL and has no default: the migration fails on a table "
            "with rows, and so does every insert of the running application.",
            (
                f"Add {change.name} as a nullable column.",
                f"Deploy an application that writes {change.name}; fill the old rows.",
                *_REQUIRE,
            ),
        )
    sentence = "New records have the column; readers ignore what they do not know."
    return ContractFinding(Level.FINE, topic, name, change.kind, sentence)


_REQUIRE: Final = (
    "In a later migration: ADD CHECK (... IS NOT NULL) NOT VALID, then VALIDATE.",
    "In another migration: SET NOT NULL, and drop the check.",
)


def _not_null_finding(change: ColumnChange, name: str) -> ContractFinding:
    if change.before is not None and change.before.has_no_nulls:
        sentence = "A validated check has kept nulls out: SET NOT NULL scans nothing."
        return ContractFinding(Level.FINE, SOURCE, name, change.kind, sentence)
    return ContractFinding(
        Level.REFUSED,
        SOURCE,
        name,
        change.kind,
        "The migration fails if a row has null in the column, and so does every insert "
        "of the running application that omits the column.",
        (
            f"Deploy an application that always writes {change.name}.",
            "Fill the old rows.",
            *_REQUIRE,
        ),
    )


_CONTRACT: Final = (
    "Stop every reader from using {column}; add it to `exclude` of each route.",
    "Exclude {name} in relay.rows, or do not include it.",
    "Drop the column in a later migration: dropping an unpublished column is fine.",
)
_REPLACE: Final = (
    "Add a column with the new type, nullable, in this migration.",
    "Deploy an application that writes both columns; fill the old rows.",
    *_CONTRACT,
)
_Judged = tuple[Level, str, Sequence[str]]
_JUDGED: Final[Mapping[ChangeKind, _Judged]] = MappingProxyType(
    {
        ChangeKind.DROPPED: (
            Level.REFUSED,
            (
                "New records lack the column, and readers that need it fail; a running "
                "application that writes it fails, too."
            ),
            ("Deploy an application that does not use {column}.", *_CONTRACT),
        ),
        ChangeKind.RENAMED: (
            Level.REFUSED,
            (
                "Records have {renamed} in place of {column}: readers lose {column}, "
                "and older records lack {renamed}."
            ),
            (
                "Add {renamed} as a nullable column in this migration.",
                "Deploy an application that writes both columns; fill the old rows.",
                *_CONTRACT,
            ),
        ),
        ChangeKind.GROWN: (
            Level.FINE,
            "From {old} to {new}: every older value is read as before.",
            (),
        ),
        ChangeKind.SHRUNK: (
            Level.REFUSED,
            (
                "From {old} to {new}: values that do not fit fail the migration or are "
                "truncated, and older records still have the full values."
            ),
            _REPLACE,
        ),
        ChangeKind.RETYPED: (
            Level.REFUSED,
            (
                "From {old} to {new}: readers get values of a different type, and "
                "older records keep values of the former type."
            ),
            _REPLACE,
        ),
        ChangeKind.RELAXED: (
            Level.NOTICE,
            "Records may have null in the column from now on.",
            ("Check that readers accept null before the application writes it.",),
        ),
        ChangeKind.LABELS_ADDED: (
            Level.NOTICE,
            "Records may have values that readers do not know: {detail}.",
            ("Check that readers accept these labels before any is written.",),
        ),
        ChangeKind.LABELS_REMOVED: (
            Level.REFUSED,
            "Rows with {detail} fail the migration; older records keep such values.",
            (
                "Deploy an application that does not write {detail}.",
                "Update the old rows.",
                "Remove {detail} in a later migration, and accept this finding there.",
            ),
        ),
        ChangeKind.LABELS_RENAMED: (
            Level.REFUSED,
            (
                "Values of existing rows change ({detail}), but the stream does not "
                "carry these changes: no sink can detect them."
            ),
            (
                "Add the new label, and have readers accept both.",
                "Deploy an application that writes the new label; update the old rows.",
                "Remove the former label from readers.",
            ),
        ),
    }
)


_TYPE_CHANGES: Final = frozenset(
    {ChangeKind.GROWN, ChangeKind.SHRUNK, ChangeKind.RETYPED}
)


def _may_refuse(change: ColumnChange, settings: Settings) -> bool:
    is_avro = settings.relay.rows.format is RecordFormat.AVRO
    return is_avro and change.kind in _TYPE_CHANGES


def _registry_finding(name: str, topic: str, change: ColumnChange) -> ContractFinding:
    sentence = (
        "The Avro schema of the topic changes: the registry may refuse it, which halts "
        "the relay or creates dead letters (relay.rows.on_refused_schema)."
    )
    step = "Check the subject's compatibility level; it may be relaxed temporarily."
    return ContractFinding(Level.NOTICE, topic, name, change.kind, sentence, (step,))


def gone_tables(
    before: Catalog, after: Catalog, settings: Settings
) -> list[ContractFinding]:
    """Judge captured tables that were dropped, or dropped and created again."""
    gone = (
        table
        for oid, table in before.tables.items()
        if oid not in after.tables and is_captured(table, settings)
    )
    return [_drop_finding(table, after, settings) for table in gone]


def is_captured(table: Table, settings: Settings) -> bool:
    """Return whether the relay publishes a table's rows."""
    return not table.is_view and settings.capture.includes(table.name.text)


def _drop_finding(table: Table, after: Catalog, settings: Settings) -> ContractFinding:
    name, topic = table.name.text, topic_of(table, settings)
    if after.named(name) is not None:
        sentence = (
            "The table is created again: its former rows are gone, and each sink "
            "deletes them once the relay has found the new table."
        )
        steps: tuple[str, ...] = (
            "Alter the table instead of dropping it.",
            "To remove its rows, use DELETE or TRUNCATE: the stream carries both.",
        )
        change = "table created again"
    else:
        sentence = f"The table is gone, and {_former_rows(settings)}."
        steps = (
            f"Deploy an application that does not use {name}.",
            "Remove its routes from the sinks, and stop its readers.",
            (
                f"Remove {name} from source.tables, and drop the table in a later "
                "migration."
            ),
        )
        change = "table dropped"
    return ContractFinding(Level.REFUSED, topic, name, change, sentence, steps)


def new_tables(
    before: Catalog, after: Catalog, settings: Settings
) -> list[ContractFinding]:
    """Judge new tables that the relay captures."""
    names = {table.name for table in before.tables.values()}
    return [
        _new_table_finding(table, settings)
        for oid, table in after.tables.items()
        if oid not in before.tables
        and table.name not in names
        and is_captured(table, settings)
    ]


def _new_table_finding(table: Table, settings: Settings) -> ContractFinding:
    place = SOURCE, table.name.text, "table added"
    if not table.is_identified:
        sentence = (
            "The table is captured but has no replica identity: its updates and "
            "deletes fail in the application."
        )
        return ContractFinding(
            Level.REFUSED, *place, sentence, ("Give the table a primary key.",)
        )
    topic = topic_of(table, settings)
    sentence = f"The table is captured; its rows go to {topic}."
    return ContractFinding(Level.FINE, *place, sentence)


def outbox_findings(
    before: Catalog, after: Catalog, settings: Settings
) -> list[ContractFinding]:
    """Judge the outbox table, and the views of aggregates, which the relay reads."""
    outbox = settings.relay.outbox
    needed = {*outbox.columns.model_dump().values(), outbox.route_by} - {""}
    if outbox.on_missing_column is MissingColumn.ERROR:
        needed |= {parse_placement(text).column for text in outbox.placements}
    wanted = {outbox.table: needed}
    wanted |= {one.view: {"aggregate_id", "type", "payload"} for one in outbox.view}
    found = []
    for name, needed_here in wanted.items():
        table = before.named(name)
        if table is None:
            continue
        now = after.named(name)
        had = {column.name for column in table.columns.values()} & needed_here
        has = {column.name for column in now.columns.values()} if now else set()
        if lacking := ", ".join(sorted(had - has)):
            change = "columns gone" if now else "table dropped or renamed"
            place = Level.REFUSED, "relay", name, change
            sentence = (
                f"The relay reads {lacking} from {name}: it would halt, or publish no "
                "events from there."
            )
            steps = (
                "Keep the columns, or change [relay.outbox] and the application first.",
            )
            found.append(ContractFinding(*place, sentence, steps))
    return found


def accepted(
    findings: Iterable[ContractFinding], names: Iterable[str]
) -> list[ContractFinding]:
    """Mark refused findings of named tables and columns as accepted."""
    chosen = frozenset(names)
    return [
        replace(finding, level=Level.ACCEPTED)
        if finding.level is Level.REFUSED and finding.name in chosen
        else finding
        for finding in findings
    ]
