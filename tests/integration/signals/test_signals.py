"""Signals through every channel, and their effects, with a real relay process."""

import json

import pytest
from confluent_kafka import Consumer, TopicPartition

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ROWS = 1_000
EVERYTHING = {"data-collections": ["s.a"]}


def test_every_channel_leads_to_a_snapshot(rig):
    """
    The two signal tables, Kafka and HTTP each start a snapshot.

    Each signal is answered.
    """
    rig.start()
    rig.signal("table", data_collections=["s.a"])
    rig.insert_debezium_signal("bare", "execute-snapshot", json.dumps(EVERYTHING))
    document = {"id": "kafka", "type": "execute-snapshot", "data": EVERYTHING}
    rig.produce_signal(json.dumps(document).encode())
    status, found = rig.call_admin("POST", "/signals", {**document, "id": "http"})
    names = ("table", "bare", "kafka", "http")
    rows = [rig.wait_for_answer(name)["rows"] for name in names]
    reads = rig.reads()

    assert (202, {"id": "http"}, [ROWS] * 4) == (status, found, rows)
    assert dict.fromkeys(names, ROWS) == {
        name: sum(1 for snapshot, _ in reads if snapshot == name) for name in names
    }
    assert {1} == set(reads.values())


def test_each_answer_is_published_on_the_notifications_topic(rig):
    """
    ACCEPTED is followed by notifications like Debezium's, with the signal's id (A33).
    """
    rig.start()
    rig.insert_debezium_signal("bare", "execute-snapshot", json.dumps(EVERYTHING))
    rig.wait_for_answer("bare")
    rig.wait_for(lambda: kinds(rig)[-1:] == [("Signal", "COMPLETED")])
    found = kinds(rig)
    progress = rig.wait_for_notification("bare", "IN_PROGRESS")["additional_data"]
    scanned = rig.wait_for_notification("bare", "TABLE_SCAN_COMPLETED")

    assert ("Signal", "ACCEPTED") == found[0]
    assert ("Incremental Snapshot", "STARTED") == found[1]
    assert ("Incremental Snapshot", "COMPLETED") in found
    assert (str(ROWS), "SUCCEEDED") == (
        scanned["additional_data"]["total_rows_scanned"],
        scanned["additional_data"]["status"],
    )
    assert (str(ROWS), "s.a") == (
        progress["maximum_key"],
        progress["current_collection_in_progress"],
    )
    assert 0 < int(progress["last_processed_key"]) <= ROWS


def kinds(rig) -> list[tuple[str, str]]:
    """Return the aggregate type and the type of each notification."""
    return [(each["aggregate_type"], each["type"]) for each in rig.notifications()]


def test_invalid_signals_are_rejected_and_the_stream_continues(rig):
    """
    Each signal is answered with the reason.

    The stream continues past all of them (A29, A40).
    """
    rig.start()
    rig.execute("insert into towpath.signal values ('json', 'execute-snapshot', '{oo')")
    rig.signal("type", kind="dance")
    rig.signal("table", data_collections=["s.none"])
    rig.signal("target", data_collections=["s.a"], target="nobody")
    rig.signal("column", data_collections=["s.a"], surrogate_key="missing")
    rig.signal("kind", data_collections=["s.a"], type="sometimes")
    rig.signal("keys", data_collections=["s.a"], type="blocking", keys=[[1]])
    rig.signal(
        "filter",
        data_collections=["s.a"],
        additional_conditions=[{"data-collection": "s.typo", "filter": "v = 1"}],
    )
    rig.signal("stop", kind="stop-snapshot", data_collections=["s.a"])
    rig.signal("resume", kind="resume-snapshot", snapshot_id="nothing")
    expected = {
        "json": "not JSON",
        "type": "unknown signal type 'dance'",
        "table": "s.none: not a captured table",
        "target": "'nobody' is not a sink",
        "column": "missing",
        "kind": "'sometimes' is not one of",
        "keys": "a blocking snapshot takes none",
        "filter": "matches no table to read",
        "stop": "it has no open snapshot",
        "resume": "there is no such snapshot",
    }
    reasons = {
        name: rig.wait_for_answer(name, "rejected")["reason"] for name in expected
    }
    rig.execute("insert into s.a values (0, 0, 'later')")
    rig.confirm()

    assert [] == [name for name, part in expected.items() if part not in reasons[name]]


