-- catalog and slot ------------------------------------------------------------------

-- name: read_keys
-- The columns of each index that identifies rows, in key order: the primary key's
-- first, then the replica identity's, then the oldest. For a dropped table, those of
-- the table that has its name now.
select array_agg(a.attname::text order by k.place)
from pg_catalog.pg_index i
cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (attnum, place)
left join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = coalesce(
        (select oid from pg_catalog.pg_class where oid = %(oid)s::oid),
        (select c.oid from pg_catalog.pg_class c
            join pg_catalog.pg_namespace n on n.oid = c.relnamespace
            where n.nspname = %(schema)s::text and c.relname = %(table)s::text)
    )
    and i.indisunique and i.indimmediate and i.indisvalid
    and i.indpred is null and k.place <= i.indnkeyatts
group by i.indexrelid, i.indisprimary, i.indisreplident
having bool_and(a.attnotnull is true and k.attnum > 0)
order by i.indisprimary desc, i.indisreplident desc, i.indexrelid

-- name: read_types
-- Types and all nested ones (elements, bases of domains, fields): oid, name, full name
-- without modifiers, typtype, typcategory; the array's element, the element's
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
-- Whether it is active, its process id, its confirmed LSN as a number, the bytes of log
-- that it retains, and the status of that log.
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
-- Process id, application, role, address and start of the session that holds the slot;
-- the last two are null where the session is another role's and may not be read.
select a.pid, a.application_name, a.usename, host(a.client_addr), a.backend_start
from pg_catalog.pg_replication_slots s
join pg_catalog.pg_stat_activity a on a.pid = s.active_pid
where s.slot_name = %(slot)s

-- set-up ----------------------------------------------------------------------------

-- name: create_relay_table
create table if not exists towpath.relay (
    name text primary key,
    number int not null unique,
    prefix text not null,
    registered_at timestamptz not null default now()
)

-- name: create_captured_table
create table if not exists towpath.captured (
    relay text not null,
    schema_name text not null,
    table_name text not null,
    table_oid bigint not null,
    lineage int not null,
    captured_at timestamptz not null default now(),
    gone_at timestamptz,
    key_columns jsonb,
    former_key jsonb,
    key_changed_at timestamptz,
    primary key (relay, schema_name, table_name)
);
alter table towpath.captured
    add column if not exists key_columns jsonb,
    add column if not exists former_key jsonb,
    add column if not exists key_changed_at timestamptz

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
    (select count(*) from pg_catalog.pg_stat_replication),
    (select setting::bigint from pg_catalog.pg_settings
        where name = 'max_slot_wal_keep_size'),
    (select setting::bigint from pg_catalog.pg_settings
        where name = 'logical_decoding_work_mem'),
    pg_catalog.clock_timestamp()

-- name: list_tables
-- Tables that expressions may match (partitions by their root), and relations of any
-- kind that are named or published: name, oid, whether it is published.
with published (oid) as (
    select r.prrelid
    from pg_catalog.pg_publication p
    join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
    where p.pubname = %(publication)s
), listed as (
    select c.oid, c.relname, c.relkind, c.relispartition, c.relpersistence, n.nspname,
        c.oid in (select oid from published) or exists (
            select from pg_catalog.pg_publication p
            left join pg_catalog.pg_publication_namespace s on s.pnpubid = p.oid
            where p.pubname = %(publication)s
                and (p.puballtables or s.pnnspid = c.relnamespace)
        ) as is_published
    from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname <> 'pg_catalog'
)
select nspname, relname, oid::bigint,
    is_published and relkind in ('r', 'p')
from listed
where relkind in ('r', 'p') and not relispartition and relpersistence <> 't'
    or oid in (select oid from published)
    or (nspname, relname)
        in (select * from unnest(%(schemas)s::text[], %(tables)s::text[]))
order by 1, 2

-- name: read_heartbeat_numbers
-- The numbers of the relays that have written a heartbeat.
select id from towpath.heartbeat where counter > 0

-- name: list_relays
select name, number from towpath.relay order by number

-- name: read_whether_table_exists
select pg_catalog.to_regclass(%(name)s) is not null

-- name: read_whether_rows_are_unassigned
-- Whether there are snapshots, or answered signals, without a relay.
select exists (select from towpath.snapshot where relay is null)
    or exists (
        select from towpath.signal
        where relay is null and status is not null and status <> 'rejected'
    )

-- name: read_whether_rows_exist
select exists (select from towpath.snapshot)
    or exists (select from towpath.signal where status is not null)

-- name: count_other_slots
-- Slots of this database with our plugin that other processes have created.
select count(*) from pg_catalog.pg_replication_slots
where database = pg_catalog.current_database() and plugin = 'pgoutput'
    and slot_name <> %(slot)s

-- name: read_tables
-- Tables by schema and name, one row per table or per leaf partition: kind, whether
-- row security is on, key columns, those whose collation is not deterministic, stored and
-- virtual generated columns; then the leaf's name, persistence, replica identity and
-- its columns.
select n.nspname, t.relname, t.relkind::text, t.relrowsecurity,
    k.names, k.unstable_names, g.stored_names, g.virtual_names,
    (select s.nspname from pg_catalog.pg_namespace s where s.oid = m.relnamespace),
    m.relname, m.relpersistence::text,
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
left join lateral (
    select array_agg(a.attname::text) filter (where a.attgenerated = 's') stored_names,
        array_agg(a.attname::text) filter (where a.attgenerated = 'v') virtual_names
    from pg_catalog.pg_attribute a
    where a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
        and a.attgenerated <> ''
) g on true
left join pg_catalog.pg_class m on t.relkind <> 'p' and m.oid = t.oid
    or t.relkind = 'p' and m.oid in (
        select relid from pg_catalog.pg_partition_tree(t.oid) where isleaf
    ) and m.oid <> t.oid
where (n.nspname, t.relname)
    in (select * from unnest(%(schemas)s::text[], %(tables)s::text[]))

-- name: read_publication
-- Whether it is for all tables; whether it sends inserts, updates, deletes, truncates;
-- whether partitions are sent under their root's name, and whether stored generated columns
-- are sent.
select puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
    coalesce(pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's', false)
from pg_catalog.pg_publication p
where pubname = %(publication)s

-- name: read_publication_age
-- Whether a publication and its tables were created in transactions that the slot has
-- not streamed yet.
select coalesce(
    pg_catalog.age(p.xmin) < pg_catalog.age(s.catalog_xmin)
        and not exists (
            select from pg_catalog.pg_publication_rel r
            where r.prpubid = p.oid
                and pg_catalog.age(r.xmin) >= pg_catalog.age(s.catalog_xmin)
        ),
    false
)
from pg_catalog.pg_publication p
left join pg_catalog.pg_replication_slots s
    on s.slot_name = %(slot)s and s.database = pg_catalog.current_database()
where p.pubname = %(publication)s

-- name: read_publication_tables
-- The tables that a publication names, with their column lists and row filters.
select n.nspname, c.relname,
    (select array_agg(a.attname::text) from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attnum = any (r.prattrs::smallint[])),
    pg_catalog.pg_get_expr(r.prqual, r.prrelid)
