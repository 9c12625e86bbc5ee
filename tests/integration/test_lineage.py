"""OpenLineage events sent to a real receiver: they are valid and delay nothing."""

import threading

import pytest

from support.copying import replace
from support.lineage_receiver import lineage_receiver, mistakes_of
from support.sink_place import SinkPlace
from support.waiting import CLOCK, stretched, until
from towpath.schemas.lineage import (
    CLOSE_S,
    NO_REPORTER,
    BackgroundReporter,
    Dataset,
    DatasetName,
    Field,
    Job,
    JobDatasets,
    RunState,
    start_lineage,
)
from towpath.schemas.openlineage_events import NAMESPACE, sender
from towpath.settings import load
from towpath.sinks.engine.lineage import SinkDatasets

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PATIENCE_S = stretched(300.0)
TABLE = DatasetName("postgres://db:5432", "shop.orders")
TOPIC = DatasetName("kafka://broker:9092", "towpath.orders")
FIELDS = (Field("id", "bigint"),)
DATASETS = JobDatasets(
    [Dataset(TABLE, FIELDS)], [Dataset(TOPIC, FIELDS, {"id": [(TABLE, "id")]})]
)
JOB = Job("towpath.relay", "RELAY", lambda: DATASETS)
SNAPSHOT = (
    "insert into towpath.signal (id, type, data)"
    """ values ('s', 'execute-snapshot', '{"data-collections": ["shop.lines"]}')"""
)


@pytest.fixture
def receiver(monkeypatch):
    """Provide a receiver, and set the environment variables that select it."""
    with lineage_receiver() as made:
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", made.url)
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
        yield made


@pytest.fixture
def problems():
    """Provide the list of reasons why events were not sent."""
    return []


@pytest.fixture
def reporter(receiver, problems):  # noqa: ARG001 - sets the environment
    """Provide a reporter that reports each open run again five times per second."""
    made = BackgroundReporter(sender({}), problems.append, running_every_s=0.2)
    yield made
    made.close()


def test_a_run_is_reported_from_its_start_to_its_failure(receiver, reporter):
    """
    Each event conforms to OpenLineage's schemas; the last has the column lineage.
    """
    run = reporter.start(JOB)
    receiver.wait_for(JOB.name, "RUNNING")
    run.end("the slot is lost")
    run.end()
    reporter.close()
    first, last = receiver.events[0], receiver.events[-1]
    output = last["outputs"][0]
    origin = output["facets"]["columnLineage"]["fields"]["id"]["inputFields"][0]

    assert [] == [
        mistake for event in receiver.events for mistake in mistakes_of(event)
    ]
    assert ["START", "RUNNING", "FAIL"] == receiver.states(JOB.name)
    assert 1 == len({event["run"]["runId"] for event in receiver.events})
    assert "towpath" == first["job"]["namespace"]
    assert TABLE == (origin["namespace"], origin["name"])
    assert "the slot is lost" == last["run"]["facets"]["errorMessage"]["message"]
    assert {"/api/v1/lineage"} == receiver.paths


def test_the_validation_finds_mistakes(receiver, reporter):
    """
    The check that the other tests use reports wrong and missing fields.
    """
    reporter.start(JOB).end()
    reporter.close()
    event = receiver.events[0]
    schema = event["outputs"][0]["facets"]["schema"]

    assert [] == mistakes_of(event)
    assert mistakes_of(event | {"eventType": "BEGUN"})
    assert mistakes_of(event | {"run": {"runId": "seven"}})
    assert mistakes_of({k: v for k, v in event.items() if k != "job"})
    del schema["_producer"]
    assert mistakes_of(event)


def test_a_receiver_that_refuses_events_delays_nothing(receiver, reporter, problems):
    """
    The reason is reported once; later, the run that is still open is reported.
    """
    receiver.status = 500
    began_s = CLOCK.monotonic_s()
    run = reporter.start(JOB)
    for _ in range(1000):
        reporter.start(JOB).end()
    took_s = CLOCK.monotonic_s() - began_s
    until(lambda: reporter.lost > 1, "events are lost")
    receiver.status = 201
    receiver.wait_for(JOB.name, "RUNNING")
    run.end()

    assert took_s < 1.0
    assert 1 == len(problems)


def test_a_run_whose_end_is_lost_is_not_reported_as_running():
    """
    While the receiver does not respond, the queue fills up, so the end is dropped.
    """
    sent, proceed = [], threading.Event()

    def send(event, _datasets):
        sent.append(event)
        proceed.wait()

    problems = []
    made = BackgroundReporter(send, problems.append, running_every_s=0.05)
    ended = made.start(JOB)
    until(lambda: sent, "the receiver has the start")
    made.start(replace(JOB, name="running"))
    while not problems:
        made.start(JOB).end()
    ended.end()
    proceed.set()
    until(lambda: running_jobs(sent), "a run is reported as running")
    made.close()

    assert {"running"} == running_jobs(sent)


