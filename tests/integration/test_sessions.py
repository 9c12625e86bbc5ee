"""No environment, service file, role or database changes how values are read."""

import json
from contextlib import closing

import psycopg
import pytest

from support.rig import Rig
from support.waiting import CLOCK
from towpath.deploy.snapshots import signals
from towpath.relay.postgres.connect import connect
from towpath.relay.postgres.replication import SlotStream, Wakeup
from towpath.schemas import session
from towpath.schemas.table_name import TableName
from towpath.services.plumbing.database import make_engine
from towpath.settings import load
from towpath.sinks.postgres import connected
from towpath.sinks.verify.progress import SourceLog
from towpath.sinks.verify.source import Source
from towpath.sinks.wait.source import PostgresSlot

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ENVIRONMENT = {
    "PGTZ": "Asia/Kathmandu",
    "PGDATESTYLE": "SQL, DMY",
    "PGGEQO": "off",
    "PGOPTIONS": "-c bytea_output=escape -c extra_float_digits=-5",
    "PGCLIENTENCODING": "LATIN1",
    "PGAPPNAME": "somebody",
    "PGSERVICE": "hostile",
}
SERVICE = "[hostile]\napplication_name=service\noptions=-c intervalstyle=sql_standard\n"
HOSTILE = {
    "statement_timeout": "500",
    "lock_timeout": "1",
    "idle_in_transaction_session_timeout": "300",
    "idle_session_timeout": "300",
    "transaction_timeout": "500",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "-5",
    "search_path": "nowhere",
    "quote_all_identifiers": "on",
    "xmloption": "document",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "synchronous_commit": "off",
    "standard_conforming_strings": "off",
    "row_security": "on",
    "timezone": "Asia/Kathmandu",
    "datestyle": "German, DMY",
    "client_min_messages": "error",
    "exit_on_error": "on",
}

ROW = """
    insert into s.t values (1, '2026-03-01 12:00:00+00', '2026-02-03', '1 day 2:03:04',
        '\\x00ff', 0.1, 1234.5::money)
"""
# A command, and the number of descriptors that it may open: its first file, its session
# with the source, its threads and its sockets are refused in turn.
LIMITS = (
    ("relay init", 1),
    ("doctor", 1),
    ("snapshot list", 1),
    ("relay run", 1),
    ("relay run", 2),
    ("relay run", 8),
    ("relay run", 12),
)
NAMED = "cannot open another file"
REMEDY = "LimitNOFILE"
LIMITED = """
import os, resource, sys
from towpath.cli.app import main
open_now = len(os.listdir("/proc/self/fd")) - 1
limit = open_now + int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
main()
"""


@pytest.fixture
def hostile(stack, database: str, unique: str, tmp_path, monkeypatch):
    """Provide a source with a hostile environment, service file, role and database."""
    stack.up("postgres", "kafka")
    rig = Rig(database, stack.kafka, unique, tmp_path)
    rig.execute(f"create role {unique} login superuser")
    for name, value in HOSTILE.items():
        rig.execute(f"alter role {unique} set {name} = '{value}'")
    rig.execute(f"alter database {rig.connection.info.dbname} set xmlbinary = 'hex'")
    service = tmp_path / "service.conf"
    service.write_text(SERVICE)
    monkeypatch.setenv("PGSERVICEFILE", str(service))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    admin = rig.dsn
    rig.dsn = psycopg.conninfo.make_conninfo(admin, user=unique)
    yield rig
    rig.dsn = admin
    rig.connection.execute("set default_transaction_read_only = off")
    rig.close()
    with connected(admin) as connection:
        connection.execute(f"reassign owned by {unique} to current_user".encode())
        connection.execute(f"drop role {unique}".encode())


