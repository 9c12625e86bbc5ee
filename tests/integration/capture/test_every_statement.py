"""
Statements of every kind, which a relay that captures everything must survive.

They are modeled on the server's SQL regression tests: each kind of DDL between writes,
with all forms of names, types and keys. The topics of the remaining tables fold to
their rows.
"""

from collections.abc import Iterator

import pytest

from support.newest_records import folded
from support.snapshots import SnapshotRig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

STATEMENTS = r"""
create schema d;
create domain d.small as int check (value < 1000);
create type d.pair as (a int, b text);
create type d.mood as enum ('low', 'high');
create table d.kinds (id serial primary key, n d.small, p d.pair, m d.mood, a int[],
    r int4range, j jsonb, t timestamptz default now(), b bit(3), x xid);
insert into d.kinds (n, p, m, a, r, j, b, x)
    select i, row(i, 'p' || i)::d.pair, 'low', array[i, null], int4range(i, i + 3),
        jsonb_build_object('k', i), b'101', '7' from generate_series(1, 50) i;
alter type d.mood add value 'middle' before 'high';
update d.kinds set m = 'middle', p.a = 0, a[3] = 9 where id % 3 = 0;
alter table d.kinds rename n to number;
alter table d.kinds alter number type bigint, add column late text default 'later';
alter table d.kinds drop column b;
update d.kinds set id = id + 1000 where id < 5;
delete from d.kinds where id between 10 and 20;
create table d.parts (k int, day date, v text, primary key (k, day))
    partition by range (day);
create table d.parts_1 partition of d.parts
    for values from ('2026-01-01') to ('2026-02-01');
create table d.parts_2 partition of d.parts
    for values from ('2026-02-01') to ('2026-03-01');
insert into d.parts select i, date '2026-01-01' + i, 'v' from generate_series(0, 50) i;
update d.parts set day = day + 31 where k < 5;
create table d.parts_3 (like d.parts including all);
insert into d.parts_3 values (99, '2026-03-05', 'attached');
delete from d.parts where k = 40;
create table d.parent (id int primary key, v text);
create table d.child (extra int, primary key (id)) inherits (d.parent);
insert into d.parent values (1, 'p'), (2, 'p');
insert into d.child values (1, 'c', 1), (3, 'c', 2);
update d.parent set v = v || '!';
truncate only d.parent;
insert into d.parent values (7, 'again');
create table d."Odd.Name" ("Key" text primary key, "a b" int);
insert into d."Odd.Name" values ('x', 1), ('y', 2);
update d."Odd.Name" set "Key" = 'z' where "Key" = 'x';
create table d.swapped (id int primary key, v int);
insert into d.swapped values (1, 1);
create table d.swapped_new (id int primary key, v int);
insert into d.swapped_new values (2, 2);
begin; alter table d.swapped rename to swapped_old;
    alter table d.swapped_new rename to swapped; commit;
create table d.rolled (id int primary key); begin; insert into d.rolled values (1);
    savepoint s; insert into d.rolled values (2); rollback to s;
    insert into d.rolled values (3); commit;
create unlogged table d.unlogged (id int primary key);
insert into d.unlogged values (1);
create table d.keyless (v int); insert into d.keyless values (1);
create table d.full_row (v int, w text); alter table d.full_row replica identity full;
insert into d.full_row values (1, 'a'), (1, 'a'); delete from d.full_row where v = 1;
create table d.short_lived (id int primary key); insert into d.short_lived values (1);
drop table d.short_lived;
create table d.wide (id int primary key, big text, small int);
insert into d.wide select i, repeat(md5(i::text), 400), 0 from generate_series(1, 20) i;
update d.wide set small = 1; update d.wide set id = id + 100 where id < 4;
cluster d.wide using wide_pkey;
vacuum full d.wide;
reindex table d.wide;
create view d.seen as select * from d.wide; create materialized view d.kept as
    select count(*) from d.wide;
create table d.moved (id int primary key); insert into d.moved values (1);
create schema other; alter table d.moved set schema other;
insert into other.moved values (2);
"""
KEYED = """
select distinct quote_ident(p.schemaname) || '.' || quote_ident(p.tablename), c.relkind
from pg_publication_tables p
join pg_class c on c.oid =
    (quote_ident(p.schemaname) || '.' || quote_ident(p.tablename))::regclass
join pg_index i on i.indrelid = c.oid and i.indisprimary
where p.pubname = 'towpath' and p.schemaname in ('d', 'other')
"""
UNFINISHED = """
select exists (select from towpath.snapshot where state in ('queued', 'running'))
    or exists (select from towpath.signal
        where coalesce(status, '') in ('', 'accepted', 'running'))
    or exists (select from pg_tables t where schemaname in ('d', 'other')
        and tablename not in ('unlogged', 'keyless', 'full_row')
        and not exists (select from pg_publication_tables p
            where p.pubname = 'towpath' and p.schemaname = t.schemaname
                and p.tablename = t.tablename)
        and not exists (select from pg_inherits h
            where h.inhrelid = format('%I.%I', t.schemaname, t.tablename)::regclass
                and t.tablename like 'parts%'))
"""


@pytest.fixture
def rig(stack, database, unique, tmp_path) -> Iterator[SnapshotRig]:
    """Provide a running relay that captures every table, including later ones."""
    rig = SnapshotRig(database, stack.kafka, unique, tmp_path)
    rig.configure("heartbeat_interval_s = 0.5", tables=[r"(?s).*"], partitions=1)
    rig.init()
    rig.start()
    rig.confirm()
    yield rig
    rig.close()


def test_a_relay_that_captures_everything_survives_every_statement(rig):
    """
    No statement halts the relay, and the remaining keyed tables fold to their rows.
    """
    for statement in STATEMENTS.split(";\n"):
        rig.execute(statement)
    rig.wait_for(lambda: not rig.one(UNFINISHED))
    rig.confirm()
    remaining = dict(rig.execute(KEYED))
    counts = {
        name: rig.one(f"select count(*) from {'only ' * (kind != 'p')}{name}")  # noqa: S608 - quoted by the server
        for name, kind in remaining.items()
    }
    held = {name: len(folded(rig.records(name.replace('"', "")))) for name in remaining}

    assert len(remaining) >= 9
    assert counts == held
