"""Actions of the console on a running platform, and their refusals."""

import json

import pytest
import requests
from confluent_kafka import Producer

from support.console import TOKEN, console_platform
from support.disaster import PATIENCE_S
from support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# A snapshot of the orders takes half a minute, so that it can be paused and stopped.
CHUNKS = "[relay.snapshot]\nchunk_rows = 10\n"
SLOW = {"tables": ["shop.orders"], "max_rows_per_second": 10}

ACTIONS = [
    "/api/snapshots",
    "/api/snapshots/pause",
    "/api/snapshots/resume",
    "/api/snapshots/stop",
    "/api/dead-letters/replay",
    "/api/dead-letters/discard",
    "/api/relay/dead-letters/replay",
    "/api/relay/dead-letters/discard",
]
FORMS = ["/source/snapshots", "/source/snapshots/stop", "/dead-letters/discard"]
BROKEN = """
insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload, headers)
values (gen_random_uuid(), 'parcel', %s, %s, '{}', %s)
"""


@pytest.fixture(scope="module")
def console(stack, tmp_path_factory):
    """Provide the console of a platform whose snapshots read small chunks."""
    folder = tmp_path_factory.mktemp("actions")
    with console_platform(stack, folder, "cache", relay=CHUNKS) as served:
        yield served


def states_of(console, snapshot):
    """Return the states of a snapshot's tables."""
    rows = console.platform.execute(
        "select state from towpath.snapshot where snapshot_id = %s", snapshot
    )
    return {state for (state,) in rows}


def wait_for(console, snapshot, state):
    """Wait until all tables of a snapshot are in the given state."""
    until(
        lambda: states_of(console, snapshot) == {state},
        f"the snapshot {snapshot} is {state}",
        timeout_s=PATIENCE_S,
    )


def done(response):
    """Return the document of a successful action."""
    assert response.ok, response.text
    return response.json()


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_without_a_login_is_refused(console, path):
    """
    A request with a missing or wrong token writes no signal.
    """
    where = f"{console.address}{path}"
    wrong = {"Authorization": "Bearer a-guess-of-this-test"}
    before = console.platform.one("select count(*) from towpath.signal")
    responses = [
        requests.post(where, json={}, timeout=60),
        requests.post(where, json={}, headers=wrong, timeout=60),
    ]

    assert [401, 401] == [response.status_code for response in responses]
    assert before == console.platform.one("select count(*) from towpath.signal")


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize(
    ("token", "origin"),
    [("wrong", None), ("", None), (None, "http://evil.example"), (None, "null")],
)
def test_a_form_from_another_site_is_refused(console, path, token, origin):
    """
    The session cookie is not enough: CSRF token and origin must be the page's own.
    """
    browser = console.browser()
    before = console.platform.one("select count(*) from towpath.signal")
    response = browser.session.post(
        f"{console.address}{path}",
        data={"csrf_token": browser.csrf_token if token is None else token},
        headers={"Origin": origin} if origin else {},
        timeout=60,
    )

    assert (403, True) == (response.status_code, "<h1>Forbidden" in response.text)
    assert before == console.platform.one("select count(*) from towpath.signal")


def test_a_snapshot_is_started_paused_resumed_and_stopped(console):
    """
    Each response has the relay's answer; the audit log has two lines per action.
    """
    started = done(console.post("/api/snapshots", SLOW))
    names = {"names": [started["id"]]}
    wait_for(console, started["id"], "running")
    paused = done(console.post("/api/snapshots/pause", names))
    wait_for(console, started["id"], "paused")
    resumed = done(console.post("/api/snapshots/resume", names))
    wait_for(console, started["id"], "running")
    stopped = done(console.post("/api/snapshots/stop", names))
    wait_for(console, started["id"], "stopped")

    assert ["paused", "resumed", "stopped"] == [
        state
        for state, response in zip(
            ("paused", "resumed", "stopped"), (paused, resumed, stopped), strict=True
        )
        if response["detail"][state] == ["shop.orders"]
    ]
    for event, response in (("start", started), ("stop", stopped)):
        begun, ended = (
            line
            for line in console.audited()
            if line.get("action") == response["action"]
        )
        assert ("token", "begun", f"snapshot {event}") == (
            *(begun["who"], begun["outcome"]),
            ended["event"],
        )
        assert ended["outcome"].startswith(response["id"])