from pg_catalog.pg_publication p
join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
join pg_catalog.pg_class c on c.oid = r.prrelid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where p.pubname = %(publication)s
order by 1, 2

-- name: read_publication_schemas
select n.nspname
from pg_catalog.pg_publication p
join pg_catalog.pg_publication_namespace s on s.pnpubid = p.oid
join pg_catalog.pg_namespace n on n.oid = s.pnnspid
where p.pubname = %(publication)s
order by 1

-- name: list_generating
-- The tables that a publication sends and that have generated columns.
select n.nspname, c.relname
from pg_catalog.pg_publication p
join pg_catalog.pg_class c on c.relkind in ('r', 'p')
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where p.pubname = %(publication)s
    and exists (select from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and a.attnum > 0 and a.attgenerated <> ''
            and not a.attisdropped)
    and (p.puballtables
        or exists (select from pg_catalog.pg_publication_rel r
            where r.prpubid = p.oid and r.prrelid = c.oid)
        or exists (select from pg_catalog.pg_publication_namespace s
            where s.pnpubid = p.oid and s.pnnspid = n.oid))

-- name: read_existing_tables
-- The relay's own tables that exist with all columns of this release.
select n.nspname, c.relname
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where (n.nspname, c.relname)
        in (select * from unnest(%(schemas)s::text[], %(tables)s::text[]))
    and (select count(*) from pg_catalog.pg_attribute a
        where a.attrelid = c.oid and not a.attisdropped
            and a.attname in ('relay', 'key_columns', 'undelivered_keys')
    ) >= case c.relname
        when 'signal' then 1 when 'snapshot' then 3 when 'captured' then 2 else 0
    end


-- name: missing_rights
-- The wanted rights on tables, given as three lists, that this role lacks, and usage of
-- each schema that it may not use. A missing table needs no right.
with wanted as (
    select c.oid, n.oid as space, w.*
    from unnest(%(schemas)s::text[], %(tables)s::text[], %(rights)s::text[])
        as w (schema_name, table_name, "right")
    join pg_catalog.pg_namespace n on n.nspname = w.schema_name
    join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = w.table_name
)
select 'usage', schema_name, null
from wanted
where not pg_catalog.has_schema_privilege(space, 'usage')
group by schema_name
union all
select string_agg("right", ', ' order by "right"), schema_name, table_name
from wanted
where not pg_catalog.has_table_privilege(oid, "right")
group by schema_name, table_name
order by 3 nulls first, 2

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
    kind text not null default 'incremental',
    order_by jsonb,
    ranges jsonb,
    floor bigint,
    sweeps boolean not null default false,
    rows_per_second double precision,
    eta_s double precision,
    key_columns jsonb,
    relay text,
    undelivered bigint not null default 0,
    undelivered_keys jsonb,
    primary key (snapshot_id, collection)
);
alter table towpath.snapshot
    add column if not exists asked_keys int, add column if not exists asked_until text,
    add column if not exists kind text not null default 'incremental',
    add column if not exists order_by jsonb, add column if not exists ranges jsonb,
    add column if not exists floor bigint,
    add column if not exists sweeps boolean not null default false,
    add column if not exists rows_per_second double precision,
    add column if not exists eta_s double precision,
    add column if not exists key_columns jsonb,
    add column if not exists relay text,
    add column if not exists undelivered bigint not null default 0,
    add column if not exists undelivered_keys jsonb

-- name: read_snapshots
-- All tables of one snapshot of a relay, ended or not; or, without an id, of each
-- snapshot that has not ended or whose signal has no final answer, oldest first. Listed
-- keys are read with their table's plan. The last column is whether the signal is
-- running: that status is stored when the snapshot's start is announced.
select snapshot_id, collection, ordinal, state, table_oid::bigint, condition, target,
    max_rows_per_second, last_key, maximum_key,
    case when asked_keys is null then pending_keys end, rows, dropped, chunks,
    estimated_rows, error, asked_keys, asked_until, kind, order_by, ranges, floor,
    sweeps, key_columns, undelivered, undelivered_keys,
    snapshot_id in (select id from towpath.signal where status = 'running')
from towpath.snapshot
where relay = %(relay)s and (
    snapshot_id = %(snapshot_id)s::text
    or %(snapshot_id)s::text is null and snapshot_id in (
        select snapshot_id from towpath.snapshot
        where state in ('queued', 'running', 'paused')
        union all
        select id from towpath.signal where status in ('accepted', 'running')
    )
)
order by queued_at, snapshot_id, ordinal

-- name: reset_foreign_requests
-- A request is stored after its change is streamed, so a position above the log's end is
-- from another log: the table was restored from a dump, or the lineages begin again. It
-- says nothing about the changes of this log.
update towpath.snapshot set asked_until = %(none)s
where relay = %(relay)s and asked_until collate "C" > %(log_end)s

-- name: read_asked_until
-- The position of the last change whose key request is stored.
select max(asked_until collate "C") from towpath.snapshot where relay = %(relay)s

-- name: read_failed_requests
-- Per table, the position of the last change whose key request failed or is incomplete.
select table_oid::bigint, max(asked_until collate "C") from towpath.snapshot
where relay = %(relay)s and asked_until is not null
    and state in ('failed', 'incomplete')
group by table_oid

-- name: read_pending_keys
select pending_keys from towpath.snapshot
where snapshot_id = %(snapshot_id)s and collection = %(collection)s

-- name: delete_old_requests
-- Key requests that were completed an hour ago, or failed or became incomplete a week
-- ago. The newest stays: it has the position up to which all requests are stored. So
-- does each table's newest that failed: a scan that began before it reads all rows again
-- once it is resumed.
delete from towpath.snapshot old
where asked_until is not null and relay = %(relay)s
    and (state = 'completed' and completed_at < now() - interval '1 hour'
        or state in ('failed', 'incomplete')
        and updated_at < now() - interval '7 days'
        and exists (
            select from towpath.snapshot newer
            where newer.relay = old.relay and newer.table_oid = old.table_oid
                and newer.state in ('failed', 'incomplete')
                and newer.asked_until collate "C" > old.asked_until
        ))
    and asked_until collate "C" < (
        select max(asked_until collate "C") from towpath.snapshot
        where relay = %(relay)s
    )

-- name: read_whether_snapshot_exists
select exists (select from towpath.snapshot where snapshot_id = %(id)s)

-- name: read_highest_gap
-- Of the signals that fill gaps; other ids may begin like theirs.
select coalesce(max(substring(id from '^gap-([0-9]{1,9})(?![0-9])')::int), 0)
from towpath.signal
where starts_with(id, 'gap-')

-- name: read_whether_signal_exists
select exists (select from towpath.signal where id = %(id)s)

-- name: insert_signal
-- Nothing is returned if the id is used.
insert into towpath.signal (id, type, data, relay)
values (%(id)s::text, %(type)s::text, %(data)s::text, %(relay)s::text)
on conflict (id) do nothing
returning id

-- name: read_whether_same_signal
select type = %(type)s::text and data is not distinct from %(data)s::text
from towpath.signal where id = %(id)s::text

