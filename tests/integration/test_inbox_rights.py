"""A consumer and its operator have exactly the rights that docs/rights.md lists."""

import json

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.inbox_place import EFFECTS, run_consumer
from support.rights import documented
from support.secure_kafka import SecureKafka
from support.waiting import until
from towpath.cli.app import run
from towpath.inbox import Consumer, Inbox, create_statements

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SECTION = "A consumer with an inbox"
TOPIC = "outbox.event.post"
USERS = ("counter", "inbox_operator")


@pytest.fixture
def broker(tmp_path):
    """Provide a broker whose users have the documented rights."""
    made = SecureKafka(tmp_path / "kafka")
    for user in USERS:
        made.add_user(user)
    [block] = documented("acl", SECTION)
    for user, *kind, operations in map(str.split, block.splitlines()):
        made.allow(user, [(*kind, one) for one in operations.split(",")])
    yield made
    made.close()


@pytest.fixture
def role_dsn(stack, database, unique):
    """Provide a function that returns the DSN of a documented role."""
    stack.up("postgres")
    [grants] = documented("sql", SECTION)
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in (*create_statements(), EFFECTS):
            connection.execute(statement)
        for role in USERS:
            connection.execute(f"create role {role}_{unique}")
            grants = grants.replace(role, f"{role}_{unique}")
        connection.execute(grants)
        connection.execute(f"grant insert on effects to counter_{unique}")
        connection.execute(
            f"grant usage on all sequences in schema public to counter_{unique}"
        )

    def dsn(role):
        options = f"-c role={role}_{unique}"
        return psycopg.conninfo.make_conninfo(database, options=options)

    return dsn


@pytest.fixture
def delete_below(broker):
    """Fill a topic; provide a function that deletes its records below an offset."""
    admin = AdminClient({"bootstrap.servers": broker.plain})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    producer = Producer({"bootstrap.servers": broker.plain})
    for id_ in ("1", "2", "1", "3"):
        producer.produce(TOPIC, b"{}", "a", headers=[("id", id_)])
    producer.flush()

    def delete(offset):
        cut = TopicPartition(TOPIC, 0, offset)
        admin.delete_records([cut])[cut].result()

    return delete


@pytest.fixture
def operator(broker, role_dsn, tmp_path, capsys):
    """Provide a function that runs a command as the operator and returns its output."""
    file = tmp_path / "operator.properties"
    login = broker.client("inbox_operator").items()
    file.write_text("".join(f"{name}={value}\n" for name, value in login), "utf-8")
    database = ["--dsn", role_dsn("inbox_operator"), "--consumer", "view-counter"]
    kafka = ["--kafka", broker.login, "--kafka-file", str(file)]

    def run_command(command, *args, code):
        options = [*database, *(kafka if command in ("status", "prune") else ())]
        capsys.readouterr()
        assert code == run(["inbox", command, *args, *options])
        return capsys.readouterr().out

    return run_command


def test_consumer_and_operator_need_no_more_than_the_documented_rights(
    broker, role_dsn, delete_below, operator
):
    """
    The consumer applies, parks, replays and prunes; the operator runs each command.
    """
    refused = {"2"}

    def handle(event, session):
        if event.id in refused:
            raise ValueError
        session.execute(
            "insert into effects (event_id, key, count) values (%s, 'a', 1)", [event.id]
        )

    consumer = Consumer(
        Inbox("view-counter"),
        {"bootstrap.servers": broker.login, **broker.client("counter")},
        [TOPIC],
        begin=lambda: psycopg.connect(role_dsn("counter")),
        handle=handle,
        attempts=1,
    )

    def parked():
        with psycopg.connect(role_dsn("inbox_operator")) as connection:
            rows = connection.execute("select count(*) from towpath.inbox_parked")
            return rows.fetchone()[0]

    def state(code):
        [found] = json.loads(operator("status", "--json", code=code))
        return found["lag"], found["parked_events"]

    with run_consumer(consumer):
        until(lambda: parked() == 2, "two events are parked")
        operator("parked", code=1)
        refused.clear()
        operator("replay", code=0)
        until(lambda: parked() == 0, "all events are replayed")
    assert (0, 0) == state(0)
    operator("discard", "none", code=2)
    delete_below(2)
    assert "ids pruned: 1\n" == operator("prune", code=0)
    delete_below(4)
    assert 2 == consumer.prune()


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("counter", "update towpath.inbox_parked set value = null"),
        ("inbox_operator", "update towpath.inbox_parked set value = null"),
        ("inbox_operator", "insert into towpath.inbox (consumer) values ('a')"),
    ],
)
def test_consumer_and_operator_cannot_exceed_their_rights(role_dsn, role, statement):
    """
    Neither can change a parked event, and the operator cannot store an id.
    """
    with (
        psycopg.connect(role_dsn(role)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


def test_a_command_without_rights_refers_to_the_rights_page(role_dsn, database, capsys):
    """
    The role may not use the schema; the error refers to docs/rights.md.
    """
    with psycopg.connect(database) as connection:
        connection.execute("create schema private")
    named = ["--dsn", role_dsn("counter"), "--consumer", "x", "--schema", "private"]

    assert 2 == run(["inbox", "parked", *named])
    assert "docs/rights.md lists the grants" in capsys.readouterr().err
