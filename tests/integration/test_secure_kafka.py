"""Kafka behind TLS and a login: every client, of Python's and of the engine's."""

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
    """Go through the documented lines: a user, and one right as a broker takes it."""
    [block] = documented("acl", "Kafka")
    for line in block.splitlines():
        user, kind, pattern, name, operations = line.split()
        # "towpath-" alone, and before the prefix, is the same whatever the prefix is.
        ours = re.sub(r"(?<!^)\btowpath\b|^towpath\b(?!-towpath|-$)", prefix, name)
        for operation in operations.split(","):
            yield user, (kind, pattern, ours, operation)


class SecurePlace(SinkPlace):
    """A source, its relay and a driver whose broker wants a login."""

    def __init__(self, stack, broker, dsn, prefix, folder):
        super().__init__(stack, dsn, prefix, folder)
        self.kafka = broker.login
        self.client = toml(broker.client(f"{prefix}-relay"))
        for user in ("relay", "sinks", "operator", "verifier", "new"):
            broker.add_user(f"{prefix}-{user}")
        for user, right in kafka_rights(prefix):
            broker.allow(f"{prefix}-{user}", [right])

    def configure(self, sections="", **options):
        """Write the configuration, with an engine that logs all that it does."""
        events = self.folder / "events"
        events.mkdir()
        logged = (
            *("[sinks]", "state_copies = true"),
            "[spark.settings]",
            '"spark.eventLog.enabled" = "true"',
            f'"spark.eventLog.dir" = "{events.as_uri()}"',
        )
        kept = 'delivery = "transactional"'
        super().configure("\n".join((kept, sections, *logged)), **options)

    def block(self, name, route=""):
        """Write the block of a sink that the executors write."""
        spread = 'write_from = "executors"\nspread_from_records = 1\n'
        whole = super().block(name, route)
        return whole.replace("[[sink.route]]", f"{spread}[[sink.route]]", 1)

    def run(self, *words):
        """Run a command; return its exit code."""
        return app.run([*words, "--config", str(self.config)])

    def lose_a_row(self, name):
        """Delete a row of a sink's cache behind its back."""
        client = connect(self.url)
        client.delete(next(iter(client.scan_iter(f"{self.prefix}:{name}:*"))))
        client.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Provide a broker that wants TLS and a login."""
    lent = SecureKafka(tmp_path_factory.mktemp("kafka"))
    yield lent
    lent.close()


@pytest.fixture
def place(stack, broker, database, unique, tmp_path):
    """Provide a source whose configuration leads to the listener with the login."""
    stack.up("redis")
    found = SecurePlace(stack, broker, database, unique, tmp_path)
    yield found
    found.close()


# The topics of a relay with one table, below its prefix.
OF_RELAY = ("relations", "relay-state", "dead.relay", "notifications", "shop.lines")
# Each speaks to Kafka, and writes nothing: the exit codes where all is well.
# 1: there is something to look at; 2: there is nothing to repair.
ASKING = {
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


# Whose rights a command needs; the others need the verifier's.
USERS = {
    ("relay",): "relay",
    ("doctor",): "relay",
    ("dead-letters",): "operator",
    ("sink", "check"): "sinks",
}


@pytest.fixture
def be(place, monkeypatch):
    """Provide what makes whatever is started from then on log in as a user."""

    def change(user):
        name = f"{place.prefix}-{user}"
        monkeypatch.setenv("TOWPATH_KAFKA__CLIENT__SASL_USERNAME", name)

    return change


def files_with(folder, text):
    """Name the files below a folder that hold a text, but for the configuration."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".toml" and text in path.read_bytes()
    ]


def request_all(place, be):
    """Run each command as its user; return the exit codes."""
    codes = {}
    for words in ASKING:
        be(USERS.get(words, USERS.get(words[:1], "verifier")))
        codes[words] = place.run(*words)
    return codes


