"""Kafka with TLS and a login: every client, in Python and in Spark."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError

from support.published import wait_running
from support.rights import documented
from support.secure_kafka import PASSWORD, SecureKafka, toml
from support.sink_place import SinkPlace
from support.waiting import stretched
from towpath.cli import app
from towpath.settings import Kafka, load, spark_options
from towpath.sinks.kafka import client
from towpath.sinks.targets.cache.client import connect

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(240)]


def kafka_rights(prefix: str) -> Iterator[tuple[str, tuple[str, str, str, str]]]:
    """Yield each documented right in the broker's form, with its user."""
    [block] = documented("acl", "Kafka")
    for line in block.splitlines():
        user, kind, pattern, name, operations = line.split()
        # A leading "towpath-" is fixed if it ends the name or precedes the prefix.
        ours = re.sub(r"(?<!^)\btowpath\b|^towpath\b(?!-towpath|-$)", prefix, name)
        for operation in operations.split(","):
            yield user, (kind, pattern, ours, operation)


class SecurePlace(SinkPlace):
    """A source, its relay and a driver whose broker requires a login."""

    def __init__(self, stack, broker, dsn, prefix, folder):
        super().__init__(stack, dsn, prefix, folder)
        self.kafka = broker.login
        self.client = toml(broker.client(f"{prefix}-relay"))
        for user in ("relay", "sinks", "operator", "verifier", "new"):
            broker.add_user(f"{prefix}-{user}")
        for user, right in kafka_rights(prefix):
            broker.allow(f"{prefix}-{user}", [right])

    def configure(self, sections="", **options):
        """Write the configuration, with Spark's event log enabled."""
        events = self.folder / "events"
        events.mkdir()
        logged = (
            *("[sinks]", "state_copies = true"),
            "[spark.settings]",
            '"spark.eventLog.enabled" = "true"',
            f'"spark.eventLog.dir" = "{events.as_uri()}"',
        )
        delivery = 'delivery = "transactional"'
        super().configure("\n".join((delivery, sections, *logged)), **options)

    def block(self, name, route=""):
        """Return the configuration block of a sink that writes from executors."""
        executors = 'write_from = "executors"\nspread_from_records = 1\n'
        block = super().block(name, route)
        return block.replace("[[sink.route]]", f"{executors}[[sink.route]]", 1)

    def run(self, *arguments):
        """Run a command; return its exit code."""
        return app.run([*arguments, "--config", str(self.config)])

    def lose_a_row(self, name):
        """Delete a row of a sink's cache, bypassing the sink."""
        client = connect(self.url)
        client.delete(next(iter(client.scan_iter(f"{self.prefix}:{name}:*"))))
        client.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Provide a broker that requires TLS and a login."""
    kafka = SecureKafka(tmp_path_factory.mktemp("kafka"))
    yield kafka
    kafka.close()


@pytest.fixture
def place(stack, broker, database, unique, tmp_path):
    """Provide a source whose configuration names the listener with the login."""
    stack.up("redis")
    place = SecurePlace(stack, broker, database, unique, tmp_path)
    yield place
    place.close()


# The topics of a relay with one table, without its prefix.
RELAY_TOPICS = ("relations", "relay-state", "dead.relay", "notifications", "shop.lines")
# Commands that use Kafka and write nothing, with the exit codes of a healthy system.
# 1: there is a finding; 2: there is nothing to repair; 4: there are only warnings.
READING = {
    ("sink", "list"): {0},
    ("sink", "check"): {0},
    ("verify", "plain"): {0},
    ("dead-letters", "list", "--sink", "plain"): {0},
    ("relay", "status"): {0},
    ("relay", "state", "show"): {0},
    ("relay", "state", "export"): {0},
    ("relay", "state", "repair", "--dry-run"): {2},
    ("doctor",): {0, 1, 4},
    ("status",): {0, 1},
}
SHOWING = {("status",), ("relay", "status"), ("sink", "list")}


# The user whose rights each command needs; other commands need the verifier's.
USERS = {
    ("relay",): "relay",
    ("doctor",): "relay",
    ("dead-letters",): "operator",
    ("sink", "check"): "sinks",
}


@pytest.fixture
def log_in(place, monkeypatch):
    """Provide a function that sets the user of all clients that are started later."""

    def change(user):
        name = f"{place.prefix}-{user}"
        monkeypatch.setenv("TOWPATH_KAFKA__CLIENT__SASL_USERNAME", name)

    return change


def files_with(folder, text):
    """List the files below a folder that contain a string, except the configuration."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".toml" and text in path.read_bytes()
    ]


