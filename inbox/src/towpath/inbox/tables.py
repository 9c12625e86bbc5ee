"""
The tables of an inbox, as SQL that is safe to run repeatedly.

The same statements upgrade tables that a development version of 0.2.0 created.
``towpath inbox create`` runs the statements; a migration can contain them.
"""

from typing import Final

from towpath.schemas.table_name import quoted

SCHEMA: Final = "towpath"
# Longer ids are stored as their start and their hash: an index entry holds at most
# 2.7 kB, including the consumer's name.
ID_BYTES: Final = 2_000
ID_START: Final = 200


def create_statements(schema: str = SCHEMA) -> tuple[str, ...]:
    """Return the SQL that creates or upgrades the tables; it is safe to run again."""
    name = quoted(schema)
    return (
        f"create schema if not exists {name}",
        f"""create table if not exists {name}.inbox (
    consumer text not null,
    event_id text not null,
    topic text not null,
    partition int not null,
    "offset" bigint not null,
    applied_at timestamptz not null default now(),
    primary key (consumer, event_id)
)""",
        f"""create table if not exists {name}.inbox_parked (
    consumer text not null,
    topic text not null,
    partition int not null,
    "offset" bigint not null,
    event_id text not null,
    key text,
    value bytea,
    headers json not null,
    reason text not null,
    number bigint generated always as identity,
    parked_at timestamptz not null default now(),
    requested_at timestamptz,
    primary key (consumer, event_id)
)""",
        _parked_upgrade(f"{name}.inbox_parked"),
        # This runs before the indexes are built, which blocks all writes of consumers.
        _id_upgrade(f"{name}.inbox", f"{name}.inbox_parked"),
        # Pruning finds ids by their partition and offset.
        f"""create index if not exists inbox_place
on {name}.inbox (consumer, topic, partition, "offset")""",
        # An index entry holds at most 2.7 kB; a key may be longer.
        f"""create index if not exists inbox_parked_key_start
on {name}.inbox_parked (consumer, topic, {start_of("key")})""",
        f"drop index if exists {name}.inbox_parked_key",
    )


def start_of(key: str) -> str:
    """Return the expression for a key's start, by which parked events are indexed."""
    return f"left({key}, 400)"


def _parked_upgrade(table: str) -> str:
    """
    Return the statement that replaces a development version's primary key.

    That key was the record's topic, partition and offset, which a record of a recreated
    topic can share.
    """
    literal = table.replace("'", "''")
    return f"""do $upgrade$
begin
    if exists (
        select from pg_catalog.pg_constraint c
        join pg_catalog.pg_attribute a
            on a.attrelid = c.conrelid and a.attnum = any (c.conkey)
        where c.conrelid = to_regclass('{literal}')
            and c.contype = 'p' and a.attname = 'offset'
    ) then
        alter table {table} drop constraint inbox_parked_pkey;
        alter table {table} add primary key (consumer, event_id);
    end if;
end
$upgrade$"""


def _id_upgrade(applied: str, parked: str) -> str:
    """
    Return the statement that shortens the long ids of a development version.

    A consumer that ran before the upgrade may have stored such an id again, shortened.
    In that case, the copy that was parked first is kept unless the event was applied,
    and the id is kept as long as the last copy of the event can be read.

    If there are no long ids, the statement takes no lock for which a consumer would
    wait. Concurrent upgrades shorten the ids one after the other.
    """
    literal = applied.replace("'", "''")
    return f"""do $upgrade$
begin
    if not exists (select from {parked} where {_is_long("event_id")})
        and not exists (select from {applied} where {_is_long("event_id")})
    then
        return;
    end if;
    perform pg_advisory_xact_lock(hashtext('{literal}'));
    delete from {parked} long using {applied} again
    where {_is_long("long.event_id")} and again.consumer = long.consumer
        and again.event_id = {_shortened("long.event_id")}
        and not exists (
            select from {parked} short where short.consumer = again.consumer
                and short.event_id = again.event_id
        );
    delete from {parked} again using {parked} long
    where {_is_long("long.event_id")} and again.consumer = long.consumer
        and again.event_id = {_shortened("long.event_id")};
    update {parked} set event_id = {_shortened("event_id")}
    where {_is_long("event_id")};
    with long as (
        delete from {applied} where {_is_long("event_id")} returning *
    )
    insert into {applied} as again
        (consumer, event_id, topic, partition, "offset", applied_at)
    select consumer, {_shortened("event_id")}, topic, partition, "offset", applied_at
    from long
    on conflict (consumer, event_id) do update set
        "offset" = greatest(again."offset", excluded."offset"),
        partition = case when again.partition = excluded.partition
            then again.partition else -1 end;
end
$upgrade$"""  # noqa: S608 - the names are quoted


# Both expressions agree with ``stored_id`` in any database encoding but SQL_ASCII.
def _is_long(column: str) -> str:
    return f"octet_length(convert_to({column}, 'UTF8')) > {ID_BYTES}"


def _shortened(column: str) -> str:
    digest = f"encode(sha256(convert_to({column}, 'UTF8')), 'hex')"
    return f"left({column}, {ID_START}) || '...sha256:' || {digest}"
