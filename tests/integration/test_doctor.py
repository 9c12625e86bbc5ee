"""``towpath doctor`` with a real source and a real broker."""

import json
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from towpath.cli.app import run
from towpath.relay.__main__ import init
from towpath.schemas.table_name import TableName
from towpath.schemas.topics import table_topic

HARMLESS = {"warning", "info"}
pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def config(database: str, stack, unique: str, tmp_path: Path) -> Path:
    """Write a configuration for a database with one table."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table public.note (id int primary key)")
    return configure(tmp_path, database, stack.kafka, unique)


def configure(folder: Path, dsn: str, kafka: str, name: str) -> Path:
    """Write a configuration."""
    path = folder / "towpath.toml"
    path.write_text(
        f"""
version = 1
[[source]]
dsn = "{dsn}"
prefix = "{name}"
slot = "{name}"
tables = ["public.note"]
[kafka]
bootstrap_servers = "{kafka}"
[registry]
url = "http://127.0.0.1:1"
""",
        encoding="utf-8",
    )
    return path


def examined(config: Path, capsys) -> tuple[int, list[dict]]:
    """Run the command, and return its exit code and its document."""
    capsys.readouterr()
    code = run(["doctor", "--json", "--config", str(config)])
    return code, json.loads(capsys.readouterr().out)


def test_missing_objects_are_found_until_init_has_run(config: Path, capsys):
    """
    Each missing object is found, with the remedy to run init; afterwards none is left.
    """
    code, before = examined(config, capsys)
    missing = [row for row in before if row["cure"] == "run towpath relay init"]
    init(config, dry_run=False)
    _, after = examined(config, capsys)
    errors = [row for row in after if row["level"] not in HARMLESS]

    assert (1, 9, []) == (code, len(missing), errors)


def test_an_unbounded_slot_gives_a_warning_with_a_command(config: Path, capsys):
    """
    The printed table has the finding and the statement that corrects it (W-14).
    """
    init(config, dry_run=False)
    capsys.readouterr()
    code = run(["doctor", "--config", str(config)])
    shown = "".join(capsys.readouterr().out.split())

    assert (4, True, True) == (
        code,
        "max_slot_wal_keep_sizeis-1" in shown,
        "SETmax_slot_wal_keep_size" in shown,
    )


def test_an_unreachable_broker_does_not_hide_the_findings_of_the_source(
    database: str, unique: str, tmp_path: Path, capsys
):
    """
    The exit code is 3, but the source is still examined.
    """
    config = configure(tmp_path, database, "127.0.0.1:1", unique)
    code, rows = examined(config, capsys)
    parts = {(row["part"], row["level"]) for row in rows}

    assert (3, True, True) == (
        code,
        ("broker", "unavailable") in parts,
        ("source", "error") in parts,
    )


def test_the_status_of_a_relay_with_an_unreachable_broker_is_readable(
    database: str, unique: str, tmp_path: Path, capsys
):
    """
    The output says that the state is unknown, without log lines of the client library.
    """
    config = configure(tmp_path, database, "127.0.0.1:1", unique)
    capsys.readouterr()
    run(["relay", "status", "--config", str(config)])
    shown = capsys.readouterr().out

    assert "state              unknown: listing topics" in shown
    assert "client library" not in shown


def test_a_role_that_may_not_replicate_is_found(config: Path, unique: str, capsys):
    """
    Ordinary connections work, but replication is refused; a finding has a remedy (B79).
    """
    text = config.read_text(encoding="utf-8")
    dsn = text.partition('dsn = "')[2].partition('"')[0]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {unique} login")
        try:
            config.write_text(text.replace("postgres@", f"{unique}@"), encoding="utf-8")
            code, rows = examined(config, capsys)
        finally:
            connection.execute(f"drop role {unique}")
    found = [row for row in rows if "PgBouncer" in row["cure"]]

    assert (1, 1) == (code, len(found))


def test_a_topic_with_too_short_a_retention_is_found(
    config: Path, unique: str, stack, capsys
):
    """
    A topic that was created by hand is compared with the settings in [topics].
    """
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    name = table_topic(unique, TableName("public", "note"))
    made = admin.create_topics(
        [NewTopic(name, 1, 1, config={"retention.ms": "7200000"})]
    )
    made[name].result(10)
    init(config, dry_run=False)
    _, rows = examined(config, capsys)
    found = [row["what"] for row in rows if name in row["what"]]

    assert [f"topic {name} keeps records for 2 h, but [topics] requires 168 h"] == found


def test_a_declared_view_that_cannot_be_read_is_found(config: Path, capsys):
    """
    Otherwise only a later signal would reveal that its topic cannot be filled.
    """
    text = config.read_text(encoding="utf-8")
    view = '[[relay.outbox.view]]\naggregate_type = "note"\nview = "public.state"\n'
    config.write_text(text + view, encoding="utf-8")
    _, rows = examined(config, capsys)
    found = [
        row["what"] for row in rows if row["why"] == "outbox.note cannot be filled"
    ]

    assert [
        "the view public.state cannot be read: there is no view public.state"
    ] == found


def test_sinks_and_registry_are_examined_too(config: Path, capsys):
    """
    An unreachable target and an unreachable registry are found.
    """
    init(config, dry_run=False)
    prefix = config.read_text(encoding="utf-8").partition('prefix = "')[2].split('"')[0]
    more = """
[relay.rows]
format = "avro"
[[sink]]
name = "hook"
kind = "webhook"
url = "http://127.0.0.1:1"
webhook = { secrets = ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"] }
[[sink.route]]
topic = "outbox.event.order"
name = "orders"
kind = "event_log"
"""
    plain = config.read_text(encoding="utf-8")
    config.write_text(plain + more, encoding="utf-8")
    unreachable, rows = examined(config, capsys)
    sink = more.partition("[[sink]]")[2].split("[[sink.route]]")[0]
    cache = sink.replace('"hook"', '"cache"').replace('"webhook"', '"cache"')
    cache = cache.split("webhook =")[0].replace("http:", "redis:")
    route = f'[[sink.route]]\ntopic = "{prefix}.public.note"\nname = "note"\n'
    config.write_text(f"{plain}[[sink]]{cache}{route}", encoding="utf-8")
    code, others = examined(config, capsys)

    assert (3, {("registry", "unavailable")}) == (
        unreachable,
        {(r["part"], r["level"]) for r in rows if r["level"] not in HARMLESS},
    )
    assert (1, {("sink cache", "error")}) == (
        code,
        {(r["part"], r["level"]) for r in others if r["level"] not in HARMLESS},
    )


def test_a_mistyped_topic_that_a_pattern_matches_is_found(config: Path, capsys):
    """
    The pattern of the captured tables matches the name, but no such table exists.
    """
    init(config, dry_run=False)
    plain = config.read_text(encoding="utf-8")
    prefix = plain.partition('prefix = "')[2].split('"')[0]
    route = '[[sink.route]]\ntopic = "{}.public.{}"\nname = "{}"\n'
    sink = '[[sink]]\nname = "cache"\nkind = "cache"\nurl = "redis://127.0.0.1:1"\n'
    routes = route.format(prefix, "note", "note") + route.format(prefix, "nota", "nota")
    text = plain.replace('"public.note"', "'public\\.no.*'") + sink + routes
    config.write_text(text, encoding="utf-8")
    _, rows = examined(config, capsys)
    found = [row["what"] for row in rows if "the source has no table" in row["what"]]

    assert (1, True) == (len(found), "public.nota" in found[0])
