"""
Checks of a server that can be followed: risks of loss, of a full disk, and of delay.

``preflight`` answers whether the relay can start; this module, whether its slot, its
server and its outbox are in order. The facts are read by a few cheap statements, and
the findings are pure. Every statement works from version 15 on: facts that an older
server does not provide are None.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from towpath.relay.postgres.connect import Connection, quoted, translated_errors
from towpath.relay.postgres.queries import query
from towpath.relay.postgres.source_facts import PublicationFacts, SourceFacts
from towpath.schemas.findings import (
    CheckFinding,
    SqlFix,
    error_finding,
    info_finding,
    warning_finding,
)
from towpath.schemas.table_name import TableName
from towpath.settings import Settings

_SETTINGS: Final = (
    *("fsync", "full_page_writes", "data_checksums", "wal_sender_timeout"),
    *("max_slot_wal_keep_size", "idle_replication_slot_timeout"),
    *("synchronized_standby_slots", "autovacuum", "max_replication_slots"),
)
_OFF: Final = "off"
_MEBIBYTE: Final = 1024**2
_GIBIBYTE: Final = 1024**3
_FAILOVER_VERSION: Final = 170000
# The relay reports its position every ten seconds: a lower limit leaves no room for a
# lost report.
_MIN_SENDER_TIMEOUT_MS: Final = 20_000
# A slot that is idle over a weekend must survive.
_MIN_IDLE_S: Final = 3 * 86_400
# From an age of 200 million transactions on, autovacuum works to prevent a wraparound.
_OLD_CATALOG: Final = 100_000_000
# With less than a tenth of the allowed log left, a burst of writes can end the slot.
_MIN_REMAINING_SHARE: Final = 0.1
# One in twenty transactions: the memory is too small, not one transaction too large.
_SPILLED_SHARE: Final = 0.05
_LARGE_OUTBOX_BYTES: Final = 10 * _GIBIBYTE
_DEAD_ROWS: Final = 100_000


class Slot(NamedTuple):
    """A slot of the server; ``is_here`` if it belongs to the source's database."""

    name: str
    is_logical: bool
    is_here: bool
    is_active: bool
    retained_bytes: int = 0
    safe_wal_bytes: int | None = None
    wal_status: str | None = None
    catalog_age: int = 0
    inactive_s: float | None = None
    has_failover: bool | None = None
    is_synced: bool = False


class OutboxSize(NamedTuple):
    """The outbox's size and rows, and partitions whose detaching was interrupted."""

    bytes: int = 0
    rows: int = 0
    dead_rows: int = 0
    detaching: Sequence[str] = ()


class SourceHealth(NamedTuple):
    """
    The facts that the checks of this module need.

    Attributes:
        settings: The server's settings, in their base unit.
        slots: All slots.
        spilled: The counts of decoded and spilled transactions of our slot, and the
            spilled bytes.
        standbys: The physical standbys that are connected.
        outbox: The size of the outbox.
        collation: The version of the database's collation when its indexes were built,
            and the current one; None if there are no versions.
        unarchived: The WAL file that cannot be archived; None without one.
    """

    settings: Mapping[str, str]
    slots: Sequence[Slot] = ()
    spilled: tuple[int, int, int] = (0, 0, 0)
    standbys: Sequence[str] = ()
    outbox: OutboxSize = OutboxSize()
    collation: tuple[str | None, str | None] = (None, None)
    unarchived: str | None = None


def read_source_health(connection: Connection, settings: Settings) -> SourceHealth:
    """
    Read the facts.

    Raises:
        SourceUnavailableError: The connection is lost.
        SourceRefusedError: The role may not read a fact.
    """
    execute = connection.execute
    outbox = {"table": TableName.parse(settings.relay.outbox.table).sql}
    slot = {"slot": settings.database.slot}
    with translated_errors("reading settings and slots"):
        values = execute(query("read_server_settings"), {"names": list(_SETTINGS)})
        return SourceHealth(
            settings={name: value for name, value, _ in values},
            slots=[_slot(row) for (row,) in execute(query("read_slots"))],
            spilled=execute(query("read_spilled"), slot).fetchone() or (0, 0, 0),
            standbys=[name for (name,) in execute(query("read_standbys"))],
            outbox=OutboxSize(
                *(execute(query("read_outbox_health"), outbox).fetchone() or ())
            ),
            collation=execute(query("read_collation_versions")).fetchone()
            or (None, None),
            unarchived=next(
                (name for (name,) in execute(query("read_unarchived_log"))), None
            ),
        )