def test_forms_start_and_stop_a_snapshot_and_show_the_outcome(console):
    """
    A snapshot has only the buttons that its state allows.
    """
    browser = console.browser()
    page = browser.send(
        "/source/snapshots", tables="shop.orders\n", max_rows_per_second="10", id="p1"
    )
    wait_for(console, "p1", "running")
    until(
        lambda: 'id="pause-p1"' in browser.get("/source"),
        "the page has the button",
        timeout_s=PATIENCE_S,
    )
    offered = browser.get("/source")
    stopped = browser.send("/source/snapshots/stop", names="p1")
    wait_for(console, "p1", "stopped")

    assert ("snapshot start:</strong> p1" in page.text, True) == (True, page.ok)
    assert (True, False) == ('id="stop-p1"' in offered, 'id="resume-p1"' in offered)
    assert "stopped: shop.orders" in stopped.text
    assert 'id="stop-' not in console.get("/source").text


@pytest.mark.parametrize(
    ("path", "document", "status", "text"),
    [
        ("", {"target": "nowhere"}, 422, "no sink is named"),
        ("", {"tables": ["shop.none"]}, 409, "shop.none"),
        ("", {"where": ["orders"]}, 422, "schema.table=filter"),
        ("", {"keys": ["7"]}, 422, "keys belong to one table"),
        ("", {"max_rows_per_second": 0}, 422, "max_rows_per_second"),
        ("", {"table": "shop.orders"}, 422, "table"),
        ("/stop", {"names": ["nothing"]}, 422, "there is no snapshot nothing"),
    ],
)
def test_an_invalid_request_gets_the_error_of_the_command(
    console, path, document, status, text
):
    """
    The response is a problem document.
    """
    response = console.post(f"/api/snapshots{path}", document)

    assert (status, True) == (response.status_code, text in response.text)
    assert "application/problem+json" == response.headers["Content-Type"]


def test_an_id_can_be_used_only_once(console):
    """
    The second request with an id is refused; the audit log has the refusal.
    """
    request = {"tables": ["shop.orders"], "keys": ["7"], "id": "once"}
    responses = [console.post("/api/snapshots", request) for _ in range(2)]
    last = console.audited()[-1]

    assert [200, 422] == [response.status_code for response in responses]
    assert ("snapshot start", True) == (
        last["event"],
        "refused: signal once already exists" in last["outcome"],
    )
    assert TOKEN not in str(console.audited())


def test_actions_are_refused_while_the_audit_log_cannot_be_written(console):
    """
    A snapshot request fails before its signal is written.
    """
    log = console.audit_log
    # The log may not exist yet if this test runs first.
    log.parent.mkdir(exist_ok=True)
    log.touch()
    kept = log.rename(log.with_suffix(".kept"))
    log.mkdir()
    try:
        request = {"tables": ["shop.orders"], "id": "unlogged"}
        response = console.post("/api/snapshots", request)
    finally:
        log.rmdir()
        kept.rename(log)

    assert (503, set()) == (response.status_code, states_of(console, "unlogged"))
    assert "audit.jsonl" in response.json()["detail"]


def send_unreadable(console, key):
    """Produce an invalid record for an order, which parks the order's key."""
    topic = console.platform.topic("shop.orders")
    found = console.json("/api/messages", topic=topic, limit="1")["records"]
    producer = Producer(
        {"bootstrap.servers": console.platform.kafka, "partitioner": "murmur2_random"}
    )
    position = [("position", found[0]["position"].encode())]
    producer.produce(topic, b"not a change", json.dumps({"id": key}), headers=position)
    producer.flush()
    until(lambda: dead_letters(console, key), f"{key} is parked", timeout_s=PATIENCE_S)
    return dead_letters(console, key)[0]


def dead_letters(console, key):
    """Return the dead letters of one order."""
    return console.json("/api/dead-letters", sink="cache", key=str(key))["dead_letters"]


def test_dead_letters_are_replayed_and_discarded_by_their_keys(console):
    """
    The sink refuses the replayed dead letters again; a discard must be confirmed.
    """
    keys = {"sink": "cache", "keys": ["301", "302"]}
    assert all(send_unreadable(console, key)["is_parked"] for key in (301, 302))
    replayed = done(console.post("/api/dead-letters/replay", keys))
    unconfirmed = console.post("/api/dead-letters/discard", keys)
    kept = len(dead_letters(console, 301))
    discarded = done(
        console.post("/api/dead-letters/discard", keys | {"confirm": True})
    )
    again = console.post("/api/dead-letters/discard", keys | {"confirm": True})

    assert ["refused", "refused"] == [one["state"] for one in replayed["outcomes"]]
    assert (422, True, 1) == (
        unconfirmed.status_code,
        "confirm" in unconfirmed.text,
        kept,
    )
    assert ["done", "done"] == [one["state"] for one in discarded["outcomes"]]
    assert (422, True) == (again.status_code, "has no dead letters" in again.text)


