"""The documentation page about the inbox: its code and commands work as printed."""

import dataclasses
import json
import re
import threading
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import REGISTRY

from support.waiting import until
from towpath.cli.app import run
from towpath.schemas.transactions import drive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PAGE = Path(__file__).parents[2] / "docs/inbox.md"
VIEW = {"post_id": 7}


def blocks(kind):
    """Return the page's code blocks in one language."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(stack, database, unique, monkeypatch):
    """Run the page's code with a real database and topic; provide its names."""
    stack.up("postgres", "kafka")
    admin = AdminClient({"bootstrap.servers": stack.kafka})
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result()
    variables = {"DATABASE_URL": database, "KAFKA": stack.kafka, "TOPIC": unique}
    # The page's code does not connect to the registry.
    variables["REGISTRY"] = "http://127.0.0.1:1"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert 0 == run(["inbox", "create", "--dsn", database])
    with psycopg.connect(database) as connection:
        connection.execute("create table views (post int primary key, count int)")
    names = {"__name__": "page", **variables}
    for text in blocks("python"):
        exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - the page's code
    yield names
    names["engine"].dispose()
    for metric in vars(names["metrics"]).values():
        REGISTRY.unregister(metric)


def test_the_consumer_of_the_page_counts_each_view_once(page):
    """
    The page's code applies one view without the consumer; the topic has two more.
    """
    producer = Producer({"bootstrap.servers": page["KAFKA"]})
    for id_ in ("a", "b", "a", page["event"].id):
        headers = [("id", id_), ("type", "PostViewed")]
        producer.produce(page["TOPIC"], json.dumps(VIEW), "7", headers=headers)
    producer.produce(page["TOPIC"], b"{}", "8", headers=[("id", "end")])
    producer.flush()
    stop = threading.Event()
    thread = threading.Thread(target=page["watched"].run, args=[stop])
    thread.start()
    with psycopg.connect(page["DATABASE_URL"], autocommit=True) as connection:
        end = "select count(*) from towpath.inbox where event_id = 'end'"
        until(
            lambda: connection.execute(end).fetchone()[0] == 1, "all events are applied"
        )
        counts = connection.execute("select post, count from views").fetchall()
    stop.set()
    thread.join()

    assert [(7, 3)] == counts


def test_a_truncated_listing_of_parked_events_is_marked(page, capsys):
    """
    The command warns that only the first 1,000 parked events are listed.
    """
    event, inbox = page["event"], page["inbox"]
    options = ["--dsn", page["DATABASE_URL"], "--consumer", "view-counter"]
    with page["sessions"].begin() as session:
        for number in range(1_001):
            one = dataclasses.replace(event, id=f"many-{number}")
            drive(session, inbox.park(one, "unreadable"))
    capsys.readouterr()
    assert 1 == run(["inbox", "parked", *options, "--json"])
    output = capsys.readouterr()

    assert 1_000 == len(json.loads(output.out))
    assert "only the first 1,000 are listed" in output.err


def test_the_command_lists_replays_and_discards_parked_events(page, capsys):
    """
    A listing with parked events exits with 1; an unknown id gives exit code 2.
    """
    event, inbox = page["event"], page["inbox"]
    options = ["--dsn", page["DATABASE_URL"], "--consumer", "view-counter"]
    assert 0 == run(["inbox", "parked", *options])
    with page["sessions"].begin() as session:
        drive(session, inbox.park(dataclasses.replace(event, id="x"), "unreadable"))
    capsys.readouterr()
    assert 1 == run(["inbox", "parked", *options, "--json"])
    (found,) = json.loads(capsys.readouterr().out)
    assert ("x", "unreadable", False) == (
        *(found["id"], found["reason"], found["replay_requested"]),
    )
    assert 1 == run(["inbox", "parked", *options])
    assert "unreadable" in capsys.readouterr().out
    assert 2 == run(["inbox", "replay", "nonsense", *options])
    assert 0 == run(["inbox", "replay", "x", *options])
    assert "parked events to be replayed: 1" in capsys.readouterr().out
    assert 0 == run(["inbox", "discard", "x", *options])
    assert 2 == run(["inbox", "discard", "x", *options])
    assert "has no parked event x" in capsys.readouterr().err
    assert 3 == run(
        ["inbox", "parked", "--dsn", "postgresql://127.0.0.1:1/x", *options[2:]]
    )
