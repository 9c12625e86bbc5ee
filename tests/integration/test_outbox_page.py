"""The page about the outbox library: its code runs as it stands there."""

import re
from pathlib import Path

import psycopg
import pytest

from towpath.outbox import outbox
from towpath.outbox.testing import RecordedEvents
from towpath.relay.postgres.queries import query

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PAGE = Path(__file__).parents[2] / "docs/outbox.md"
BLOCK = re.compile(
    r"(?:`(?P<file>[^`\n]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL
)


@pytest.fixture
def dsn(database, monkeypatch, tmp_path):
    """Provide a database with an outbox, named by the environment."""
    with psycopg.connect(database) as connection:
        for name in ("create_schema", "create_outbox_table"):
            connection.execute(query(name).decode())
    monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.setattr(outbox, "_default", [])
    monkeypatch.chdir(tmp_path)
    return database


@pytest.fixture
def names(dsn):  # noqa: ARG001 - prepares the database
    """Provide the names that the page defines, once all its code has run."""
    found = {"__name__": "page"}
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["kind"] == "json":
            file = Path("schemas", block["file"])
            file.parent.mkdir(exist_ok=True)
            file.write_text(block["text"], encoding="utf-8")
        elif block["kind"] == "python":
            exec(compile(block["text"], str(PAGE), "exec"), found)  # noqa: S102 - the page's
    yield found
    found["engine"].dispose()
    found["correlation_id"].set(None)


def test_the_code_of_the_page_records_its_events(dsn, names):
    """
    Each example has recorded its event, with what the page says of it.
    """
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select type, aggregate_id, payload, headers from towpath.outbox"
            " order by occurred_at, aggregate_id"
        ).fetchall()
    (large,) = (row for row in rows if "claim_check" in row[3])

    assert [
        *(("PostPublished", "7"), ("PostViewed", "7"), ("PostViewed", "7")),
        *(("PostViewed", "7"), ("PostViewed", "8"), ("PostViewed", "7")),
        *(("PostViewed", "8"), ("PostViewed", "9"), ("PostPublished", "8")),
        *(("PostPublished", "9"), ("PostViewed", "7")),
    ] == [row[:2] for row in rows]
    assert {"schema": "blog.PostPublished:1"} == rows[0][3]
    assert {"correlation_id": "request-4711"} == rows[-1][3]
    assert b"x" * 2_000 in names["store"][large[2]["claim_check"]]


def test_the_tests_of_the_page_pass(names):
    """
    The page's own tests see what they record.
    """
    seen = RecordedEvents()
    with outbox.observed(lambda _, events: seen.extend(events)):
        names["test_a_view_is_recorded"](seen)
        names["test_a_view_sends_nothing_itself"](None)

    assert ["PostViewed"] * 2 == seen.types