-- name: list_snapshots
-- The tables of a snapshot, or of all that signals requested of a relay, as JSON, the
-- newest first; without listed keys, which can be many.
select pg_catalog.to_jsonb(s) - 'pending_keys'
from towpath.snapshot s
where coalesce(
    s.snapshot_id = %(id)s::text, s.asked_until is null and s.relay = %(relay)s
)
order by s.queued_at desc, s.snapshot_id, s.ordinal
limit %(limit)s

-- name: show_signal
select pg_catalog.to_jsonb(s) from towpath.signal s where s.id = %(id)s::text

-- name: store_first_answer
-- Nothing is returned if the signal is answered already, or deleted. Without a relay
-- the signal's own stays.
update towpath.signal
set status = %(status)s, detail = %(detail)s, updated_at = now(),
    relay = coalesce(%(relay)s::text, relay)
where id = %(id)s and status is null
returning id

-- name: read_now
-- The start of this transaction.
select now()

-- name: read_whether_stored
-- Whether a transaction that began at one of these times has answered the signal. The
-- signal's row may be deleted.
select exists (
    select from towpath.signal
    where id = %(id)s and status is not null and updated_at = any (%(attempts)s)
) or exists (
    select from towpath.snapshot
    where snapshot_id = %(id)s and updated_at = any (%(attempts)s)
)

-- name: read_signal_relay
select relay from towpath.signal where id = %(id)s

-- name: store_answer
update towpath.signal
set status = %(status)s, detail = coalesce(detail, '{}') || %(detail)s,
    updated_at = now()
where id = %(id)s

-- name: reopen_signal
-- A snapshot that had ended is resumed: its signal no longer has a final answer.
update towpath.signal set status = 'accepted', updated_at = now()
where id = %(id)s and status in ('failed', 'incomplete')

-- name: insert_snapshot
insert into towpath.snapshot (
    snapshot_id, collection, ordinal, state, table_oid, condition, target,
    max_rows_per_second, error, pending_keys, estimated_rows, asked_keys, asked_until,
    kind, order_by, sweeps, relay, updated_at
) values (
    %(snapshot_id)s, %(collection)s, %(ordinal)s, %(state)s, %(table_oid)s,
    %(condition)s, %(target)s, %(max_rows_per_second)s, %(error)s, %(pending_keys)s,
    %(estimated_rows)s, %(asked_keys)s, %(asked_until)s, %(kind)s, %(order_by)s,
    %(sweeps)s, %(relay)s, now()
)

-- name: store_request
-- A row that a dead process stored under the same name after our start may list other
-- keys: ours include all requests from the same change on.
insert into towpath.snapshot (
    snapshot_id, collection, ordinal, state, table_oid, pending_keys, estimated_rows,
    asked_keys, asked_until, relay, updated_at
) values (
    %(snapshot_id)s, %(collection)s, %(ordinal)s, %(state)s, %(table_oid)s,
    %(pending_keys)s, %(estimated_rows)s, %(asked_keys)s, %(asked_until)s, %(relay)s,
    now()
)
on conflict (snapshot_id, collection) do update
set state = excluded.state, table_oid = excluded.table_oid,
    pending_keys = excluded.pending_keys, estimated_rows = excluded.estimated_rows,
    asked_keys = excluded.asked_keys, asked_until = excluded.asked_until,
    rows = 0, dropped = 0, chunks = 0, completed_at = null, updated_at = now()

-- name: change_snapshot
-- A table that a signal stops, pauses or queues again; one that has ended meanwhile is
-- neither stopped nor paused. A table that is read by a surrogate key, and had ended,
-- starts from the beginning: meanwhile no key request covered rows that left the unread
-- range. An incomplete table reads its undelivered keys again or, if not all of them
-- are kept, the whole table; of listed keys those that are not kept stay undelivered.
update towpath.snapshot s
set state = %(state)s, error = %(error)s, updated_at = now(), completed_at = null,
    last_key = case when not b.begins_again then last_key end,
    maximum_key = case when not b.begins_again then maximum_key end,
    ranges = case when not b.begins_again then ranges end,
    key_columns = case when not b.begins_again then key_columns end,
    rows = case when b.begins_again then 0 else rows end,
    dropped = case when b.begins_again then 0 else dropped end,
    percent = case when not b.begins_again then percent end,
    pending_keys = case when b.is_incomplete then %(pending_keys)s else pending_keys end,
    undelivered = case when b.is_incomplete then %(undelivered)s else undelivered end,
    undelivered_keys = case when not b.is_incomplete then undelivered_keys end
from (
    select t.snapshot_id, t.collection,
        %(state)s = 'queued' and t.state = 'incomplete' as is_incomplete,
        %(state)s = 'queued' and (
            t.order_by is not null and t.state <> 'paused'
            or t.state = 'incomplete'
                and t.undelivered > coalesce(jsonb_array_length(t.undelivered_keys), 0)
        ) as begins_again
    from towpath.snapshot t
) b
where s.snapshot_id = %(snapshot_id)s and s.collection = %(collection)s
    and b.snapshot_id = s.snapshot_id and b.collection = s.collection
    and case when %(state)s = 'queued'
        then s.state in ('paused', 'failed', 'stopped', 'incomplete')
        else s.state in ('queued', 'running', 'paused') end

-- name: save_progress
-- A table stopped or paused meanwhile stays so, and progress never goes back.
update towpath.snapshot
set state = case when state = 'stopped' or state = 'paused' and %(state)s = 'running'
        then state else %(state)s end,
    last_key = %(last_key)s, maximum_key = %(maximum_key)s,
    pending_keys = coalesce(%(pending_keys)s, pending_keys),
    ranges = %(ranges)s, floor = %(floor)s, key_columns = %(key_columns)s,
    undelivered = %(undelivered)s, undelivered_keys = %(undelivered_keys)s,
    rows_per_second = %(rows_per_second)s,
    eta_s = %(eta_s)s, rows = %(rows)s, dropped = %(dropped)s,
    chunks = %(chunks)s, estimated_rows = %(estimated_rows)s, percent = %(percent)s,
    error = %(error)s, started_at = coalesce(started_at, now()), updated_at = now(),
    completed_at = case when %(state)s = 'completed' then now() end
where snapshot_id = %(snapshot_id)s and collection = %(collection)s
    and chunks <= %(chunks)s

-- name: read_visibility
select pg_catalog.pg_current_snapshot()::text

-- name: write_watermark
-- From version 17 on: flushed, so that the stream brings it at once.
select pg_catalog.pg_logical_emit_message(false, %(prefix)s, %(token)s::text, true)

-- name: write_watermark_in_transaction
-- Before version 17: the commit flushes it; a plain message would wait for the WAL
-- writer.
select pg_catalog.pg_logical_emit_message(true, %(prefix)s, %(token)s::text)

-- name: open_window
-- A watermark as a row with a unique id.
insert into towpath.signal (id, type, data)
values (%(id)s, 'snapshot-window-open', %(token)s)

-- name: close_window
insert into towpath.signal (id, type, data)
values (%(id)s, 'snapshot-window-close', %(token)s)

-- name: delete_window
delete from towpath.signal where id = %(id)s

-- name: export_snapshot
select pg_catalog.pg_export_snapshot()