def test_every_session_has_the_platforms_settings(hostile: Rig):
    """
    Relay, stream, verifier, wait, commands and services set them after connecting.
    """
    dsn = hostile.dsn
    stream = SlotStream(dsn, CLOCK, Wakeup())
    log, slot, engine = (
        SourceLog(dsn, "x"),
        PostgresSlot(dsn, "x"),
        make_engine(dsn, pool_size=1),
    )
    with (
        connect(dsn) as relay,
        connected(dsn) as plain,
        Source(dsn) as verifier,
        closing(log),
        closing(slot),
        closing(stream),
        signals._connect(dsn) as signal,
        engine.connect() as service,
    ):
        sessions = {
            "relay": relay,
            "stream": stream._connection,
            "verifier": verifier._connection,
            "log": log._connection,
            "wait": slot._connection,
            "signals": signal,
            "plain": plain,
        }
        found = {
            name: settings_of(lambda text, each=each: each.execute(text).fetchone()[0])
            for name, each in sessions.items()
        }
        found["services"] = settings_of(
            lambda text: service.exec_driver_sql(text).scalar()
        )
    engine.dispose()
    bounds = (
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
    )
    expected = {name: dict(session.SETTINGS) for name in found}
    expected["verifier"]["default_transaction_read_only"] = "on"
    expected["services"] |= {"row_security": "on", "synchronous_commit": "on"}
    for name in bounds:
        assert found["services"].pop(name) != HOSTILE[name]
        del expected["services"][name]

    assert expected == found


def settings_of(query) -> dict[str, str]:
    """Read the settings of a session with a function that runs a query."""
    return {name: query(f"show {name}") for name in session.SETTINGS}


def test_values_are_the_same_in_stream_and_snapshot(hostile: Rig):
    """
    With all of these settings, a relay starts, and publishes values in the usual form.
    """
    hostile.connection.execute("create schema s")
    hostile.execute(
        "create table s.t (id int primary key, at timestamptz, day date, span interval,"
        " raw bytea, ratio float8, cost money)"
    )
    hostile.execute(ROW)
    hostile.configure(hostile.outbox, tables=["s.t"])
    hostile.init()
    hostile.start()
    hostile.wait_for(lambda: bool(hostile.logged("relay streaming")))
    hostile.execute(
        "insert into s.t select 2, at, day, span, raw, ratio, cost from s.t"
    )
    source = load(hostile.config, {}).database
    signal_id = signals.request_snapshot(source, ["s.t"])
    hostile.wait_for(
        lambda: (signals.state(source, signal_id) or ("",))[0] == "completed"
    )
    hostile.confirm()
    rows = [value_of(each) for each in hostile.read("s.t", at_least=3)]
    with Source(hostile.dsn) as verified:
        [compared] = verified.rows(verified.table(TableName("s", "t")))

    assert source.dsn == hostile.dsn
    assert rows[0] == rows[1]
    assert rows[0] == rows[2]
    assert "2026-03-01T12:00:00" in str(rows[0]["at"])
    assert compared[0][1:] == compared[1][1:]


def value_of(record) -> dict:
    """Return a record's new row without its key."""
    row = json.loads(record.value())["after"]
    return {name: value for name, value in row.items() if name != "id"}


def test_too_few_file_descriptors_are_reported(hostile: Rig):
    """
    Every command reports the limit and its remedy, and prints no traceback.
    """
    hostile.configure(hostile.outbox)
    hostile.init()
    for command, free in LIMITS:
        hostile.log_file.write_text("")
        arguments = (*command.split(), "--config", str(hostile.config))
        process = hostile.start("-c", LIMITED, str(free), *arguments)
        hostile.wait_for(
            lambda process=process: (
                REMEDY in hostile.printed() or process.poll() is not None
            )
        )
        hostile.kill()
        printed = hostile.printed()

        assert NAMED in printed, (command, free, printed[-3000:])
        assert REMEDY in printed, (command, free)
        assert "Traceback" not in printed, (command, free, printed[-3000:])
        assert "Check that Postgres is running" not in printed, (command, free)