def _slot(row: Mapping[str, Any]) -> Slot:
    return Slot(
        name=row["slot_name"],
        is_logical=row["slot_type"] == "logical",
        is_here=row["is_here"],
        is_active=row["active"],
        retained_bytes=row["retained_bytes"],
        safe_wal_bytes=row.get("safe_wal_size"),
        wal_status=row["wal_status"],
        catalog_age=row["catalog_age"],
        inactive_s=row["inactive_s"],
        has_failover=row.get("failover"),
        is_synced=row.get("synced") or False,
    )


def health_findings(
    health: SourceHealth, facts: SourceFacts, settings: Settings
) -> list[CheckFinding]:
    """Return the risks of a server that is, or will be, followed. Does no I/O."""
    own = next(
        (each for each in health.slots if each.name == settings.database.slot), None
    )
    found = [
        *_durability_findings(health),
        *_collation_findings(health),
        *_limit_findings(health, settings),
        *_archive_findings(health),
        *_foreign_slots(health, settings),
        *_publications(facts, settings),
        *_outbox_findings(health, facts, settings),
        *_full_identities(facts, settings),
    ]
    if own is not None:
        found += _slot_findings(own, health, settings)
        found += _failover_findings(own, health, facts)
    return found


def _durability_findings(health: SourceHealth) -> Iterator[CheckFinding]:
    if health.settings.get("fsync") == _OFF:
        yield error_finding(
            "postgres-fsync",
            "fsync is off",
            "a crash of the machine loses commits that are in Kafka already, or the "
            "whole database",
            "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
        )
    if health.settings.get("full_page_writes") == _OFF:
        yield warning_finding(
            "postgres-full-page-writes",
            "full_page_writes is off",
            "a crash of the machine can leave torn pages, and a restored backup has "
            "a history that the relay has not followed",
            "ALTER SYSTEM SET full_page_writes = on; SELECT pg_reload_conf()",
        )
    if health.settings.get("data_checksums") == _OFF:
        yield info_finding(
            "postgres-checksums",
            "data_checksums is off",
            "damage to a page goes unnoticed, and snapshots publish its rows",
            "stop the server and run pg_checksums --enable",
        )
    if health.settings.get("autovacuum") == _OFF:
        yield warning_finding(
            "postgres-autovacuum",
            "autovacuum is off",
            "the tables of outbox, signals and heartbeats grow with every change",
            "ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",
        )


def _collation_findings(health: SourceHealth) -> Iterator[CheckFinding]:
    built, current = health.collation
    if built is not None and current is not None and built != current:
        yield warning_finding(
            "postgres-collation-version",
            f"the database's indexes were built with version {built} of its collation, "
            f"but the system has {current}",
            "text keys may be out of order in their indexes: chunks of snapshots skip "
            "rows",
            "REINDEX DATABASE CONCURRENTLY, then ALTER DATABASE ... REFRESH COLLATION "
            "VERSION",
        )


def _limit_findings(health: SourceHealth, settings: Settings) -> Iterator[CheckFinding]:
    timeout_ms = int(health.settings.get("wal_sender_timeout", 60_000))
    if timeout_ms < _MIN_SENDER_TIMEOUT_MS:
        effect = "a connection that died keeps the slot, and no relay can take it over"
        if timeout_ms:
            effect = "the server ends the stream after one late report from the relay"
        yield warning_finding(
            "postgres-sender-timeout",
            f"wal_sender_timeout is {timeout_ms} ms",
            effect,
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf()",
        )
    keep = int(health.settings.get("max_slot_wal_keep_size", -1))
    alarm = settings.relay.retained_critical_bytes
    if keep >= 0 and keep * _MEBIBYTE <= alarm:
        yield warning_finding(
            "postgres-wal-bound-low",
            f"max_slot_wal_keep_size is {keep} MB, but the relay's alarm "
            f"(retained_critical_bytes) is {alarm // _MEBIBYTE} MB",
            "the server drops log that the slot needs before anybody is warned",
            f"ALTER SYSTEM SET max_slot_wal_keep_size = '{2 * alarm // _MEBIBYTE}MB'; "
            "SELECT pg_reload_conf(); or lower [relay] retained_critical_bytes",
        )
    idle_s = int(health.settings.get("idle_replication_slot_timeout", 0))
    if 0 < idle_s < _MIN_IDLE_S:
        yield warning_finding(
            "postgres-idle-slot-timeout",
            f"idle_replication_slot_timeout is {idle_s} s",
            "a relay that is stopped for longer loses its slot, and with it changes",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; "
            "SELECT pg_reload_conf()",
        )


def _archive_findings(health: SourceHealth) -> Iterator[CheckFinding]:
    if health.unarchived is not None:
        yield warning_finding(
            "postgres-archive-failing",
            f"the server cannot archive the file {health.unarchived} of its log",
            "the server keeps this file and all later ones, whatever bounds the slot "
            "has, until its disk is full",
            "correct archive_command or archive_library: the server's own log says why "
            "it failed",
        )