-- name: lift_session_limits
-- The session stays idle for as long as it holds the exported snapshot.
select pg_catalog.set_config(name, '0', false)
from pg_catalog.pg_settings
where name in ('statement_timeout', 'idle_in_transaction_session_timeout',
    'idle_session_timeout', 'transaction_timeout')

-- name: read_altered_tables
-- The tables that this transaction has locked, and the partitions that it shows below
-- them: name; whether its storage differs from the one that this transaction shows, or
-- the table is not shown, or is neither locked nor a partition anymore; the
-- transactions that have rewritten its description after the version that is shown here.
-- The server locks no partition that the plan of a SELECT leaves out.
with recursive locked (oid) as (
    select distinct l.relation from pg_catalog.pg_locks l
    where l.pid = pg_catalog.pg_backend_pid() and l.locktype = 'relation'
        and l.granted and l.relation >= 16384
        and l.database = (select d.oid from pg_catalog.pg_database d
            where d.datname = pg_catalog.current_database())
), family (oid) as (
    select oid from locked
    union
    select i.inhrelid from family f
    join pg_catalog.pg_inherits i on i.inhparent = f.oid
    join pg_catalog.pg_class p on p.oid = f.oid and p.relkind = 'p'
)
select f.oid::regclass::text,
    c.oid is null or l.oid is null and pg_catalog.pg_partition_root(f.oid) is null
        or coalesce(pg_catalog.pg_relation_filenode(f.oid), 0) <> c.relfilenode,
    array(
        select c.xmax::text::bigint where c.xmax::text <> '0'
        union
        select a.xmax::text::bigint from pg_catalog.pg_attribute a
        where a.attrelid = f.oid and a.xmax::text <> '0'
    )
from family f
left join locked l on l.oid = f.oid
left join pg_catalog.pg_class c on c.oid = f.oid
where coalesce(c.relkind, 'r') in ('r', 'p', 'v')
order by 1

-- name: read_load
-- The number of other sessions at work in the server; for a role that may not read
-- their state, those with an open transaction.
select count(*)
from pg_catalog.pg_stat_activity a
where a.datid is not null and a.usesysid is not null
    and coalesce(a.backend_type, 'client backend') = 'client backend'
    and a.pid <> pg_catalog.pg_backend_pid()
    and (a.application_name <> pg_catalog.current_setting('application_name')
        or a.application_name = '')
    and a.pid <> all (%(own_pids)s::int[])
    and coalesce(a.state = 'active', exists (
        select from pg_catalog.pg_locks l
        where l.pid = a.pid and l.locktype = 'virtualxid' and l.granted
    ))

-- name: describe_table
-- Oid, names, kind, the highest persistence in the family; a partition that is a foreign
-- table; the root of the partition tree that it belongs to; whether this role may read
-- it, and whether row policies apply; whether the publication sends it under its own
-- name, and its row filter. The server's view pg_publication_tables is not used: it
-- opens, and so locks, every table.
with family as (
    select c.oid from pg_catalog.pg_class c
    join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %(schema)s and c.relname = %(table)s
), members as (
    select oid from family
    union
    select t.relid from family, pg_catalog.pg_partition_tree(family.oid) t
), above as (
    select oid from family
    union
    select a.relid from family, pg_catalog.pg_partition_ancestors(family.oid) a
), sent as (
    select a.oid, p.pubviaroot
    from above a
    join pg_catalog.pg_class t on t.oid = a.oid
    join pg_catalog.pg_publication p on p.pubname = %(publication)s
    where p.puballtables
        or exists (select from pg_catalog.pg_publication_rel r
            where r.prpubid = p.oid and r.prrelid = a.oid)
        or exists (select from pg_catalog.pg_publication_namespace s
            where s.pnpubid = p.oid and s.pnnspid = t.relnamespace)
)
select c.oid::bigint, n.nspname, c.relname, c.relkind::text,
    (select max(m.relpersistence) from pg_catalog.pg_class m
        where m.oid in (select oid from members))::text,
    (select min(m.oid::regclass::text) from pg_catalog.pg_class m
        where m.oid in (select oid from members) and m.relkind = 'f'),
    case when c.relispartition
        then pg_catalog.pg_partition_root(c.oid)::regclass::text end,
    pg_catalog.has_table_privilege(c.oid, 'select'),
    c.relrowsecurity and pg_catalog.row_security_active(c.oid),
    (select case when bool_or(pubviaroot) then bool_and(oid = c.oid)
            else count(*) > 0 and c.relkind <> 'p' end from sent),
    (select pg_catalog.pg_get_expr(r.prqual, r.prrelid)
        from pg_catalog.pg_publication p
        join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
        where p.pubname = %(publication)s and r.prrelid = c.oid
            and not exists (select from pg_catalog.pg_publication_namespace s
                where s.pnpubid = p.oid and s.pnnspid = c.relnamespace))
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.oid in (select oid from family)

-- name: describe_identities
-- The table, and then its leaf partitions: name, replica identity, and the identity's
-- columns in the stream.
select m.oid::regclass::text as name, m.relreplident::text,
    (select array_agg(a.attname::text) from pg_catalog.pg_index i
        join pg_catalog.pg_attribute a on a.attrelid = i.indrelid
            and a.attnum = any ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
        where i.indrelid = m.oid and i.indisvalid and i.indimmediate
            and case m.relreplident when 'd' then i.indisprimary
                when 'i' then i.indisreplident else false end) as columns
from pg_catalog.pg_class m
where m.oid = %(oid)s::oid or m.oid in (
        select relid from pg_catalog.pg_partition_tree(%(oid)s::oid) where isleaf
    )
order by m.oid <> %(oid)s::oid, 1

-- name: describe_indexes
-- The unique indexes: oid, name, columns in order (null for an expression), whether
-- it is the primary key's or the replica identity, immediate, valid, partial; its
-- columns that may be null. The primary key's first, then the replica identity's, then
-- the oldest.
select i.indexrelid::bigint, c.relname::text,
    array_agg(a.attname::text order by k.place) as columns,
    i.indisprimary, i.indisreplident, i.indimmediate, i.indisvalid,
    i.indpred is not null as is_partial,
    coalesce(
        array_agg(a.attname::text order by k.place) filter (where not a.attnotnull), '{}'
    ) as nullable
from pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indexrelid
cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (attnum, place)
left join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
where i.indrelid = %(oid)s::oid and i.indisunique and k.place <= i.indnkeyatts
group by i.indexrelid, c.relname, i.indisprimary, i.indisreplident, i.indimmediate,
    i.indisvalid, i.indpred is not null
order by i.indisprimary desc, i.indisreplident desc, i.indexrelid

-- name: describe_columns
-- The columns that the publication sends: name, type and modifier, in the order of the
-- table. Before version 18 generated columns are never sent; from then on if they
-- are listed, or stored ones if the publication says so.
select a.attname, a.atttypid::bigint, a.atttypmod
from pg_catalog.pg_attribute a
join pg_catalog.pg_class c on c.oid = a.attrelid
join pg_catalog.pg_publication p on p.pubname = %(publication)s
left join pg_catalog.pg_publication_rel r on r.prpubid = p.oid and r.prrelid = c.oid
    and not exists (select from pg_catalog.pg_publication_namespace s
        where s.pnpubid = p.oid and s.pnnspid = c.relnamespace)
