"""Generated columns: captured if the server can send them without refusing writes."""

import contextlib

import psycopg
import pytest

from support.copying import replace
from towpath.relay.postgres import setup
from towpath.relay.postgres.capture_checks import blocking_finding, table_findings
from towpath.relay.postgres.connect import connect
from towpath.schemas.findings import Severity
from towpath.settings import load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

STORED = "int generated always as (v * 2) stored"
VIRTUAL = "int generated always as (v * 2) virtual"
UPDATE = "update {} set v = v + 1"
FULL = "alter table {} replica identity full"
NAMES = ("published_key", "full_stored", "full_virtual", "identity_stored", "virtual")


def make(followed, suffix: str = "") -> None:
    """Create one table of each kind, each with one row."""
    columns = {
        "published_key": f"v int not null, g {STORED} primary key",
        "full_stored": f"id int primary key, v int, g {STORED}",
        "full_virtual": f"id int primary key, v int, g {VIRTUAL}",
        "identity_stored": f"id int, v int not null, g {STORED} not null unique",
        "virtual": f"id int primary key, v int, g {STORED}, h {VIRTUAL}",
    }
    # Without the transaction, a relay could capture a table that has no identity yet.
    with followed.connection.transaction():
        for name, spec in columns.items():
            followed.execute(f"create table s.{name}{suffix} ({spec})")
            values = (
                "(v) values (1)" if "id int" not in spec else "(id, v) values (1, 1)"
            )
            followed.execute(f"insert into s.{name}{suffix} {values}")
        for name in ("full_stored", "full_virtual"):
            followed.execute(FULL.format(f"s.{name}{suffix}"))
        index = f"identity_stored{suffix}_g_key"
        followed.execute(
            f"alter table s.identity_stored{suffix}"
            f" replica identity using index {index}"
        )


def write(followed, suffix: str = "") -> None:
    """Update each table as an application does: every statement must be accepted."""
    for name in NAMES:
        followed.execute(UPDATE.format(f"s.{name}{suffix}"))


def captured(followed) -> set[str]:
    """Return the tables of the publication."""
    rows = followed.execute(
        "select tablename from pg_publication_tables"
        " where pubname = 'towpath' and schemaname = 's'"
    )
    return {name for (name,) in rows}


def check_rows(followed, tables: set[str]) -> None:
    """
    Check that each record has the stored column, and that only late tables were filled.
    """
    for name in sorted(tables):
        envelopes = [each for _, each, _ in followed.envelopes(f"s.{name}")]
        after = [each["after"] for each in envelopes if each["after"] is not None]
        assert after, name
        assert all(row["g"] == row["v"] * 2 for row in after), (name, after)
        assert all("h" not in row for row in after), name
        operations = {each["op"] for each in envelopes}
        assert ("r" in operations) == name.endswith("_late"), (name, operations)


def facts_of(followed):
    """Return the settings, and the facts about the source from its catalog."""
    settings = load(followed.config, {})
    with connect(followed.dsn) as connection:
        return settings, setup.read_source_facts(connection, settings)


def test_stored_columns_are_published_and_no_writer_is_refused(followed, capsys):
    """
    Stored columns have the same values in stream and snapshot, even in the key.

    A table whose capture would block updates is left out and reported with the reason,
    before and during a run; a column that is added later is reported.
    """
    make(followed)
    followed.tables = [r"s\..*"]
    followed.prepare()
    printed = capsys.readouterr().err
    followed.start()
    followed.confirm()
    write(followed)
    make(followed, "_late")
    followed.wait_for(lambda: "virtual_late" in captured(followed))
    read = (
        "select count(*) from towpath.signal"
        " where id like 'towpath-new-%%' and status = 'completed'"
    )
    followed.wait_for(lambda: followed.one(read) == 3 + 1)
    write(followed, "_late")
    followed.confirm()
    expected = {
        *("published_key", "full_stored", "identity_stored", "virtual"),
        *("published_key_late", "full_stored_late", "identity_stored_late"),
        "virtual_late",
    }

    assert expected == captured(followed)
    check_rows(followed, expected)
    assert "s.full_virtual" in printed
    assert "left out: h" in printed
    [late] = [
        each["reason"]
        for each in followed.logged("table not captured")
        if each["table"] == "s.full_virtual_late"
    ]
    assert "not sent: g" in late

    followed.execute(f"alter table s.full_stored add column late {VIRTUAL}")
    followed.wait_for(
        lambda: any(
            each["table"] == "s.full_stored" and "late" in each["reason"]
            for each in followed.logged("table column not published")
        )
    )
    with pytest.raises(psycopg.Error, match="cannot update"):
        followed.execute(UPDATE.format("s.full_stored"))


def test_a_publication_that_the_user_created_is_checked(followed, capsys):
    """
    If it sends no generated columns, the columns and tables left out are reported.
    """
    make(followed)
    followed.execute("create publication towpath for table s.virtual")
    followed.tables = [r"s\..*"]
    followed.prepare()
    printed = capsys.readouterr().err
    write(followed)

    assert {"virtual"} == captured(followed)
    assert "left out: g, h" in printed
    for name in set(NAMES) - {"virtual"}:
        assert f"s.{name}: " in printed, name

    followed.execute("alter publication towpath set (publish_generated_columns=stored)")
    followed.prepare()
    write(followed)
    assert set(NAMES) - {"full_virtual"} == captured(followed)


def test_the_refusals_of_the_server_are_predicted(followed):
    """
    In each publication, a table has an error if and only if its UPDATE is refused.
    """
    make(followed)
    followed.execute("create table s.listed (id int primary key, v int, w int)")
    followed.execute(FULL.format("s.listed"))
    followed.tables = [r"s\..*"]
    followed.write()
    names = (*NAMES, "listed")
    found, refused = {}, {}
    for option in ("none", "stored"):
        tables = ", ".join(f"s.{name}" for name in NAMES)
        followed.execute(
            f"create publication towpath for table {tables}, s.listed (id, v)"
            f" with (publish_generated_columns = {option})"
        )
        settings, facts = facts_of(followed)
        for name in names:
            reason = blocking_finding(f"s.{name}", facts, settings)
            found[option, name] = reason is not None
            refused[option, name] = False
            with contextlib.suppress(psycopg.errors.InvalidColumnReference):
                refused[option, name] = True
                followed.execute(UPDATE.format(f"s.{name}"))
                refused[option, name] = False
        followed.execute("drop publication towpath")

    assert refused == found
    assert {"listed", "full_virtual"} == {
        name for (option, name), holds in found.items() if holds and option == "stored"
    }


def test_below_postgres_18_the_columns_left_out_are_reported(followed):
    """
    No generated column is sent: in a key this is an error, elsewhere a warning.
    """
    make(followed)
    followed.tables = [r"s\..*"]
    followed.write()
    settings, facts = facts_of(followed)
    server = replace(facts.server, version=170000)
    facts = replace(facts, server=server)
    found = {name: list(table_findings(f"s.{name}", facts, settings)) for name in NAMES}
    levels = {name: {each.level for each in those} for name, those in found.items()}

    assert {Severity.ERROR} == levels["published_key"]
    assert Severity.ERROR in levels["identity_stored"]
    assert {Severity.WARNING} == levels["full_stored"]
    assert any("left out: g, h" in each.what for each in found["virtual"])