def _slot_findings(
    slot: Slot, health: SourceHealth, settings: Settings
) -> Iterator[CheckFinding]:
    relay = settings.relay
    retained = slot.retained_bytes
    if retained >= relay.retained_warning_bytes:
        is_critical = retained >= relay.retained_critical_bytes
        level = error_finding if is_critical else warning_finding
        yield level(
            "slot-retained-log",
            f"slot {slot.name} retains {_size(retained)} of log",
            "the disk of the source fills, or the server drops log that is needed",
            "start the relay, or find what holds it back: towpath relay status",
        )
    is_ending, room = slot.wal_status == "unreserved", slot.safe_wal_bytes
    keep = int(health.settings.get("max_slot_wal_keep_size", -1)) * _MEBIBYTE
    if is_ending or (room is not None and room < _MIN_REMAINING_SHARE * keep):
        level = error_finding if is_ending else warning_finding
        yield level(
            "slot-near-limit",
            f"slot {slot.name} may be invalidated after {_size(max(0, room or 0))} "
            f"more of log (wal_status {slot.wal_status})",
            "changes are lost, and snapshots must close the gap",
            "start the relay; raise the bound meanwhile: ALTER SYSTEM SET "
            "max_slot_wal_keep_size = -1; SELECT pg_reload_conf()",
        )
    yield from _reader_findings(slot, settings)
    yield from _spill_findings(health)


def _reader_findings(slot: Slot, settings: Settings) -> Iterator[CheckFinding]:
    """Yield findings if a slot has no reader, or holds back vacuum of the catalog."""
    if not slot.is_active:
        idle_s, limit_s = slot.inactive_s, settings.relay.inactive_critical_s
        is_long = idle_s is not None and idle_s >= limit_s
        level = error_finding if is_long else info_finding
        since = "" if idle_s is None else f" for {idle_s:.0f} s"
        yield level(
            "slot-inactive",
            f"slot {slot.name} has had no reader{since}",
            "its log grows, and no change is published",
            "towpath relay run",
        )
    if slot.catalog_age >= _OLD_CATALOG:
        yield warning_finding(
            "slot-old-catalog",
            f"slot {slot.name} keeps catalog rows of the last {slot.catalog_age} "
            "transactions",
            "the catalog is not vacuumed, and the server nears a wraparound",
            "start the relay; a slot that nobody needs: "
            f"SELECT pg_drop_replication_slot('{slot.name}')",
        )


def _spill_findings(health: SourceHealth) -> Iterator[CheckFinding]:
    total, spilled, spilled_bytes = health.spilled
    if spilled_bytes >= _GIBIBYTE and spilled > _SPILLED_SHARE * total:
        yield warning_finding(
            "slot-spilled",
            f"{spilled} of {total} transactions were spilled to disk, "
            f"{_size(spilled_bytes)}",
            "their changes arrive late, and the server's disk is busy",
            "ALTER SYSTEM SET logical_decoding_work_mem = '256MB'; "
            "SELECT pg_reload_conf(); write in smaller transactions",
        )


def _foreign_slots(health: SourceHealth, settings: Settings) -> Iterator[CheckFinding]:
    """Yield a finding for each other slot without a reader: it fills the same disk."""
    bound = settings.relay.retained_warning_bytes
    for slot in health.slots:
        if slot.name == settings.database.slot or slot.is_active:
            continue
        if slot.retained_bytes >= bound and not slot.is_synced:
            yield warning_finding(
                "slot-unread",
                f"slot {slot.name} of another, disconnected reader retains "
                f"{_size(slot.retained_bytes)} of log",
                "its log fills the disk that the source needs",
                "start its reader, or, if nobody needs it: "
                f"SELECT pg_drop_replication_slot('{slot.name}')",
            )


def _failover_findings(
    slot: Slot, health: SourceHealth, facts: SourceFacts
) -> Iterator[CheckFinding]:
    """Yield findings about losses on promotion; none without a standby."""
    physical = [each for each in health.slots if not each.is_logical]
    if not (health.standbys or physical):
        return
    names = ", ".join(health.standbys) or ", ".join(each.name for each in physical)
    if facts.server.version < _FAILOVER_VERSION:
        yield info_finding(
            "slot-failover-unsupported",
            f"the server has standbys ({names}), and its version cannot copy slots",
            "after a promotion the slot is missing: a gap that snapshots close",
            "upgrade to Postgres 17 or later",
        )
        return
    if slot.has_failover is False:
        yield warning_finding(
            "slot-no-failover",
            f"slot {slot.name} is not copied to the standbys ({names})",
            "after a promotion the slot is missing: a gap that snapshots close",
            "stop the relay, and run over a replication connection (psql "
            f"'... replication=database'): ALTER_REPLICATION_SLOT {quoted(slot.name)} "
            "(FAILOVER true)",
        )
    if not health.settings.get("synchronized_standby_slots"):
        slots = ", ".join(each.name for each in physical) or "<slot of the standby>"
        yield warning_finding(
            "postgres-standby-behind",
            "synchronized_standby_slots is empty, and the server has standbys "
            f"({names})",
            "changes can be published that a promoted standby does not have",
            f"ALTER SYSTEM SET synchronized_standby_slots = '{slots}'; "
            "SELECT pg_reload_conf()",
        )