where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
    and (r.prattrs is null or a.attnum = any (r.prattrs::smallint[]))
    and (a.attgenerated = '' or current_setting('server_version_num')::int >= 180000
        and (r.prattrs is not null
            or a.attgenerated = 's' and pg_catalog.to_jsonb(p) ->> 'pubgencols' = 's'))
order by a.attnum

-- name: describe_keys
-- The columns of each unique index, in key order: index, name, type with modifiers,
-- whether its collation is deterministic, whether its order is that of the plain
-- operators, its collation.
select i.indexrelid::bigint, a.attname,
    pg_catalog.format_type(a.atttypid, a.atttypmod) as type_name,
    coalesce(l.collisdeterministic, true) as is_deterministic,
    coalesce(bool_or(pg_catalog.pg_operator_is_visible(o.amopopr)), false) as is_plain,
    a.attcollation::bigint
from pg_catalog.pg_index i
cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (attnum, place)
join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
left join pg_catalog.pg_collation l on l.oid = a.attcollation
join pg_catalog.pg_opclass c on c.oid = i.indclass[k.place - 1]
left join pg_catalog.pg_amop o on o.amopfamily = c.opcfamily and o.amopstrategy = 5
    and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
where i.indrelid = %(oid)s::oid and i.indisunique and k.place <= i.indnkeyatts
group by i.indexrelid, k.place, a.attname, a.atttypid, a.atttypmod, a.attcollation,
    l.collisdeterministic
order by i.indexrelid, k.place

-- first start -----------------------------------------------------------------------

-- name: read_whether_untouched
-- Whether a snapshot of these ids is stored or requested, and has not begun.
select (
        exists (select from towpath.snapshot where snapshot_id = any (%(ids)s::text[]))
        or exists (select from towpath.signal where id = any (%(ids)s::text[]))
    )
    and not exists (
        select from towpath.snapshot where snapshot_id = any (%(ids)s::text[])
            and (state <> 'queued' or last_key is not null or chunks > 0)
    )
    and not exists (
        select from towpath.signal
        where id = any (%(ids)s::text[]) and status is not null
    )

-- name: read_first_progress
-- The number of open tables and unanswered signals; the number of open tables read in
-- the slot's exported snapshot; the reasons of failed tables and rejected signals.
select
    (select count(*) from towpath.snapshot
        where snapshot_id = any (%(ids)s::text[])
            and state not in ('completed', 'incomplete', 'failed', 'stopped'))
    + (select count(*) from towpath.signal
        where id = any (%(ids)s::text[]) and status is null),
    (select count(*) from towpath.snapshot
        where snapshot_id = any (%(ids)s::text[]) and kind = 'initial'
            and state not in ('completed', 'incomplete', 'failed', 'stopped')),
    (select array_agg(f.why order by f.why) from (
        select collection || ': ' || coalesce(error, state) as why from towpath.snapshot
        where snapshot_id = any (%(ids)s::text[]) and state in ('failed', 'stopped', 'incomplete')
        union all
        select id || ': ' || coalesce(detail ->> 'reason', status) from towpath.signal
        where id = any (%(ids)s::text[]) and status = 'rejected'
    ) f)

-- name: delete_first_snapshot
with forgotten as (
    delete from towpath.snapshot where snapshot_id = any (%(ids)s::text[])
)
delete from towpath.signal where id = any (%(ids)s::text[])

-- name: store_first_table
insert into towpath.snapshot (
    snapshot_id, collection, ordinal, state, table_oid, condition, kind, relay,
    updated_at
) values (
    %(snapshot_id)s, %(collection)s, %(ordinal)s, 'queued', %(table_oid)s,
    %(condition)s, 'initial', %(relay)s, now()
)

-- name: release_initial_tables
update towpath.snapshot
set kind = case when condition is null then 'incremental' else 'blocking' end,
    updated_at = now()
where kind = 'initial' and state <> 'completed' and relay = %(relay)s

-- name: retry_first_tables
-- Not those that the answer to a signal refused: their oid was not stored.
update towpath.snapshot s
set state = 'queued', error = null, updated_at = now(),
    last_key = case when not b.begins_again then last_key end,
    maximum_key = case when not b.begins_again then maximum_key end,
    ranges = case when not b.begins_again then ranges end,
    key_columns = case when not b.begins_again then key_columns end,
    rows = case when b.begins_again then 0 else rows end,
    dropped = case when b.begins_again then 0 else dropped end,
    percent = case when not b.begins_again then percent end,
    pending_keys = case when b.is_incomplete then undelivered_keys
        else pending_keys end,
    undelivered = case when b.is_incomplete then 0 else undelivered end,
    undelivered_keys = case when not b.is_incomplete then undelivered_keys end
from (
    select t.snapshot_id, t.collection, t.state = 'incomplete' as is_incomplete,
        t.state = 'incomplete'
            and t.undelivered > coalesce(jsonb_array_length(t.undelivered_keys), 0)
            as begins_again
    from towpath.snapshot t
) b
where s.snapshot_id = any (%(ids)s::text[])
    and s.state in ('failed', 'stopped', 'incomplete') and s.table_oid <> 0
    and b.snapshot_id = s.snapshot_id and b.collection = s.collection

-- name: delete_refused_tables
-- The refusals of these entries of the first snapshot's signals.
delete from towpath.snapshot
where snapshot_id = any (%(ids)s::text[]) and table_oid = 0
    and collection = any (%(entries)s::text[])
returning collection

-- name: delete_rejected_signals
delete from towpath.signal where id = any (%(ids)s::text[]) and status = 'rejected'
returning id

-- name: list_first_tables
select collection from towpath.snapshot where snapshot_id = any (%(ids)s::text[])

-- name: read_whether_one_is_open
-- Whether a relay's snapshot with one of these ids, or with the prefix, has not ended.
select exists (
        select from towpath.snapshot
        where relay = %(relay)s and (starts_with(snapshot_id, %(prefix)s)
                or snapshot_id = any (%(ids)s::text[]))
            and state not in ('completed', 'incomplete', 'failed', 'stopped')
    ) or exists (
        select from towpath.signal
        where relay = %(relay)s and (starts_with(id, %(prefix)s) or id = any (%(ids)s::text[]))
            and status is null
    )

-- views -----------------------------------------------------------------------------

-- name: describe_view
-- Oid and kind, and whether this role may read it.
select c.oid::bigint, c.relkind::text,
    pg_catalog.has_schema_privilege(n.oid, 'usage')
        and pg_catalog.has_table_privilege(c.oid, 'select')
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = %(schema)s and c.relname = %(table)s

-- name: describe_view_columns
-- Name, type and modifier, the type as SQL spells it, whether its collation is
-- deterministic, whether its order is that of the plain operators.
select a.attname, a.atttypid::bigint, a.atttypmod,
    pg_catalog.format_type(a.atttypid, a.atttypmod),
    coalesce(l.collisdeterministic, true),
    exists (
        select from pg_catalog.pg_opclass c
        join pg_catalog.pg_am m on m.oid = c.opcmethod and m.amname = 'btree'
        join pg_catalog.pg_amop o on o.amopfamily = c.opcfamily and o.amopstrategy = 5
            and o.amoplefttype = c.opcintype and o.amoprighttype = c.opcintype
        where c.opcdefault and pg_catalog.pg_operator_is_visible(o.amopopr)
            and c.opcintype = case a.atttypid
                when 'varchar'::regtype then 'text'::regtype else a.atttypid end
    )