def test_malformed_signals_are_published_as_rejected(rig):
    """
    A missing, overlong or reused id, and garbage in Kafka, do not stop the relay.
    """
    rig.start()
    rig.signal("used", kind="log", message="first")
    rig.wait_for_answer("used")
    rig.insert_debezium_signal(None, "log", "{}")
    rig.insert_debezium_signal("x" * 70, "log", "{}")
    rig.insert_debezium_signal("used", "log", '{"message": "second"}')
    rig.produce_signal(b"no signal")
    rig.produce_signal(b'{"type": "log", "data": {"message": "others"}}', key="other")
    rig.produce_signal(b'{"type": "log", "data": "{}"}')
    null = rig.wait_for_notification("", "REJECTED")
    long = rig.wait_for_notification("x" * 70, "REJECTED")
    used = rig.wait_for_notification("used", "REJECTED")
    ours = (
        "select id from towpath.signal where id like 'kafka-%%' and status is not null"
    )
    rig.wait_for(lambda: bool(rig.execute(ours)))
    garbage = [
        each
        for each in rig.notifications()
        if "not JSON" in each["additional_data"].get("reason", "")
    ]
    rig.confirm()

    assert ["has no id", "has 70 characters", "was used by an earlier signal"] == [
        part
        for part, each in (
            ("has no id", null),
            ("has 70 characters", long),
            ("was used by an earlier signal", used),
        )
        if part in each["additional_data"]["reason"]
    ]
    assert [f"{rig.signal_topic}[0]@0"] == [
        json.loads(each["additional_data"]["detail"])["source"] for each in garbage
    ]
    assert [("used",), (generated_id(rig, ours),)] == rig.execute(
        "select id from towpath.signal order by id desc"
    )


def generated_id(rig, statement: str) -> str:
    """Return the id that the relay gave to a signal without one."""
    [(signal_id,)] = rig.execute(statement)
    return signal_id


def test_offsets_are_committed_only_after_signals_are_durable(rig):
    """
    A relay that is killed repeats no signal and loses none.
    """
    document = {"type": "execute-snapshot", "data": {"data-collections": ["s.b"]}}
    rig.start()
    rig.produce_signal(json.dumps({**document, "id": "first"}).encode())
    rig.wait_for_answer("first")
    rig.kill()
    rig.produce_signal(json.dumps({**document, "id": "second"}).encode())
    rig.start()
    rig.wait_for_answer("second")
    consumer = Consumer(
        {"bootstrap.servers": rig.kafka, "group.id": f"{rig.prefix}-signals"}
    )
    partition = TopicPartition(rig.signal_topic, 0)
    try:
        rig.wait_for(lambda: consumer.committed([partition], timeout=10)[0].offset == 2)
    finally:
        consumer.close()
    reads = rig.reads("s.b")

    assert {("first", ROWS), ("second", ROWS)} == {
        (name, sum(n for (snapshot, _), n in reads.items() if snapshot == name))
        for name in ("first", "second")
    }


def test_a_paused_snapshot_reads_nothing_until_it_is_resumed(rig):
    """
    It is still paused after a restart, and later continues without a gap (A15).
    """
    rig.start()
    rig.signal("s1", data_collections=["s.a"], max_rows_per_second=200)
    rig.wait_for_rows("s1", 100)
    rig.signal("p1", kind="pause-snapshot")
    paused = rig.wait_for_answer("p1")
    rig.wait_for_state("s1", "paused")
    # A kill before the broker has this notification would lose it.
    rig.wait_for_notification("s1", "PAUSED")
    rig.kill()
    rig.start()
    # A log signal is answered after everything that the relay does at startup.
    rig.signal("l1", kind="log")
    rig.wait_for_answer("l1")
    state, rows = rig.table("s1")
    rig.signal("r1", kind="resume-snapshot", snapshot_id="s1")
    resumed = rig.wait_for_answer("r1")
    detail = rig.wait_for_answer("s1")
    reads = rig.reads()

    assert (["s.a"], ["s.a"], "paused") == (paused["paused"], resumed["resumed"], state)
    assert 100 <= rows < ROWS
    assert (ROWS, set(range(1, ROWS + 1))) == (
        detail["rows"],
        {key for _, key in reads},
    )
    rig.wait_for_notification("s1", "RESUMED")
    answered = {record["signal_id"] for record in rig.logged("signal answered")}
    assert {"l1", "r1"} == answered, "p1 was answered before the kill"


def test_a_stopped_snapshot_can_be_resumed_from_its_last_key(rig):
    """
    Resumed by id, it continues after the delivered rows, and completes.
    """
    rig.start()
    rig.signal("s1", data_collections=["s.a"], max_rows_per_second=400)
    rig.wait_for_rows("s1", 200)
    rig.signal("x1", kind="stop-snapshot", data_collections=["s.a", "s.b"])
    stopped = rig.wait_for_answer("x1")
    rig.wait_for_answer("s1", "failed")
    before = rig.table("s1")
    rig.signal("r1", kind="resume-snapshot", snapshot_id="s1")
    rig.wait_for_answer("r1")
    rig.wait_for_answer("s1")
    reads = rig.reads()
    twice = sum(1 for count in reads.values() if count > 1)

    assert (["s.a"], {"s.b"}) == (stopped["stopped"], set(stopped["refused"]))
    assert "stopped" == before[0]
    assert set(range(1, ROWS + 1)) == {key for _, key in reads}
    assert twice <= 300