def run_all(place, log_in):
    """Run each command as its user; return the exit codes."""
    codes = {}
    for command in READING:
        log_in(USERS.get(command, USERS.get(command[:1], "verifier")))
        codes[command] = place.run(*command)
    return codes


def test_every_client_connects_with_tls_and_a_login(place, log_in, capsys):
    """
    Relay, driver, Spark, executors and every command work with SASL_SSL.

    Each logs in as a user with only the rights that docs/rights.md gives it.
    The password is in no log, no file of the state folder and no event log.
    """
    place.prepare()
    # A sink is declared only if a relay is consuming the slot.
    place.confirm()
    log_in("sinks")
    with place.driver():
        # The command's own deadline is not extended on a slow machine.
        wait_running(load(place.config, {}), "plain", stretched(60))
        log_in("operator")
        assert 0 == place.add("extra"), capsys.readouterr()
        assert 0 == place.towpath("refill", "plain")
        place.catch_up("plain")
        place.lose_a_row("plain")
        log_in("verifier")
        assert 0 == place.run("verify", "plain", "--repair"), capsys.readouterr()
        lsn = place.one("select pg_current_wal_lsn()::text")
        assert 0 == place.run("wait", "--lsn", lsn, "--sink", "plain")
        codes = run_all(place, log_in)
        shown = capsys.readouterr()
        log_in("verifier")
        place.run("status", "--json")
        sinks = json.loads(capsys.readouterr().out)["sinks"]
        log_in("operator")
        assert 0 == place.towpath("drop", "extra", "--yes")

    unexpected = {one for one, code in codes.items() if code not in READING[one]}
    assert set() == unexpected, "".join(shown)
    assert [None, None] == [sink["error"] for sink in sinks]
    log = (place.folder / "driver.log").read_text()
    assert "writes large batches on the executors" in log
    assert [] == [sink for sink in sinks if sink["lag_records"] is None]
    assert place.plain() == place.held("plain")
    assert [] == files_with(place.folder, PASSWORD[:8].encode())


def test_sink_check_names_all_rights_that_the_sinks_user_lacks(
    place, broker, log_in, capsys
):
    """
    Topics and groups are listed by missing operation; only one topic may be described.

    With the documented rights, nothing is missing. The check creates no topic.
    """
    place.configure(tables=["shop.lines"])
    place.config.write_text(place.config.read_text() + place.block("plain"))
    user, relations = f"{place.prefix}-new", f"{place.prefix}.relations"
    admin = AdminClient({"bootstrap.servers": broker.plain})
    admin.create_topics([NewTopic(relations, 1, 1)])[relations].result(10)
    broker.allow(user, [("topic", "literal", relations, "describe")])
    log_in("new")
    capsys.readouterr()
    codes = [place.run("sink", "check")]
    printed = capsys.readouterr().out
    documented_rights = kafka_rights(place.prefix)
    broker.allow(user, [right for role, right in documented_rights if role == "sinks"])
    codes.append(place.run("sink", "check"))
    topics = admin.list_topics(timeout=10).topics

    dead, lines = f"{place.prefix}.dead.plain", f"{place.prefix}.shop.lines"
    copies = f"{place.prefix}-sink-plain"
    progress = f"{place.prefix}.progress"
    reads = (copies, dead, progress, relations, lines, f"{lines}.backfill.plain")
    missing = {
        "create": f"{copies}, {dead}, {progress}",
        "read": ", ".join(sorted(reads)),
        "write": f"{place.prefix}-signal, {copies}, {dead}, {progress}",
        "describe groups": f"{place.prefix}.sinks, towpath-plain, towpath-sinks",
    }
    start = "plain: the user of kafka.client may not"
    assert {
        f"{start} {operation} {names}: see docs/rights.md"
        for operation, names in missing.items()
    } == set(printed.splitlines())
    assert [1, 0] == codes, capsys.readouterr()
    assert [relations] == [name for name in topics if name.startswith(place.prefix)]