from pg_catalog.pg_attribute a
left join pg_catalog.pg_collation l on l.oid = a.attcollation
where a.attrelid = %(oid)s::oid and a.attnum > 0 and not a.attisdropped
order by a.attnum

-- name: read_below_view
-- The view itself and the relations that its stored query names, down to tables and
-- their children: oid, names, kind and persistence. A name in a query cannot look like
-- `:relid 1`, since its space is escaped. The stored query is the only list that has
-- the server's own relations.
with recursive below (oid) as (
    select %(oid)s::oid
    union
    select n.oid
    from below b
    cross join lateral (
        select found[1]::oid
        from pg_catalog.pg_rewrite r
        cross join lateral pg_catalog.regexp_matches(
            r.ev_action::text, ':relid (\d+)', 'g'
        ) found
        where r.ev_class = b.oid and r.ev_type = '1'
        union all
        select i.inhrelid from pg_catalog.pg_inherits i where i.inhparent = b.oid
    ) n (oid)
)
select c.oid::bigint, n.nspname, c.relname, c.relkind::text, c.relpersistence::text
from below b
join pg_catalog.pg_class c on c.oid = b.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
order by n.nspname, c.relname

-- name: read_view_functions
-- The functions that the queries of views call, operators and aggregates included:
-- schema, name, volatility, argument count, language.
select distinct n.nspname, p.proname, p.provolatile::text, p.pronargs::int, l.lanname
from pg_catalog.pg_rewrite r
cross join lateral pg_catalog.regexp_matches(
    r.ev_action::text, ':(?:funcid|opfuncid|aggfnoid|winfnoid) (\d+)', 'g'
) found
join pg_catalog.pg_proc p on p.oid = found[1]::oid
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
join pg_catalog.pg_language l on l.oid = p.prolang
where r.ev_class = any (%(oids)s::oid[]) and r.ev_type = '1'
order by 1, 2

-- name: read_view_clauses
-- Whether the queries of views use the current date or time by an SQL keyword, read a
-- sample, or lock rows.
select coalesce(bool_or(r.ev_action::text ~ '{SQLVALUEFUNCTION :op [0-8] '), false),
    coalesce(bool_or(r.ev_action::text ~ '{TABLESAMPLECLAUSE '), false),
    coalesce(bool_or(r.ev_action::text ~ ':hasForUpdate true'), false)
from pg_catalog.pg_rewrite r
where r.ev_class = any (%(oids)s::oid[]) and r.ev_type = '1'

-- history and slot monitor ----------------------------------------------------------