def test_the_page_asks_for_confirmation_before_it_discards(console):
    """
    The first form shows the confirmation prompt; only the second one discards.
    """
    send_unreadable(console, 303)
    browser = console.browser()
    shown = browser.get("/dead-letters")
    chosen = {"sink": "cache", "keys": dead_letters(console, 303)[0]["key"]}
    prompt = browser.send("/dead-letters/discard", **chosen)
    kept = len(dead_letters(console, 303))
    outcome = browser.send("/dead-letters/discard", **chosen, confirm="true")

    assert ('id="discard-chosen-cache"' in shown, 1) == (True, kept)
    assert "Discard the dead letters of cache" in prompt.text
    assert ("dead letters discard:</strong>" in outcome.text, []) == (
        True,
        dead_letters(console, 303),
    )
    assert 'id="discard-' not in console.get("/dead-letters").text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"sink": "cache"}, "name keys to replay, or set all"),
        ({"sink": "cache", "keys": ["7"], "all": True}, "or set all"),
        ({"sink": "cache", "keys": ["none"]}, "the key none has no dead letters"),
        ({"sink": "nowhere", "all": True}, "nowhere"),
        ({"keys": ["7"]}, "sink"),
    ],
)
def test_an_invalid_replay_gives_one_clear_error(console, document, text):
    """
    The response has status 422, and the reason.
    """
    response = console.post("/api/dead-letters/replay", document)

    assert (422, True) == (response.status_code, text in response.text)


def test_parked_aggregates_are_released_while_the_relay_is_stopped(console):
    """
    As with the command, the slot must be free, and each row must be a valid event.
    """
    platform = console.platform
    # The first event creates the topic.
    platform.execute(BROKEN, "fine", "Sent", None)
    for parcel in ("one", "two"):
        platform.execute(BROKEN, parcel, "Broken", '["not an object"]')
        platform.execute(BROKEN, parcel, "Sent", None)
    platform.confirm()
    path = "/api/relay/dead-letters"
    parked = console.json(path)["aggregates"]
    chosen = {"aggregates": [["parcel", "one"], ["parcel", "two"]]}
    running = console.post(f"{path}/replay", chosen | {"drop": True})
    platform.stop()
    try:
        recordless = console.post(f"{path}/replay", chosen)
        unknown = console.post(f"{path}/replay", {"aggregates": [["parcel", "three"]]})
        unconfirmed = console.post(f"{path}/discard", chosen)
        released = done(console.post(f"{path}/replay", chosen | {"drop": True}))
        again = console.post(f"{path}/discard", chosen | {"confirm": True})
    finally:
        platform.start()

    assert [("parcel", "one", 2, 1), ("parcel", "two", 2, 1)] == sorted(
        (
            *(one["aggregate_type"], one["aggregate_id"]),
            *(one["letters"], one["publishable"]),
        )
        for one in parked
    )
    refused = {
        running: (409, "is held by"),
        recordless: (422, "discard it with --drop"),
        unknown: (422, "parcel three is not parked"),
        unconfirmed: (422, "confirm"),
        again: (422, "parcel one is not parked"),
    }
    assert list(refused.values()) == [
        (response.status_code, text if text in response.text else response.text)
        for response, (_, text) in refused.items()
    ]
    assert [(1, 1), (1, 1)] == [
        (one["published"], one["dropped"]) for one in released["released"]
    ]


def test_a_parked_aggregate_is_discarded_through_the_page(console):
    """
    The page asks for confirmation before it discards the aggregate's events.
    """
    platform, browser = console.platform, console.browser()
    platform.execute(BROKEN, "lost", "Broken", '["not an object"]')
    platform.confirm()
    platform.stop()
    try:
        shown = browser.get("/dead-letters")
        chosen = {"aggregates": '["parcel", "lost"]'}
        prompt = browser.send("/dead-letters/relay/discard", **chosen)
        outcome = browser.send("/dead-letters/relay/discard", **chosen, confirm="true")
    finally:
        platform.start()

    assert ("Choose parcel lost" in shown, "parcel lost?" in prompt.text) == (
        True,
        True,
    )
    assert "parcel lost is released: 0 events published, 1 discarded" in outcome.text
    assert [] == console.json("/api/relay/dead-letters")["aggregates"]


def test_a_signal_waits_while_no_relay_is_running(console):
    """
    After ten seconds, the signal is reported as waiting; the next relay executes it.
    """
    request = {"tables": ["shop.orders"], "keys": ["7"], "id": "later"}
    console.platform.stop()
    try:
        response = console.post("/api/snapshots", request)
        last = console.audited()[-1]["outcome"]
    finally:
        console.platform.start()
    wait_for(console, "later", "completed")

    assert (503, True) == (response.status_code, "Retry-After" in response.headers)
    assert all("waits in towpath.signal" in text for text in (response.text, last))