def test_doctor_names_all_rights_that_the_relays_user_lacks(
    place, broker, log_in, capsys
):
    """
    With the documented rights, nothing is missing. The doctor creates no topic.
    """
    place.configure(tables=["shop.lines"])
    user, signals = f"{place.prefix}-new", f"{place.prefix}-signal"
    admin = AdminClient({"bootstrap.servers": broker.plain})
    admin.create_topics([NewTopic(signals, 1, 1)])[signals].result(10)
    broker.allow(user, [("topic", "literal", signals, "describe")])
    log_in("new")

    def found():
        capsys.readouterr()
        place.run("doctor", "--json")
        rows = json.loads(capsys.readouterr().out)
        return {row["what"] for row in rows if "may not" in row["what"]}

    before = found()
    documented_rights = kafka_rights(place.prefix)
    broker.allow(user, [right for role, right in documented_rights if role == "relay"])
    after = found()
    topics = admin.list_topics(timeout=10).topics

    prefix = place.prefix
    created = [f"{prefix}.{name}" for name in RELAY_TOPICS]
    created.append(f"__debezium-heartbeat.{prefix}")
    start = "the user of kafka.client may not"
    assert {
        f"{start} create {', '.join(sorted((*created, signals)))}",
        f"{start} read {', '.join(sorted((*created, signals)))}",
        f"{start} write {', '.join(sorted(created))}",
        f"{start} describe_configs {', '.join(sorted((*created, signals)))}",
        f"{start} describe groups {prefix}-signals",
    } == before
    assert set() == after
    assert [signals] == [name for name in topics if name.startswith(prefix)]


def test_no_client_falls_back_to_plaintext(place, broker, capsys):
    """
    If TLS is configured and the listener has none, every command exits with 3.
    """
    place.prepare()
    place.confirm()
    place.stop()
    text = place.config.read_text()
    place.config.write_text(text.replace(broker.login, broker.plain))
    with ThreadPoolExecutor(len(READING)) as threads:
        codes = dict(
            zip(
                READING,
                threads.map(lambda command: place.run(*command), READING),
                strict=True,
            )
        )
    capsys.readouterr()
    place.run("status", "--json")
    [sink] = json.loads(capsys.readouterr().out)["sinks"]

    # Some commands still show the parts of the system that do not need Kafka.
    assert dict.fromkeys(READING, 3) == codes | {
        command: 3 for command in SHOWING if codes[command] == 1
    }
    assert "Kafka" in sink["error"]


def test_spark_and_python_connect_with_each_kind_of_certificate(lake, broker, unique):
    """
    An authority is given inline or as a file, a key as PEM or in a keystore.

    If TLS is configured and the listener has none, Spark reads nothing.
    """
    session = lake[1]._session
    folder = broker.folder
    login = broker.client()
    authority = {"ssl.ca.location": str(folder / "ca.pem")}
    inline = {"ssl.ca.pem": (folder / "ca.pem").read_text()}
    del login["ssl.ca.location"]
    mutual = {"security.protocol": "SSL", **authority}
    cases = (
        Kafka(bootstrap_servers=broker.login, client={**login, **inline}),
        Kafka(
            bootstrap_servers=broker.mutual,
            client={
                **mutual,
                "ssl.certificate.location": str(folder / "client.pem"),
                "ssl.key.location": str(folder / "client.key"),
            },
        ),
        Kafka(
            bootstrap_servers=broker.mutual,
            client={
                **mutual,
                "ssl.keystore.location": str(folder / "client.p12"),
                "ssl.keystore.password": PASSWORD,
            },
        ),
    )
    admin = client.admin(cases[0])
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(10)

    def count(kafka):
        source = session.read.format("kafka").options(**spark_options(kafka))
        return source.option("subscribe", unique).load().count()

    for kafka in cases:
        producer = client.producer(kafka)
        producer.produce(unique, b"x")
        assert 0 == producer.flush(10)
    assert [3, 3, 3] == [count(kafka) for kafka in cases]
    plain = Kafka(
        bootstrap_servers=broker.plain,
        client={**login, **inline, "socket.timeout.ms": "1000"},
    )
    quick = {"kafka.default.api.timeout.ms": "2000"}
    with pytest.raises(Py4JJavaError, match="Timed out"):
        session.read.format("kafka").options(**spark_options(plain), **quick).option(
            "subscribe", unique
        ).load().count()