-- name: read_history
-- Whether the server only replays, the end of its log as a number, and a relay's
-- heartbeat; an error where there is no heartbeat table.
select pg_catalog.pg_is_in_recovery(),
    case when pg_catalog.pg_is_in_recovery() then 0
        else (pg_catalog.pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint end,
    coalesce((select counter from towpath.heartbeat where id = %(number)s), 0)

-- name: read_heartbeat
-- Waits for a heartbeat that is decoded already and not visible yet.
select coalesce(
    (select counter from towpath.heartbeat where id = %(number)s for share), 0
)

-- name: read_slot_details
-- The slot of this name in any database: database, plugin, whether it is temporary,
-- confirmed LSN as a number (null while the slot is created, and of a physical one),
-- status, process id of the holder, invalidation reason of newer servers, count of
-- streamed transactions, this database.
select s.database, s.plugin, s.temporary,
    (s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint,
    s.wal_status, s.active_pid,
    nullif(pg_catalog.to_jsonb(s) ->> 'invalidation_reason', ''),
    (select total_txns from pg_catalog.pg_stat_replication_slots t
        where t.slot_name = s.slot_name),
    pg_catalog.current_database()
from pg_catalog.pg_replication_slots s
where s.slot_name = %(slot)s

-- name: read_slot_values
-- Retained bytes, lag in bytes, bytes that may still be written, status, whether it is
-- active, seconds of inactivity, invalidation reason; and the outbox's updates, those
-- of its partitions included. pg_partition_tree is empty for an ordinary table.
select coalesce((pg_catalog.pg_current_wal_lsn() - s.restart_lsn)::bigint, 0),
    coalesce((pg_catalog.pg_current_wal_lsn() - s.confirmed_flush_lsn)::bigint, 0),
    s.safe_wal_size, coalesce(s.wal_status, 'lost'), s.active,
    extract(epoch from pg_catalog.clock_timestamp()
        - (pg_catalog.to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8,
    nullif(pg_catalog.to_jsonb(s) ->> 'invalidation_reason', ''),
    (select sum(pg_catalog.pg_stat_get_tuples_updated(t.relid))::bigint from (
        select pg_catalog.to_regclass(%(outbox)s::text)
        union
        select relid
        from pg_catalog.pg_partition_tree(pg_catalog.to_regclass(%(outbox)s::text))
    ) as t (relid))
from pg_catalog.pg_replication_slots s
where s.slot_name = %(slot)s

-- name: raise_heartbeat
insert into towpath.heartbeat (id, counter, beat_at) values (%(number)s, 1, now())
on conflict (id) do update set counter = heartbeat.counter + 1, beat_at = now()
returning counter

-- name: write_heartbeat
select pg_catalog.pg_logical_emit_message(true, 'towpath.heartbeat', %(content)s::text)

-- name: claim
select pg_catalog.pg_try_advisory_lock(%(key)s)

-- name: read_claim
-- The session that has the lock, as in read_slot_holder.
select a.pid, a.application_name, a.usename, host(a.client_addr), a.backend_start
from pg_catalog.pg_locks l
join pg_catalog.pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.database = (select oid from pg_catalog.pg_database
        where datname = pg_catalog.current_database())
    and (l.classid::bigint << 32 | l.objid::bigint) = %(key)s

-- name: drop_slot
select pg_catalog.pg_drop_replication_slot(%(slot)s)

-- name: insert_snapshot_signal
-- Safe to repeat, also if the table has no primary key.
insert into towpath.signal (id, type, data, relay)
select %(id)s::text, 'execute-snapshot', %(data)s::text, %(relay)s::text
where not exists (select from towpath.signal where id = %(id)s::text)

-- name: read_table_oid
select c.oid::bigint
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = %(schema)s and c.relname = %(table)s

-- name: read_tables_named
-- The relations whose schema and name, joined by a dot, are one of these texts.
select n.nspname, c.relname
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f')
    and n.nspname || '.' || c.relname = any (%(names)s::text[])

-- name: read_writers
-- The open transactions, prepared ones included, that have written to a table or to one
-- of its partitions.
select distinct l.virtualtransaction
from pg_catalog.pg_locks l
where l.locktype = 'relation' and l.granted
    and l.database = (select oid from pg_catalog.pg_database
        where datname = pg_catalog.current_database())
    and l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock',
        'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    and l.pid is distinct from pg_catalog.pg_backend_pid()
    and (l.relation = %(oid)s::oid or l.relation in (
        select relid from pg_catalog.pg_partition_tree(%(oid)s::oid)
    ))

-- name: read_whether_captured_is_missing
select pg_catalog.to_regclass('towpath.captured') is null

-- name: read_whether_captured_is_outdated
-- Whether the table is missing, or lacks columns of this release.
select not exists (
    select from pg_catalog.pg_attribute
    where attrelid = pg_catalog.to_regclass('towpath.captured')
        and attname = 'key_changed_at' and not attisdropped
)

-- name: read_known_tables
-- Schema, table, oid, lineage, whether the name has no table of its own anymore, and
-- the columns of its key.
select schema_name, table_name, table_oid, lineage, gone_at is not null, key_columns
from towpath.captured
where relay = %(relay)s
order by schema_name, table_name

-- name: read_dropped_tables
select schema_name, table_name
from towpath.captured
where relay = %(relay)s and gone_at is not null
order by 1, 2

-- name: read_table_keys
-- Tables: oid, schema, name, the columns of the replica identity (null for FULL and
-- NOTHING), and the columns of each index that identifies rows, in the order of
-- read_keys.
select c.oid::bigint, n.nspname, c.relname, identity.names, keys.names
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
cross join lateral (
    select jsonb_agg(a.attname order by a.attnum) as names
    from pg_catalog.pg_index i
    cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (attnum, place)
    join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
    where i.indrelid = c.oid and k.place <= i.indnkeyatts
        and (c.relreplident = 'd' and i.indisprimary and i.indimmediate
            or c.relreplident = 'i' and i.indisreplident)
) as identity
cross join lateral (
    select jsonb_agg(
        one.names order by one.indisprimary desc, one.indisreplident desc,
            one.indexrelid
    ) as names
    from (
        select i.indexrelid, i.indisprimary, i.indisreplident,
            jsonb_agg(a.attname order by k.place) as names
        from pg_catalog.pg_index i
        cross join lateral unnest(i.indkey::smallint[]) with ordinality
            as k (attnum, place)
        left join pg_catalog.pg_attribute a
            on a.attrelid = i.indrelid and a.attnum = k.attnum
        where i.indrelid = c.oid and i.indisunique and i.indimmediate and i.indisvalid
            and i.indpred is null and k.place <= i.indnkeyatts
        group by i.indexrelid, i.indisprimary, i.indisreplident
        having bool_and(a.attnotnull is true and k.attnum > 0)
    ) as one
) as keys
where c.oid = any (%(oids)s::oid[])
order by 2, 3

-- name: store_changed_key
update towpath.captured
set former_key = key_columns, key_columns = %(key)s::jsonb, key_changed_at = now()
where relay = %(relay)s and table_oid = %(oid)s and schema_name = %(schema_name)s
    and table_name = %(table_name)s

-- name: store_first_keys
-- The keys of tables that an earlier release captured.
update towpath.captured c set key_columns = t.key::jsonb
from unnest(%(oids)s::bigint[], %(keys)s::text[]) as t (oid, key)
where c.relay = %(relay)s and c.table_oid = t.oid and c.key_columns is null

-- name: read_changed_keys
-- Schema, table, former key and key of each table whose key changed, and which no
-- snapshot of all its rows with a sweep has read since.
select c.schema_name, c.table_name, c.former_key, c.key_columns,
    array(
        select s.collection from towpath.snapshot s
        where s.relay = c.relay and s.state = 'completed' and s.sweeps
            and s.condition is null and s.target is null and s.asked_keys is null
            and s.queued_at >= c.key_changed_at
    )
from towpath.captured c
where c.relay = %(relay)s and c.key_changed_at is not null and c.gone_at is null
order by 1, 2

-- name: read_unclear_tables
-- The captured tables that are not plainly readable by snapshots: a plainly readable one
-- is ordinary, published without a column list, has a primary key in the server's own
-- order, and may be read by this role.
select n.nspname, c.relname
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where (n.nspname, c.relname)
        in (select * from unnest(%(schemas)s::text[], %(tables)s::text[]))
    and not (
        c.relkind = 'r' and c.relpersistence = 'p' and not c.relispartition
        and not c.relrowsecurity and c.relreplident in ('d', 'f')
        and pg_catalog.has_table_privilege(c.oid, 'select')
        and exists (
            select from pg_catalog.pg_publication p
            join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
            where p.pubname = %(publication)s and r.prrelid = c.oid
                and r.prattrs is null
        )
        and exists (
            select from pg_catalog.pg_index i
            where i.indrelid = c.oid and i.indisprimary and i.indisvalid
                and i.indimmediate and not exists (
                    select from unnest(
                        i.indkey::smallint[], i.indclass::oid[], i.indcollation::oid[]
                    ) as k (attnum, opclass_oid, collation_oid)
                    left join pg_catalog.pg_attribute a
                        on a.attrelid = c.oid and a.attnum = k.attnum
                    left join pg_catalog.pg_opclass o on o.oid = k.opclass_oid
                    left join pg_catalog.pg_collation l on l.oid = k.collation_oid
                    where a.attgenerated <> '' or not l.collisdeterministic
                        or o.opcnamespace <> 'pg_catalog'::regnamespace
                )
        )
    )
order by 1

-- name: store_known_tables
insert into towpath.captured (
    relay, schema_name, table_name, table_oid, lineage, key_columns
)
select %(relay)s, n.nspname, c.relname, c.oid::bigint, %(lineage)s, t.key::jsonb
from unnest(%(oids)s::oid[], %(keys)s::text[]) as t (oid, key)
join pg_catalog.pg_class c on c.oid = t.oid
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
on conflict (relay, schema_name, table_name) do update
set table_oid = excluded.table_oid, lineage = excluded.lineage, gone_at = null,
    captured_at = now(), key_columns = excluded.key_columns, former_key = null,
    key_changed_at = null

-- name: mark_table_gone
update towpath.captured set gone_at = coalesce(gone_at, now())
where relay = %(relay)s and schema_name = %(schema_name)s
    and table_name = %(table_name)s

-- name: delete_known_table
delete from towpath.captured
where relay = %(relay)s and schema_name = %(schema_name)s
    and table_name = %(table_name)s

-- name: write_table_event
select pg_catalog.pg_logical_emit_message(true, %(prefix)s::text, %(content)s::text)

-- name: read_old_transactions
-- The transactions that block a slot's creation, running or prepared, the oldest first:
-- process id or name, application, age in seconds; null where the session is another
-- role's and may not be read.
select a.pid::text,
    coalesce(nullif(a.application_name, ''), a.backend_type, 'role ' || a.usename),
    extract(epoch from pg_catalog.clock_timestamp() - a.xact_start)::float8
from pg_catalog.pg_stat_activity a
where a.backend_xid is not null and a.pid <> pg_catalog.pg_backend_pid()
union all
select 'prepared ' || p.gid, p.owner::text,
    extract(epoch from pg_catalog.clock_timestamp() - p.prepared)::float8
from pg_catalog.pg_prepared_xacts p
order by 3 desc

-- outbox cleaning -------------------------------------------------------------------

-- name: read_outbox_kind
-- The kind of a table, and its partition key.
select c.relkind::text, pg_catalog.pg_get_partkeydef(c.oid)
from pg_catalog.pg_class c
where c.oid = pg_catalog.to_regclass(%(table)s::text)

-- name: read_partitioned_until
-- Seconds until the last bound of a table that is partitioned by the time of the insert;
-- nothing of another table, or of one with a default partition. A table without
-- partitions has reached its last bound. A bound of MAXVALUE or infinity is never
-- reached; releases below 17 refuse to subtract a time from infinity.
select coalesce(max(case
        when u.bound = 'infinity' or b.text like '%% TO (MAXVALUE)' then 'infinity'
        else extract(epoch from u.bound - pg_catalog.now())::float8
    end), 0)
from pg_catalog.pg_partitioned_table t
left join pg_catalog.pg_inherits i on i.inhparent = t.partrelid
left join pg_catalog.pg_class c on c.oid = i.inhrelid
cross join lateral (select pg_catalog.pg_get_expr(c.relpartbound, c.oid)) as b (text)
cross join lateral (
    select (pg_catalog.regexp_match(b.text, 'TO \(''([^'']+)''\)'))[1]::timestamptz
) as u (bound)
where t.partrelid = %(oid)s::oid and t.partdefid = 0
    and pg_catalog.pg_get_partkeydef(t.partrelid) = 'RANGE (inserted_at)'
group by t.partrelid

-- name: count_outbox_pages
select pg_catalog.pg_relation_size(pg_catalog.to_regclass(%(table)s::text))
    / pg_catalog.current_setting('block_size')::bigint

-- name: read_insert_end
-- The end of the log, not yet flushed parts included, as a number.
select (pg_catalog.pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint

-- name: read_log_readers
-- Every logical slot of this database, and registered relays without one: name,
-- confirmed LSN as a number (null while the slot is created), whether there is a slot,
-- whether it has lost part of the log.
select coalesce(s.slot_name, r.name),
    (s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint,
    s.slot_name is not null,
    coalesce(s.wal_status = 'lost', false)
from (
    select * from pg_catalog.pg_replication_slots
    where database = pg_catalog.current_database() and not temporary
) as s
full join towpath.relay r on r.name = s.slot_name
order by 1

-- name: read_partitions
-- The outbox's partitions, with their bounds, and the tables that were some and are
-- marked to be dropped, without bounds: name, start, end, whether it is attached, whether
-- the detachment was interrupted, whether it has a range; in the order of their bounds. A
-- default partition has no range. Of a range, MINVALUE, MAXVALUE, infinity and years that
-- no client can read are no bounds.
select c.relname,
    case when r.low between '0001-01-02' and '9999-12-30' then r.low end,
    case when r.high between '0001-01-02' and '9999-12-30' then r.high end,
    i.inhrelid is not null, coalesce(i.inhdetachpending, false),
    coalesce(b.text like 'FOR VALUES %%', false)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_inherits i on i.inhrelid = c.oid
cross join lateral (select pg_catalog.pg_get_expr(c.relpartbound, c.oid)) as b (text)
cross join lateral (select
    (pg_catalog.regexp_match(b.text, 'FROM \(''([^'']+)''\)'))[1]::timestamptz,
    (pg_catalog.regexp_match(b.text, 'TO \(''([^'']+)''\)'))[1]::timestamptz
) as r (low, high)
where n.nspname = %(schema)s::text and c.relkind = 'r'
    and (i.inhparent = pg_catalog.to_regclass(%(table)s::text)
        or i.inhrelid is null
        and pg_catalog.obj_description(c.oid, 'pg_class') = any(%(marks)s::text[]))
order by 2, 1

-- name: read_mark
-- A table's comment; null without one.
select pg_catalog.obj_description(%(table)s::regclass, 'pg_class')

-- health of the source -------------------------------------------------------------

-- name: read_server_settings
-- Settings as this session has them: name, value, unit.
select name, setting, coalesce(unit, '')
from pg_catalog.pg_settings
where name = any(%(names)s::text[])

-- name: read_collation_versions
-- The version of the database's collation when its indexes were built, and the current
-- one; null where the collation has no versions.
select d.datcollversion, pg_catalog.pg_database_collation_actual_version(d.oid)
from pg_catalog.pg_database d
where d.datname = pg_catalog.current_database()

-- name: read_unarchived_log
-- The file of the log that the server tries in vain to archive; nothing while archiving
-- works, or is off.
select last_failed_wal
from pg_catalog.pg_stat_archiver
where last_failed_time > coalesce(last_archived_time, '-infinity')
    and current_setting('archive_mode') <> 'off'

-- name: read_slots
-- Every slot but temporary ones, as an object (newer servers have more fields), with the
-- log that it retains in bytes, the age of the catalog rows that it keeps, and seconds of
-- inactivity.
select pg_catalog.to_jsonb(s) || pg_catalog.jsonb_build_object(
    'retained_bytes', coalesce((w.lsn - s.restart_lsn)::bigint, 0),
    'catalog_age', coalesce(pg_catalog.age(s.catalog_xmin), 0),
    'inactive_s', extract(epoch from pg_catalog.clock_timestamp()
        - (pg_catalog.to_jsonb(s) ->> 'inactive_since')::timestamptz),
    'is_here', s.database is not distinct from pg_catalog.current_database())
from pg_catalog.pg_replication_slots s
cross join lateral (
    select case when pg_catalog.pg_is_in_recovery()
        then pg_catalog.pg_last_wal_replay_lsn()
        else pg_catalog.pg_current_wal_lsn() end
) as w (lsn)
where not s.temporary

-- name: read_spilled
-- Transactions that a slot has decoded, those that were spilled to disk, and the spilled
-- bytes, since the statistics were reset.
select coalesce(total_txns, 0), coalesce(spill_txns, 0), coalesce(spill_bytes, 0)
from pg_catalog.pg_stat_replication_slots
where slot_name = %(slot)s

-- name: read_standbys
-- The names of the physical standbys that are connected.
select application_name
from pg_catalog.pg_stat_replication r
where application_name <> 'pg_basebackup' and not exists (
    select from pg_catalog.pg_replication_slots s
    where s.active_pid = r.pid and s.slot_type = 'logical'
)
order by 1

-- name: read_outbox_health
-- The size of the outbox in bytes with its partitions, its rows and dead rows by the
-- statistics, and the partitions whose detaching was interrupted. pg_partition_tree
-- leaves these out.
with recursive relations (relid, inhdetachpending) as (
    select pg_catalog.to_regclass(%(table)s::text)::oid, false
    union all
    select i.inhrelid, i.inhdetachpending
    from relations r
    join pg_catalog.pg_inherits i on i.inhparent = r.relid
)
select coalesce(sum(pg_catalog.pg_total_relation_size(r.relid)), 0)::bigint,
    coalesce(sum(s.n_live_tup), 0)::bigint, coalesce(sum(s.n_dead_tup), 0)::bigint,
    coalesce(array_agg(r.relid::regclass::text) filter (where r.inhdetachpending),
        array[]::text[])
from relations r
left join pg_catalog.pg_stat_all_tables s on s.relid = r.relid
