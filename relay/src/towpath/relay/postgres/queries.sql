-- catalog and slot ------------------------------------------------------------------

-- name: read_keys
-- Of each index that tells rows apart, its columns in key order: the primary key's
-- first, then the replica identity's, then the oldest.
select array_agg(a.attname::text order by k.place)
from pg_catalog.pg_index i
cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (attnum, place)
left join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = %(oid)s::oid and i.indisunique and i.indimmediate and i.indisvalid
    and i.indpred is null and k.place <= i.indnkeyatts
group by i.indexrelid, i.indisprimary, i.indisreplident
having bool_and(a.attnotnull is true and k.attnum > 0)
order by i.indisprimary desc, i.indisreplident desc, i.indexrelid

-- name: read_types
-- Of types and of all inside them (elements, what domains are over, fields): oid, name,
-- full name without modifiers, typtype, typcategory; the array's element, the element's
-- delimiter; the domain's base and modifier; an enum's labels in order; a composite's
-- fields in order.
with recursive inside (oid) as (
    select unnest(%(oids)s::oid[])
    union
    select n.oid
    from inside
    join pg_catalog.pg_type t on t.oid = inside.oid
    cross join lateral (
        select t.typbasetype where t.typtype = 'd'
        union all
        select e.oid from pg_catalog.pg_type e where e.typarray = t.oid
        union all
        select a.atttypid from pg_catalog.pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0
            and not a.attisdropped
    ) n (oid)
)
select t.oid::bigint, t.typname::text, pg_catalog.format_type(t.oid, null),
    t.typtype::text, t.typcategory::text,
    coalesce(
        (select e.oid::bigint from pg_catalog.pg_type e where e.typarray = t.oid), 0
    ),
    t.typdelim::text,
    case when t.typtype = 'd' then t.typbasetype::bigint else 0 end, t.typtypmod,
    (select array_agg(l.enumlabel::text order by l.enumsortorder)
        from pg_catalog.pg_enum l where l.enumtypid = t.oid),
    (select json_agg(json_build_array(a.attname, a.atttypid::bigint, a.atttypmod)
            order by a.attnum)
        from pg_catalog.pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0
            and not a.attisdropped)
from pg_catalog.pg_type t
where t.oid in (select oid from inside)

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

-- name: read_log_end
-- The end of the log, as a number.
select (pg_catalog.pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint

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
-- Version as a number, wal_level, the database's encoding; whether the server only
-- replays, and whether this role may replicate; slots and senders, allowed and used;
-- the bounds of retained log and decoding memory; the server's time.
select current_setting('server_version_num')::int, current_setting('wal_level'),
    pg_catalog.getdatabaseencoding(), pg_catalog.pg_is_in_recovery(),
    (select rolreplication or rolsuper from pg_catalog.pg_roles
        where rolname = current_user),
    current_setting('max_replication_slots')::int,
    (select count(*) from pg_catalog.pg_replication_slots),
    current_setting('max_wal_senders')::int,
    (select count(*) from pg_catalog.pg_stat_activity
        where backend_type = 'walsender'),
    (select setting::bigint from pg_catalog.pg_settings
        where name = 'max_slot_wal_keep_size'),
    (select setting::bigint from pg_catalog.pg_settings
        where name = 'logical_decoding_work_mem'),
    pg_catalog.clock_timestamp()

-- name: read_tables
-- Of tables by schema and name, a row per table, or per leaf partition: kind, whether
-- rows are guarded, key columns, those whose collation is not deterministic; then of
-- the leaf: name, persistence, replica identity and its columns.
select n.nspname || '.' || t.relname, t.relkind::text, t.relrowsecurity,
    k.names, k.unstable_names,
    m.relnamespace::regnamespace::text || '.' || m.relname, m.relpersistence::text,
    m.relreplident::text,
    (select array_agg(a.attname::text) from pg_catalog.pg_index i
        join pg_catalog.pg_attribute a on a.attrelid = i.indrelid
            and a.attnum = any ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
        where i.indrelid = m.oid and case m.relreplident
            when 'd' then i.indisprimary when 'i' then i.indisreplident
            else false end)
from pg_catalog.pg_class t
join pg_catalog.pg_namespace n on n.oid = t.relnamespace
left join lateral (
    select array_agg(a.attname::text order by u.place) as names,
        array_agg(a.attname::text order by u.place)
            filter (where not l.collisdeterministic) as unstable_names
    from pg_catalog.pg_index i
    cross join lateral unnest(i.indkey::smallint[]) with ordinality as u (attnum, place)
    join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = u.attnum
    left join pg_catalog.pg_collation l on l.oid = a.attcollation
    where i.indrelid = t.oid and i.indisprimary and u.place <= i.indnkeyatts
) k on true
left join pg_catalog.pg_class m on t.relkind <> 'p' and m.oid = t.oid
    or t.relkind = 'p' and m.oid in (
        select relid from pg_catalog.pg_partition_tree(t.oid) where isleaf
    ) and m.oid <> t.oid
where n.nspname || '.' || t.relname = any (%(names)s::text[])

-- name: read_publication
-- Whether it is for all tables, and what of insert, update, delete, truncate it sends,
-- and whether partitions go under their root's name.
select puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot
from pg_catalog.pg_publication
where pubname = %(publication)s

-- name: read_publication_tables
-- What a publication names itself: tables, with the columns of their lists and their
-- filters; then its schemas.
select n.nspname || '.' || c.relname,
    (select array_agg(a.attname::text) from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attnum = any (r.prattrs::smallint[])),
    pg_catalog.pg_get_expr(r.prqual, r.prrelid)
from pg_catalog.pg_publication p
join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
join pg_catalog.pg_class c on c.oid = r.prrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where p.pubname = %(publication)s
order by 1

-- name: read_publication_schemas
select n.nspname
from pg_catalog.pg_publication p
join pg_catalog.pg_publication_namespace s on s.pnpubid = p.oid
join pg_catalog.pg_namespace n on n.oid = s.pnnspid
where p.pubname = %(publication)s
order by 1

-- name: read_existing_tables
-- Which of the relay's own tables exist, with the columns that they have today.
select n.nspname || '.' || c.relname
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname || '.' || c.relname = any (%(names)s::text[])
    and (c.relname <> 'snapshot' or exists (
        select from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attname = 'asked_until' and not a.attisdropped
    ))


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
    asked_keys int,
    asked_until text,
    primary key (snapshot_id, collection)
);
alter table towpath.snapshot
    add column if not exists asked_keys int, add column if not exists asked_until text