def running_jobs(events):
    """Return the jobs whose runs are reported as running."""
    return {event.job.name for event in events if event.state is RunState.RUNNING}


def test_a_stop_waits_for_a_silent_receiver_only_briefly(
    reporter, receiver, monkeypatch
):
    """
    A process that is stopping drops its last events rather than waiting longer.
    """
    monkeypatch.setattr(receiver, "paths", _Stuck())
    reporter.start(JOB)
    began_s = CLOCK.monotonic_s()
    reporter.close()
    took_s = CLOCK.monotonic_s() - began_s
    receiver.paths.proceed.set()

    assert CLOSE_S - 0.1 < took_s < CLOSE_S + stretched(2.0)


def test_a_failed_dataset_lookup_does_not_stop_reporting(receiver, reporter, problems):
    """
    Datasets are looked up through a broker, which may be unreachable.
    """

    def fail():
        message = "Kafka cannot be reached"
        raise OSError(message)

    reporter.start(Job("unreachable", "SINK", fail))
    reporter.start(JOB)
    receiver.wait_for(JOB.name, "START")

    assert "Kafka cannot be reached" in problems[0]
    assert [] == receiver.of("unreachable")


@pytest.mark.parametrize(
    ("environ", "file", "is_on"),
    [
        ({}, False, False),
        ({"OPENLINEAGE_URL": ""}, False, False),
        ({"OPENLINEAGE_URL": "http://127.0.0.1:1"}, False, True),
        ({"OPENLINEAGE__TRANSPORT__TYPE": "console"}, False, True),
        ({"OPENLINEAGE_URL": "http://x", "OPENLINEAGE_DISABLED": "True"}, True, False),
        ({}, True, True),
    ],
    ids=str,
)
def test_reporting_is_off_unless_a_receiver_is_configured(
    tmp_path, monkeypatch, environ, file, is_on
):
    """
    OpenLineage's own environment variables or configuration file turn it on.
    """
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    if file:
        (tmp_path / "openlineage.yml").write_text("transport: {type: noop}\n")
    reporter = start_lineage(environ, [tmp_path], pytest.fail)
    reporter.close()

    assert is_on == (reporter is not NO_REPORTER)


@pytest.fixture
def rig(stack, database, unique, tmp_path):
    """Provide a source with its relay, and a cache sink."""
    stack.up("kafka", "redis")
    found = SinkPlace(stack, database, unique, tmp_path)
    yield found
    found.close()


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_relay_snapshot_and_sink_report_their_runs(receiver, rig, monkeypatch):
    """
    Column lineage runs from table to topic to cache; a stop completes each run.
    """
    monkeypatch.setenv(NAMESPACE, "shop")
    prefix = rig.prefix
    names = f"{prefix}.relay", f"{prefix}.snapshot.shop.lines", f"{prefix}.sink.plain"
    rig.prepare()
    with rig.driver():
        rig.execute(SNAPSHOT)
        receiver.wait_for(names[1], "COMPLETE")
        receiver.wait_for(names[2], "START", PATIENCE_S)
        rig.catch_up("plain")
        relay, sink = (datasets_of(receiver.of(name)[-1]) for name in names[::2])
        now = SinkDatasets(load(rig.config, {}), sink_of(rig)).read()
    rig.stop()
    events = [event for name in names for event in receiver.of(name)]
    topic = f"{prefix}.shop.lines"

    assert [] == [mistake for event in events for mistake in mistakes_of(event)]
    assert {"shop"} == {event["job"]["namespace"] for event in events}
    # A run that takes longer also reports that it is running.
    states = [receiver.states(name) for name in names]
    ends = [[state for state in found if state != "RUNNING"] for found in states]
    assert [["START", "COMPLETE"]] * 3 == ends
    assert ({"shop.lines"}, topic) == (tables(receiver.of(names[1])[-1]), topic)
    assert relay
    assert sink
    assert {topic} == {each.name.name for each in now.inputs}
    (cached,) = now.outputs
    assert (f"{prefix}:plain", "secret") == (cached.name.name, cached.fields[-1].name)
    assert [(now.inputs[0].name, "note")] == list(cached.origins["note"])


def sink_of(rig):
    """Return the sink's settings."""
    return load(rig.config, {}).sink_named("plain")


def datasets_of(event):
    """Return the names of an event's inputs and outputs."""
    return [each["name"] for each in (*event["inputs"], *event["outputs"])]


def tables(event):
    """Return the tables that an event reads, without the name of their database."""
    return {each["name"].partition(".")[2] for each in event["inputs"]}


class _Stuck(set):
    """A set of paths whose ``add`` blocks until the test continues."""

    def __init__(self):
        super().__init__()
        self.proceed = threading.Event()

    def add(self, _path):
        """Block, like a receiver that does not respond."""
        self.proceed.wait(60)
