-- catalog and slot ------------------------------------------------------------------

-- name: read_key_columns
-- The primary key's columns, in key order.
select a.attname
from pg_catalog.pg_index i
cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (attnum, place)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = %(oid)s::oid and i.indisprimary and k.place <= i.indnkeyatts
order by k.place

-- name: read_type_names
-- Oid and name, without modifiers, of types.
select oid::bigint, pg_catalog.format_type(oid, null)
from pg_catalog.pg_type
where oid = any (%(oids)s::oid[])

-- name: read_required_columns
-- The columns that are NOT NULL.
select attname
from pg_catalog.pg_attribute
where attrelid = %(oid)s::oid and attnum > 0 and attnotnull and not attisdropped

-- name: read_slot
-- Whether it is active, for whom, its confirmed LSN as a number, the bytes of log that
-- it keeps, and whether that log is still there.
select active, active_pid,
    coalesce((confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, 0),
    coalesce((pg_catalog.pg_current_wal_lsn() - restart_lsn)::bigint, 0),
    wal_status
from pg_catalog.pg_replication_slots
where slot_name = %(slot)s and database = pg_catalog.current_database()

-- name: read_slot_holder
-- Process id, application and address of whoever holds the slot.
select a.pid, a.application_name, coalesce(host(a.client_addr), 'the server itself')
from pg_catalog.pg_replication_slots s
join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
where s.slot_name = %(slot)s

-- set-up ----------------------------------------------------------------------------

-- name: create_schema
create schema if not exists towpath

-- name: create_outbox_table
create table if not exists towpath.outbox (
    id uuid primary key,
    aggregate_type text not null,
    aggregate_id text not null,
    type text not null,
    payload json,
    headers json,
    traceparent text,
    occurred_at timestamptz not null default now()
)

-- name: create_signal_table
create table if not exists towpath.signal (
    id varchar(64) primary key,
    type varchar(32) not null,
    data text,
    status text,
    detail jsonb,
    updated_at timestamptz
)

-- name: create_heartbeat_table
create table if not exists towpath.heartbeat (
    id int primary key,
    counter bigint not null,
    beat_at timestamptz not null
)

-- name: read_server_facts
-- Version as a number, wal_level, and the database's encoding.
select current_setting('server_version_num')::int, current_setting('wal_level'),
    pg_catalog.getdatabaseencoding()

-- name: read_tables
-- Of tables by schema and name: oid, kind, persistence, replica identity, and whether
-- there is a primary key.
select n.nspname || '.' || c.relname, c.relkind::text, c.relpersistence::text,
    c.relreplident::text,
    exists (select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname || '.' || c.relname = any (%(names)s::text[])

-- name: read_publication
-- Whether it is for all tables, and what of insert, update, delete, truncate it sends,
-- and whether partitions go under their root's name.
select puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot
from pg_catalog.pg_publication
where pubname = %(publication)s

-- name: read_publication_tables
-- The tables that a publication names, with their column lists and filters.
select n.nspname || '.' || c.relname, r.prattrs is not null, r.prqual is not null
from pg_catalog.pg_publication p
join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
join pg_catalog.pg_class c on c.oid = r.prrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where p.pubname = %(publication)s
order by 1

-- name: read_existing_tables
-- Which of the relay's own tables exist.
select n.nspname || '.' || c.relname
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname || '.' || c.relname = any (%(names)s::text[])


-- snapshots -------------------------------------------------------------------------

-- name: create_snapshot_table
create table if not exists towpath.snapshot (
    snapshot_id text not null,
    collection text not null,
    ordinal int not null,
    state text not null,
    table_oid oid not null default 0,
    condition text,
    target text,
    max_rows_per_second int,
    last_key jsonb,
    maximum_key jsonb,
    pending_keys jsonb,
    rows bigint not null default 0,
    dropped bigint not null default 0,
    chunks bigint not null default 0,
    estimated_rows bigint not null default 0,
    percent numeric,
    error text,
    queued_at timestamptz not null default now(),
    started_at timestamptz,
    updated_at timestamptz,
    completed_at timestamptz,
    primary key (snapshot_id, collection)
)

-- name: read_unfinished_snapshots
-- Every table of each snapshot that has not ended or whose signal was not told so,
-- the first asked first.
select snapshot_id, collection, ordinal, state, table_oid::bigint, condition, target,
    max_rows_per_second, last_key, maximum_key, pending_keys, rows, dropped, chunks,
    estimated_rows, error
from towpath.snapshot
where snapshot_id in (
        select snapshot_id from towpath.snapshot where state in ('queued', 'running')
        union all
        select id from towpath.signal where status in ('accepted', 'running')
    )
order by queued_at, snapshot_id, ordinal

-- name: read_whether_snapshot_exists
select exists (select from towpath.snapshot where snapshot_id = %(id)s)

-- name: read_whether_signal_exists
select exists (select from towpath.signal where id = %(id)s)

-- name: store_first_answer
-- Nothing is returned if the signal has an answer already, or is gone.
update towpath.signal
set status = %(status)s, detail = %(detail)s, updated_at = now()
where id = %(id)s and status is null
returning id

-- name: store_answer
update towpath.signal
set status = %(status)s, detail = coalesce(detail, '{}') || %(detail)s,
    updated_at = now()
where id = %(id)s

-- name: insert_snapshot
insert into towpath.snapshot (
    snapshot_id, collection, ordinal, state, table_oid, condition, target,
    max_rows_per_second, error, updated_at
) values (
    %(snapshot_id)s, %(collection)s, %(ordinal)s, %(state)s, %(table_oid)s,
    %(condition)s, %(target)s, %(max_rows_per_second)s, %(error)s, now()
)

-- name: stop_snapshot
update towpath.snapshot
set state = 'stopped', updated_at = now()
where snapshot_id = %(snapshot_id)s and collection = %(collection)s
    and state in ('queued', 'running')

-- name: save_progress
-- What was stopped meanwhile stays so, and nothing goes back.
update towpath.snapshot
set state = case when state = 'stopped' then state else %(state)s end,
    last_key = %(last_key)s, maximum_key = %(maximum_key)s,
    pending_keys = %(pending_keys)s, rows = %(rows)s, dropped = %(dropped)s,
    chunks = %(chunks)s, estimated_rows = %(estimated_rows)s, percent = %(percent)s,
    error = %(error)s, started_at = coalesce(started_at, now()), updated_at = now(),
    completed_at = case when %(state)s = 'completed' then now() end
where snapshot_id = %(snapshot_id)s and collection = %(collection)s
    and chunks <= %(chunks)s

-- name: read_visibility
select pg_catalog.pg_current_snapshot()::text

-- name: write_watermark
-- From version 17 on. It is flushed, so that the stream brings it at once.
select pg_catalog.pg_logical_emit_message(false, %(prefix)s, %(token)s::text, true)

-- name: write_watermark_in_transaction
-- Before version 17: the commit flushes it, where a plain message would wait for the
-- log's writer.
select pg_catalog.pg_logical_emit_message(true, %(prefix)s, %(token)s::text)

-- name: describe_table
-- Oid, names, kind and persistence; whether the stream identifies rows by the primary
-- key, in all partitions; the columns that the publication sends and its row filter.
with family as (
    select c.oid from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname || '.' || c.relname = %(collection)s
), members as (
    select oid from family
    union
    select t.relid from family, pg_catalog.pg_partition_tree(family.oid) t
)
select c.oid::bigint, n.nspname, c.relname, c.relkind::text,
    (select max(m.relpersistence) from pg_catalog.pg_class m
        where m.oid in (select oid from members))::text,
    not exists (
        select from pg_catalog.pg_class m
        where m.oid in (select oid from members) and not (
            m.relreplident = 'd' or m.relreplident = 'i' and exists (
                select from pg_catalog.pg_index i
                where i.indrelid = m.oid and i.indisreplident and i.indisprimary
            )
        )
    ),
    c.relreplident::text, p.attnames::text[], p.rowfilter
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_publication_tables p on p.pubname = %(publication)s
    and p.schemaname = n.nspname and p.tablename = c.relname
where c.oid in (select oid from family)

-- name: describe_columns
-- Name, type and modifier, in the order of the table.
select a.attname, a.atttypid::bigint, a.atttypmod
from pg_catalog.pg_attribute a
where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
order by a.attnum

-- name: describe_key
-- Of the primary key's columns, in key order: name, type with modifiers, whether its
-- collation is deterministic, whether its order is what plain operators mean here.
select a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
    coalesce(l.collisdeterministic, true),
    coalesce(bool_or(pg_catalog.pg_operator_is_visible(o.amopopr)), false)
from pg_catalog.pg_index i
cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (attnum, place)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
left join pg_catalog.pg_collation l on l.oid = a.attcollation
join pg_catalog.pg_opclass c on c.oid = i.indclass[k.place - 1]
left join pg_catalog.pg_amop o on o.amopfamily = c.opcfamily and o.amopstrategy = 5
    and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
where i.indrelid = %(oid)s::oid and i.indisprimary and k.place <= i.indnkeyatts
group by k.place, a.attname, a.atttypid, a.atttypmod, l.collisdeterministic
order by k.place