-- name: read_unfinished_snapshots
-- Every table of each snapshot that has not ended or whose signal was not told so,
-- the first asked first. Keys that were listed are read when it is their turn.
select snapshot_id, collection, ordinal, state, table_oid::bigint, condition, target,
    max_rows_per_second, last_key, maximum_key,
    case when asked_keys is null then pending_keys end, rows, dropped, chunks,
    estimated_rows, error, asked_keys, asked_until
from towpath.snapshot
where snapshot_id in (
        select snapshot_id from towpath.snapshot where state in ('queued', 'running')
        union all
        select id from towpath.signal where status in ('accepted', 'running')
    )
order by queued_at, snapshot_id, ordinal

-- name: read_asked_until
-- Up to which change of the stream the relay's own requests are stored.
select max(asked_until collate "C") from towpath.snapshot

-- name: read_pending_keys
select pending_keys from towpath.snapshot
where snapshot_id = %(snapshot_id)s and collection = %(collection)s

-- name: delete_old_requests
-- Of what the relay asked for by itself: what was completed an hour ago, or failed a
-- week ago. The newest stays, since it tells up to where everything was asked for.
delete from towpath.snapshot
where asked_until is not null
    and (state = 'completed' and completed_at < now() - interval '1 hour'
        or state = 'failed' and updated_at < now() - interval '7 days')
    and asked_until collate "C" < (
        select max(asked_until collate "C") from towpath.snapshot
    )

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
    max_rows_per_second, error, pending_keys, estimated_rows, asked_keys, asked_until,
    updated_at
) values (
    %(snapshot_id)s, %(collection)s, %(ordinal)s, %(state)s, %(table_oid)s,
    %(condition)s, %(target)s, %(max_rows_per_second)s, %(error)s, %(pending_keys)s,
    %(estimated_rows)s, %(asked_keys)s, %(asked_until)s, now()
)