def test_signals_are_carried_out_in_commit_order(rig):
    """
    A table listed twice in a signal is read once; later signals read it again (A11).
    """
    rig.start()
    with rig.connection.transaction():
        rig.signal("one", data_collections=["s.a", r"s\.a", "s.a"])
        rig.signal("two", data_collections=["s.a"])
        rig.signal("all", data_collections=[r"s\..*"])
    details = [rig.wait_for_answer(name)["rows"] for name in ("one", "two", "all")]
    completed = rig.execute(
        "select snapshot_id, completed_at from towpath.snapshot"
        " where collection = 's.a' order by completed_at"
    )

    assert [ROWS, ROWS, 2 * ROWS] == details
    assert ["one", "two", "all"] == [name for name, _ in completed]


def test_names_filters_and_keys_choose_the_rows_to_read(rig):
    """
    Quoted names, a filter with OR and listed keys work; only the unknown table fails.
    """
    rig.start()
    condition = {"data-collection": '"s"."a"', "filter": "id = 7 or id = 201"}
    rig.signal("some", data_collections=['"s"."a"'], additional_conditions=[condition])
    rig.signal("keys", data_collections=["s.a"], keys=[["8"], [9]])
    rig.signal("both", data_collections=["s.none", "s.b"])
    rig.wait_for_answer("some")
    rig.wait_for_answer("keys")
    both = rig.wait_for_answer("both", "failed")

    assert {("some", 7), ("some", 201), ("keys", 8), ("keys", 9)} == set(rig.reads())
    assert ("completed", ROWS, "failed") == (
        both["tables"]["s.b"]["state"],
        both["tables"]["s.b"]["rows"],
        both["tables"]["s.none"]["state"],
    )


def test_the_admin_port_reports_snapshots_and_refuses_bad_signals(rig):
    """
    The port shows snapshots and signals.

    Used ids get 409, unknown types 400, unknown ids 404.
    """
    rig.start()
    rig.signal("s1", data_collections=["s.a"])
    rig.wait_for_answer("s1")
    [table] = rig.call_admin("GET", "/snapshots/s1")[1]
    everything = rig.call_admin("GET", "/snapshots")[1]
    signal = rig.call_admin("GET", "/signals/s1")[1]
    log = {"id": "s1", "type": "log"}

    assert ("s.a", "completed", ROWS) == (
        table["collection"],
        table["state"],
        table["rows"],
    )
    assert ([table], "completed") == (everything, signal["status"])
    assert (409, 400, 404) == (
        rig.call_admin("POST", "/signals", log)[0],
        rig.call_admin("POST", "/signals", {"id": "s2", "type": "dance"})[0],
        rig.call_admin("GET", "/signals/s2")[0],
    )


def test_all_snapshots_are_paused_and_resumed_together(rig):
    """
    Snapshots of tables and of listed keys run concurrently; one signal addresses both.
    """
    rig.start()
    keys = [[key] for key in range(1, 501)]
    rig.signal("s1", data_collections=["s.a"], max_rows_per_second=200)
    rig.signal("k1", data_collections=["s.b"], keys=keys, max_rows_per_second=100)
    rig.wait_for_rows("s1", 100)
    rig.wait_for(lambda: rig.table("k1", "s.b")[1] >= 100)
    rig.signal("p1", kind="pause-snapshot")
    rig.wait_for_answer("p1")
    rig.wait_for_state("s1", "paused")
    rig.wait_for(lambda: rig.table("k1", "s.b")[0] == "paused")
    rig.signal("r1", kind="resume-snapshot")
    resumed = rig.wait_for_answer("r1")["resumed"]
    rows = [rig.wait_for_answer(name)["rows"] for name in ("s1", "k1")]

    assert ({"s.a", "s.b"}, [ROWS, 500]) == (set(resumed), rows)


def test_a_blocking_snapshot_reads_the_rows_of_its_select(rig):
    """
    The snapshot is announced like Debezium's blocking snapshots (A38).
    """
    rig.start()
    rig.signal(
        "s1",
        data_collections=['"s"."a"'],
        type="BLOCKING",
        additional_conditions=[
            {"data-collection": "s.a", "filter": "select * from s.a where id < 251"}
        ],
    )
    detail = rig.wait_for_answer("s1")
    rig.execute("insert into s.a values (0, 0, 'later')")
    rig.confirm()
    found = rig.wait_for_notification("s1", "STARTED")

    assert (250, set(range(1, 251))) == (detail["rows"], {k for _, k in rig.reads()})
    assert "Initial Snapshot" == found["aggregate_type"]