def test_every_client_goes_in_by_tls_and_login(place, be, capsys):
    """
    Relay, driver, engine, executors and every command work behind SASL_SSL.

    Each logs in as a user who has just the rights that docs/rights.md gives it.
    The login's password is in no log, no file of the state folder and no event log.
    """
    place.prepare()
    # A sink is declared only if a relay follows the slot.
    place.confirm()
    be("sinks")
    with place.driver():
        # The command waits for the sink, with a deadline that does not stretch.
        wait_running(load(place.config, {}), "plain", stretched(60))
        be("operator")
        assert 0 == place.add("extra"), capsys.readouterr()
        assert 0 == place.towpath("refill", "plain")
        place.catch_up("plain")
        place.lose_a_row("plain")
        be("verifier")
        assert 0 == place.run("verify", "plain", "--repair"), capsys.readouterr()
        lsn = place.one("select pg_current_wal_lsn()::text")
        assert 0 == place.run("wait", "--lsn", lsn, "--sink", "plain")
        codes = request_all(place, be)
        shown = capsys.readouterr()
        be("verifier")
        place.run("status", "--json")
        sinks = json.loads(capsys.readouterr().out)["sinks"]
        be("operator")
        assert 0 == place.towpath("drop", "extra", "--yes")

    unexpected = {words for words, code in codes.items() if code not in ASKING[words]}
    assert set() == unexpected, "".join(shown)
    assert [None, None] == [sink["error"] for sink in sinks]
    log = (place.folder / "driver.log").read_text()
    assert "writes large batches on the executors" in log
    assert [] == [sink for sink in sinks if sink["lag_records"] is None]
    assert place.plain() == place.held("plain")
    assert [] == files_with(place.folder, PASSWORD[:8].encode())


def test_sink_check_names_all_that_the_sinks_user_lacks(place, broker, be, capsys):
    """
    Every topic and group at once, by what is missing; what is there may be seen only.

    With the documented rights nothing is missing, and no topic was made meanwhile.
    """
    place.configure(tables=["shop.lines"])
    place.config.write_text(place.config.read_text() + place.block("plain"))
    user, relations = f"{place.prefix}-new", f"{place.prefix}.relations"
    admin = AdminClient({"bootstrap.servers": broker.plain})
    admin.create_topics([NewTopic(relations, 1, 1)])[relations].result(10)
    broker.allow(user, [("topic", "literal", relations, "describe")])
    be("new")
    capsys.readouterr()
    codes = [place.run("sink", "check")]
    printed = capsys.readouterr().out
    whose = kafka_rights(place.prefix)
    broker.allow(user, [right for role, right in whose if role == "sinks"])
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


def test_doctor_names_all_that_the_relays_user_lacks(place, broker, be, capsys):
    """
    Every topic and group at once; with the documented rights nothing, and none is made.
    """
    place.configure(tables=["shop.lines"])
    user, signals = f"{place.prefix}-new", f"{place.prefix}-signal"
    admin = AdminClient({"bootstrap.servers": broker.plain})
    admin.create_topics([NewTopic(signals, 1, 1)])[signals].result(10)
    broker.allow(user, [("topic", "literal", signals, "describe")])
    be("new")

    def found():
        capsys.readouterr()
        place.run("doctor", "--json")
        rows = json.loads(capsys.readouterr().out)
        return {row["what"] for row in rows if "may not" in row["what"]}

    before = found()
    whose = kafka_rights(place.prefix)
    broker.allow(user, [right for role, right in whose if role == "relay"])
    after = found()
    topics = admin.list_topics(timeout=10).topics

    prefix = place.prefix
    made = [f"{prefix}.{name}" for name in OF_RELAY]
    made.append(f"__debezium-heartbeat.{prefix}")
    start = "the user of kafka.client may not"
    assert {
        f"{start} create {', '.join(sorted((*made, signals)))}",
        f"{start} read {', '.join(sorted((*made, signals)))}",
        f"{start} write {', '.join(sorted(made))}",
        f"{start} describe_configs {', '.join(sorted((*made, signals)))}",
        f"{start} describe groups {prefix}-signals",
    } == before
    assert set() == after
    assert [signals] == [name for name in topics if name.startswith(prefix)]


def test_no_client_goes_on_in_plaintext(place, broker, capsys):
    """
    Where TLS is asked for and the listener has none, every command says so by exit 3.
    """
    place.prepare()
    place.confirm()
    place.stop()
    text = place.config.read_text()
    place.config.write_text(text.replace(broker.login, broker.plain))
    with ThreadPoolExecutor(len(ASKING)) as threads:
        codes = dict(
            zip(
                ASKING,
                threads.map(lambda words: place.run(*words), ASKING),
                strict=True,
            )
        )
    capsys.readouterr()
    place.run("status", "--json")
    [sink] = json.loads(capsys.readouterr().out)["sinks"]

    # Some show what they know of the other parts all the same.
    assert dict.fromkeys(ASKING, 3) == codes | {
        words: 3 for words in SHOWING if codes[words] == 1
    }
    assert "Kafka" in sink["error"]


def test_engine_and_python_read_by_each_kind_of_certificate(lake, broker, unique):
    """
    Authorities in the file and named by it, keys as PEM and in a store: both read.

    Where TLS is asked for and the listener has none, the engine does not read either.
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