-- name: store_request
-- What a dead process left under the same name, too late for us to see it at start, may
-- list other keys: ours are all that are asked for from the same change on.
insert into towpath.snapshot (
    snapshot_id, collection, ordinal, state, table_oid, pending_keys, estimated_rows,
    asked_keys, asked_until, updated_at
) values (
    %(snapshot_id)s, %(collection)s, %(ordinal)s, %(state)s, %(table_oid)s,
    %(pending_keys)s, %(estimated_rows)s, %(asked_keys)s, %(asked_until)s, now()
)
on conflict (snapshot_id, collection) do update
set state = excluded.state, table_oid = excluded.table_oid,
    pending_keys = excluded.pending_keys, estimated_rows = excluded.estimated_rows,
    asked_keys = excluded.asked_keys, asked_until = excluded.asked_until,
    rows = 0, dropped = 0, chunks = 0, completed_at = null, updated_at = now()

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
    pending_keys = coalesce(%(pending_keys)s, pending_keys), rows = %(rows)s, dropped = %(dropped)s,
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
-- Name, type and modifier, in the order of the table. Before version 18 generated
-- columns are listed as published and never sent.
select a.attname, a.atttypid::bigint, a.atttypmod
from pg_catalog.pg_attribute a
where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
    and (a.attgenerated = '' or current_setting('server_version_num')::int >= 180000)
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

-- history and guard -----------------------------------------------------------------

-- name: read_history
-- Whether the server only replays, the end of its log as a number, and the highest
-- heartbeat; an error where there is no heartbeat table.
select pg_catalog.pg_is_in_recovery(),
    case when pg_catalog.pg_is_in_recovery() then 0
        else (pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint end,
    coalesce((select max(counter) from towpath.heartbeat), 0)

-- name: read_heartbeat
-- It waits for a beat that is decoded already and not visible yet.
select coalesce((select counter from towpath.heartbeat where id = 1 for share), 0)

-- name: read_slot_details
-- Whatever carries the name, in whichever database: database, plugin, whether it is
-- temporary, confirmed LSN as a number, status, holder, and what newer servers tell.
select s.database, s.plugin, s.temporary,
    coalesce((s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, 0),
    s.wal_status, s.active_pid,
    nullif(pg_catalog.to_jsonb(s) ->> 'invalidation_reason', ''),
    (select total_txns from pg_catalog.pg_stat_replication_slots t
        where t.slot_name = s.slot_name),
    pg_catalog.current_database()
from pg_catalog.pg_replication_slots s
where s.slot_name = %(slot)s

-- name: watch_slot
-- Retained bytes, bytes behind the end, what may still be written, status, whether it
-- is followed, seconds since it was, why it was given up; and the outbox's updates.
select coalesce((pg_catalog.pg_current_wal_lsn() - s.restart_lsn)::bigint, 0),
    coalesce((pg_catalog.pg_current_wal_lsn() - s.confirmed_flush_lsn)::bigint, 0),
    s.safe_wal_size, coalesce(s.wal_status, 'lost'), s.active,
    extract(epoch from pg_catalog.clock_timestamp()
        - (pg_catalog.to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8,
    nullif(pg_catalog.to_jsonb(s) ->> 'invalidation_reason', ''),
    (select t.n_tup_upd from pg_catalog.pg_stat_all_tables t
        where t.relid = pg_catalog.to_regclass(%(outbox)s))
from pg_catalog.pg_replication_slots s
where s.slot_name = %(slot)s

-- name: beat
insert into towpath.heartbeat (id, counter, beat_at) values (1, 1, now())
on conflict (id) do update set counter = heartbeat.counter + 1, beat_at = now()
returning counter

-- name: tell_beat
select pg_catalog.pg_logical_emit_message(true, 'towpath.heartbeat', %(content)s::text)

-- name: claim
select pg_catalog.pg_try_advisory_lock(%(key)s)

-- name: read_claim
-- Who has the lock: process id, application, address, and since when.
select a.pid, a.application_name, coalesce(host(a.client_addr), 'the server itself'),
    a.backend_start
from pg_catalog.pg_locks l
join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.database = (select oid from pg_catalog.pg_database
        where datname = pg_catalog.current_database())
    and (l.classid::bigint << 32 | l.objid::bigint) = %(key)s

-- name: drop_slot
select pg_catalog.pg_drop_replication_slot(%(slot)s)

-- name: ask_for_gap
-- Safe to repeat, whatever the table's key.
insert into towpath.signal (id, type, data)
select %(id)s::text, 'execute-snapshot', %(data)s::text
where not exists (select from towpath.signal where id = %(id)s::text)

-- name: read_old_transactions
-- What making a slot waits for: transactions that are running or prepared, the oldest
-- first: process id or name, application, and for how many seconds.
select a.pid::text, coalesce(nullif(a.application_name, ''), a.backend_type),
    extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::float8
from pg_catalog.pg_stat_activity a
where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
union all
select 'prepared ' || p.gid, p.owner::text,
    extract(epoch from pg_catalog.clock_timestamp() - p.prepared)::float8
from pg_catalog.pg_prepared_xacts p
order by 3 desc