def _publications(facts: SourceFacts, settings: Settings) -> Iterator[CheckFinding]:
    source, outbox = settings.database, settings.relay.outbox
    rows = facts.publications.get(source.publication)
    if rows is not None and rows.is_for_all:
        yield error_finding(
            "publication-for-all",
            f"publication {source.publication} is for all tables",
            "updates of tables without a key fail; relay init refuses the publication",
            f"DROP PUBLICATION {quoted(source.publication)}, then towpath relay init",
        )
    elif rows is not None:
        yield from _row_publication(rows, facts, settings)
    events = facts.publications.get(source.outbox_publication)
    if events is not None and events.operations[2]:
        yield warning_finding(
            "publication-outbox-deletes",
            f"publication {source.outbox_publication} sends deletes of {outbox.table}",
            "every cleaned event passes through the slot again",
            "run towpath relay init, which corrects it",
        )


def _row_publication(
    rows: PublicationFacts, facts: SourceFacts, settings: Settings
) -> Iterator[CheckFinding]:
    """Yield findings where the row publication differs from the configuration."""
    source = settings.database
    for name in settings.capture.chosen(facts.tables):
        is_partitioned = facts.tables.get(name) and facts.tables[name].kind == "p"
        if is_partitioned and not rows.via_root:
            yield error_finding(
                "publication-via-root",
                f"publication {source.publication} sends {name} as its partitions",
                "changes arrive under the partitions' names, snapshots under the "
                "table's: sinks have every row twice",
                SqlFix(
                    f"ALTER PUBLICATION {quoted(source.publication)} SET "
                    "(publish_via_partition_root = true)"
                ),
            )
    surplus = sorted(
        name
        for name in rows.tables
        if not settings.capture.includes(name)
        and name not in {"towpath.signal", settings.relay.snapshot.signal_table}
    )
    if surplus:
        yield warning_finding(
            "publication-table-foreign",
            f"publication {source.publication} also sends {', '.join(surplus)}",
            "changes to tables that are not configured are published too",
            "run towpath relay init, which removes them from the publication",
        )


def _outbox_findings(
    health: SourceHealth, facts: SourceFacts, settings: Settings
) -> Iterator[CheckFinding]:
    name, size = settings.relay.outbox.table, health.outbox
    if name not in facts.own_tables:
        return
    if size.bytes >= _LARGE_OUTBOX_BYTES:
        yield warning_finding(
            "outbox-large",
            f"table {name} takes {_size(size.bytes)} and has about {size.rows} rows",
            "its inserts and backups become slow, and nobody reads old events there",
            "run towpath outbox clean, daily",
        )
    if size.dead_rows >= _DEAD_ROWS and size.dead_rows > size.rows:
        yield warning_finding(
            "outbox-dead-rows",
            f"table {name} has {size.dead_rows} dead rows and {size.rows} live ones",
            "the table grows despite its cleaning: a transaction or a slot keeps rows",
            f"VACUUM {TableName.parse(name).sql}; end old transactions "
            "(transaction-old); a partitioned outbox leaves no dead rows",
        )
    for partition in size.detaching:
        yield warning_finding(
            "outbox-partition-detaching",
            f"the detaching of partition {partition} was interrupted",
            "its rows are hidden and keep their space, and no other partition can be "
            "detached",
            f"ALTER TABLE {TableName.parse(name).sql} DETACH PARTITION {partition} "
            "FINALIZE",
        )


def _full_identities(facts: SourceFacts, settings: Settings) -> Iterator[CheckFinding]:
    """Yield a finding for each table whose updates also log the whole old row."""
    for name in settings.capture.chosen(facts.tables):
        table = facts.tables.get(name)
        if table is None or not table.key:
            continue
        if any(member.identity == "f" for member in table.members):
            yield info_finding(
                "table-identity-full",
                f"{name}: replica identity FULL, despite a primary key",
                "every update and delete writes the whole old row into the log",
                f"keep it if readers need old rows; else ALTER TABLE "
                f"{TableName.parse(name).sql} REPLICA IDENTITY DEFAULT",
            )


def _size(count: int) -> str:
    for unit, size in (("GB", _GIBIBYTE), ("MB", _MEBIBYTE), ("kB", 1024)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
