"""The documentation page about the outbox library: its code runs as printed."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

import towpath.outbox as library
from support.django_connection import connect_django
from towpath.outbox import outbox, testing
from towpath.outbox.alembic import SourceTableOperation
from towpath.outbox.sqlalchemy import Collector, track
from towpath.outbox.testing import RecordedEvents
from towpath.schemas import source_tables

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PAGE = Path(__file__).parents[2] / "docs/outbox.md"
BLOCK = re.compile(
    r"(?:`(?P<file>[^`\n]+)`:?\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL
)


@pytest.fixture
def dsn(database, monkeypatch, tmp_path):
    """Provide a database with an outbox, and set ``DATABASE_URL`` to its address."""
    with psycopg.connect(database) as connection:
        connection.execute(source_tables.schema_statement())
        connection.execute(source_tables.outbox().create_statement())
    monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.setattr(outbox, "_default", [])
    # The producers of this process must not be replaced.
    monkeypatch.setattr(testing, "_PRODUCERS", ())
    monkeypatch.chdir(tmp_path)
    django_connection = connect_django(database)
    yield database
    django_connection.close()


@pytest.fixture
def names(dsn):  # noqa: ARG001 - prepares the database
    """Run all code on the page, and provide the names that it defines."""
    found = {"__name__": "page"}
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["kind"] == "json":
            file = Path("schemas", block["file"])
            file.parent.mkdir(exist_ok=True)
            file.write_text(block["text"], encoding="utf-8")
        elif block["kind"] == "python" and not (block["file"] or "").endswith(".py"):
            exec(compile(block["text"], str(PAGE), "exec"), found)  # noqa: S102 - our page
    yield found
    for name in ("engine", "views"):
        found[name].dispose()
    found["correlation_id"].set(None)


def test_the_code_of_the_page_records_its_events(dsn, names):
    """
    Each example has recorded its event with the content that the page describes.
    """
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select type, aggregate_id, payload, headers from towpath.outbox"
            " order by occurred_at, aggregate_id"
        ).fetchall()
    (large,) = (row for row in rows if "claim_check" in row[3])
    found = [f"{kind.removeprefix('Post')} {key}" for kind, key, *_ in rows]

    assert [
        *("Published 7", "Viewed 7"),
        *("Shared 7", "Rated 7", "Liked 7"),
        *("Viewed 7", "Viewed 7", "Viewed 8", "Liked 8"),
        *("Viewed 7", "Viewed 8", "Viewed 9", "Liked 9"),
        *("Published 8", "Shared 8", "Published 9", "Viewed 7"),
    ] == found
    assert {"schema": "blog.PostPublished:1"} == rows[0][3]
    assert {"with": "grace", "by": "ada"} == rows[-3][2]
    assert {"correlation_id": "request-4711"} == rows[-1][3]
    assert b"x" * 2_000 in names["store"][large[2]["claim_check"]]


def public_functions():
    """Return the names of the library's public functions, methods and properties."""
    offered = [getattr(library, name) for name in library.__all__]
    offered += [Collector, track, RecordedEvents, testing.guard_producers]
    offered += [SourceTableOperation]
    classes = [
        each
        for each in offered
        if inspect.isclass(each) and not issubclass(each, Exception)
    ]
    found = {each.__name__ for each in (*offered, *classes) if inspect.isroutine(each)}
    for each in classes:
        found |= {name for name in vars(each) if not name.startswith("_")}
    # The fields of the dataclass are not functions.
    return found - set(library.OutboxEvent.__dataclass_fields__)


def test_every_public_function_has_an_example_on_the_page():
    """
    The other tests run the examples, so every function has an example that works.
    """
    used = set()
    for block in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["kind"] == "python":
            for node in ast.walk(ast.parse(block["text"])):
                used |= {node.id} if isinstance(node, ast.Name) else set()
                used |= {node.attr} if isinstance(node, ast.Attribute) else set()
                used |= {node.arg} if isinstance(node, ast.arg) else set()

    assert {"record", "drain", "without_schema", "of"} <= public_functions()
    assert {"create_outbox", "check_signal_table"} <= public_functions()
    assert set() == public_functions() - used
    assert {"recorded_events", "no_dual_writes"} <= used


ALONE = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {others}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import psycopg2
from towpath.outbox import Events, Outbox

outbox = Outbox(Events(unknown="none"))
with psycopg2.connect({dsn!r}) as connection:
    outbox.record(connection, dict(aggregate_type="note", aggregate_id="1",
                                   type="Noted", payload=dict(n=1)))
"""


def test_psycopg2_alone_is_enough(dsn):
    """
    The library records an event if no other supported package can be imported.
    """
    others = {
        *("sqlalchemy", "psycopg", "asyncpg", "django", "pydantic", "pytest"),
        *("opentelemetry", "flask", "confluent_kafka", "kafka", "aiokafka"),
    }
    command = [sys.executable, "-c", ALONE.format(others=others, dsn=dsn)]
    subprocess.run(command, check=True, timeout=60)
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("select type, payload from towpath.outbox")

        assert [("Noted", {"n": 1})] == rows.fetchall()


def test_the_tests_of_the_page_pass(names):
    """
    The page's own tests find the events that their code records.
    """
    seen = RecordedEvents()
    with outbox.observed(lambda _, events: seen.extend(events)):
        names["test_a_view_is_recorded"](seen)
        names["test_a_view_sends_nothing_itself"](None)

    assert ["PostViewed"] * 2 == seen.types
