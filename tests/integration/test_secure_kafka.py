"""Kafka behind TLS and a login: every client, of Python's and of the engine's."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import NewTopic
from py4j.protocol import Py4JJavaError

from support.secure_kafka import PASSWORD, SecureKafka, toml
from support.sink_place import SinkPlace
from towpath.deploy.cli import app
from towpath.settings import Kafka, spark_options
from towpath.sinks import clients
from towpath.sinks.cache.client import connect

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(240)]


class SecurePlace(SinkPlace):
    """A source, its relay and a driver whose broker wants a login."""

    def __init__(self, stack, broker, dsn, prefix, folder):
        super().__init__(stack, dsn, prefix, folder)
        self.kafka = broker.login
        self.client = toml(broker.client())

    def configure(self, sections="", **options):
        """Write the configuration, with an engine that logs all that it does."""
        events = self.folder / "events"
        events.mkdir()
        logged = (
            "[spark.settings]",
            '"spark.eventLog.enabled" = "true"',
            f'"spark.eventLog.dir" = "{events.as_uri()}"',
        )
        super().configure("\n".join((sections, *logged)), **options)

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
    """Lend a broker that wants TLS and a login."""
    lent = SecureKafka(tmp_path_factory.mktemp("kafka"))
    yield lent
    lent.close()


@pytest.fixture
def place(stack, broker, database, unique, tmp_path):
    """Lend a source whose configuration leads to the listener with the login."""
    stack.up("redis")
    found = SecurePlace(stack, broker, database, unique, tmp_path)
    yield found
    found.close()


# Each speaks to Kafka; none writes anything.
ASKING = (
    ("sink", "list"),
    ("sink", "check"),
    ("verify", "plain"),
    ("dead-letters", "list", "--sink", "plain"),
    ("relay", "status"),
    ("relay", "state", "show"),
    ("relay", "state", "export"),
    ("relay", "state", "repair", "--dry-run"),
    ("doctor",),
    ("status",),
)
# These say by 1 that there is something to look at.
FINDING = {("dead-letters", "list", "--sink", "plain"), ("doctor",), ("status",)}


def files_with(folder, text):
    """Name the files below a folder that hold a text, but for the configuration."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".toml" and text in path.read_bytes()
    ]


def test_every_client_goes_in_by_tls_and_login(place, capsys):
    """
    Relay, driver, engine, executors and every command work behind SASL_SSL.

    The login's password is in no log, no file of the state folder and no event log.
    """
    place.prepare()
    # A sink is declared only if a relay follows the slot.
    place.confirm()
    with place.driver():
        assert 0 == place.add("extra"), capsys.readouterr()
        assert 0 == place.towpath("refill", "plain")
        place.catch_up("plain")
        place.lose_a_row("plain")
        assert 0 == place.run("verify", "plain", "--repair"), capsys.readouterr()
        lsn = place.one("select pg_current_wal_lsn()::text")
        assert 0 == place.run("wait", "--lsn", lsn, "--sink", "plain")
        codes = {words: place.run(*words) for words in ASKING}
        shown = capsys.readouterr()
        place.run("status", "--json")
        sinks = json.loads(capsys.readouterr().out)["sinks"]
        assert 0 == place.towpath("drop", "extra", "--yes")

    assert dict.fromkeys(ASKING, 0) == {
        words: 0 if words in FINDING else code for words, code in codes.items()
    }, shown
    assert set(codes.values()) <= {0, 1}
    assert [None, None] == [sink["error"] for sink in sinks]
    log = (place.folder / "driver.log").read_text()
    assert "written by the executors" in log
    assert [] == [sink for sink in sinks if sink["lag_records"] is None]
    assert place.plain() == place.held("plain")
    assert [] == files_with(place.folder, PASSWORD[:8].encode())


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

    # It shows what it knows of the other parts all the same.
    assert dict.fromkeys(ASKING, 3) == codes | {("status",): 3}
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
    asked = clients.admin(cases[0]).create_topics([NewTopic(unique, 1, 1)])
    asked[unique].result(10)

    def count(kafka):
        source = session.read.format("kafka").options(**spark_options(kafka))
        return source.option("subscribe", unique).load().count()

    for kafka in cases:
        producer = clients.producer(kafka)
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
