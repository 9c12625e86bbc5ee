"""The console of a running platform: pages, documents, and a relay that is killed."""

import json

import pytest
import requests

from support.console import TOKEN, console_platform, mask_notes
from support.disaster import PATIENCE_S
from support.waiting import until
from towpath.deploy.console.messages import HIDDEN
from towpath.deploy.local import ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PAGES = (
    *("/", "/source", "/sinks", "/verify", "/dead-letters", "/messages", "/trace"),
    "/doctor",
)


@pytest.fixture(scope="module")
def console(stack, tmp_path_factory):
    """Provide the console of a platform with a cache, while an application writes."""
    sinks = f"[sinks]\nmetrics_ports = {{ serving = {ports.any_free()} }}\n"
    folder = tmp_path_factory.mktemp("console")
    with console_platform(stack, folder, relay=sinks) as served:
        yield served


def topic_of(console):
    """Return the topic of the orders."""
    return console.platform.topic("shop.orders")


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_complete_without_javascript(console, page):
    """
    Each page has one top-level heading, and is marked as current in the navigation.
    """
    response = console.get(page)

    assert (200, 1, 1) == (
        response.status_code,
        response.text.count("<h1>"),
        response.text.count('aria-current="page"'),
    )


def test_the_topology_shows_the_rate_of_every_flow(console):
    """
    While an application writes, each flow has a rate, and no part is red.
    """
    until(
        lambda: all(flow["rate"] for flow in console.json("/api/topology")["flows"]),
        "each flow has a rate",
        timeout_s=PATIENCE_S,
    )
    found = console.json("/api/topology")
    shown = console.get("/").text

    assert ["source", "slot", "relay", "topics", "sink-cache"] == [
        part["id"] for part in found["parts"]
    ]
    assert [] == [part for part in found["parts"] if part["state"] == "bad"]
    assert all(f'data-part="{part["id"]}"' in shown for part in found["parts"])


def test_samples_have_the_values_of_the_status(console):
    """
    A name that the status lacks has no values.
    """
    until(
        lambda: len(console.json("/api/samples", names="slot.lag_bytes")["at"]) > 1,
        "there are two samples",
        timeout_s=PATIENCE_S,
    )
    names = "slot.retained_bytes,sink.cache.records,nothing"
    found = console.json("/api/samples", names=names)
    records = found["values"]["sink.cache.records"]

    assert (True, True) == (records[-1] > 0, None not in records)
    assert {None} == set(found["values"]["nothing"])


def test_the_histogram_of_a_sink_shows_its_drivers_metrics(console):
    """
    The bars add up to the number of batches; the page shows the histogram, too.
    """
    until(
        lambda: console.json("/api/histograms")["histograms"],
        "the driver's metrics have been read",
        timeout_s=PATIENCE_S,
    )
    [found] = [
        one
        for one in console.json("/api/histograms")["histograms"]
        if one["title"] == "Batch duration"
    ]
    shown = console.get("/sinks").text

    assert ("cache", True) == (found["sink"], found["values"] > 0)
    assert found["values"] == sum(bar["values"] for bar in found["bars"])
    assert 'aria-label="Batch duration of cache"' in shown


def test_the_snapshot_that_filled_the_sink_is_listed(console):
    """
    The document has the snapshot's state; the page shows it with the captured table.
    """
    [row, *_] = console.json("/api/snapshots")["tables"]
    shown = console.get("/source").text

    assert ("shop.orders", "completed") == (row["collection"], row["state"])
    assert ("shop.orders</a>" in shown, "completed" in shown) == (True, True)


def test_a_topic_is_searched_by_key_offset_and_time(console):
    """
    Each search finds the same record; newer records come first.
    """
    topic = topic_of(console)
    newest = console.json("/api/messages", topic=topic, limit="5")["records"]
    one = newest[0]
    at = {"partition": str(one["partition"]), "offset": str(one["offset"])}
    by_offset = console.json("/api/messages", topic=topic, limit="1", **at)
    key = str(json.loads(one["key"])["id"])
    by_key = console.json("/api/messages", topic=topic, key=key)["records"]
    by_time = console.json("/api/messages", topic=topic, since=one["at"])["records"]

    assert newest == sorted(newest, key=lambda r: r["at"], reverse=True)
    assert [one] == by_offset["records"]
    assert {one["key"]} == {record["key"] for record in by_key}
    assert all(record["at"] >= one["at"] for record in by_time)


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ({"topic": "__consumer_offsets"}, 422, "no topic __consumer_offsets"),
        ({"topic": "x", "offset": "1"}, 422, "An offset needs a partition"),
        ({"topic": "x", "limit": "1000"}, 422, "limit"),
        ({"topic": "x", "since": "yesterday"}, 422, "since"),
    ],
)
def test_an_invalid_search_gives_one_clear_error(console, query, status, text):
    """
    Topics that do not belong to the platform and values beyond limits are refused.
    """
    document = console.get("/api/messages", **query)
    page = console.get("/messages", **query)

    assert (status, True) == (document.status_code, text in document.text)
    assert (status, True) == (page.status_code, "<h1>" in page.text)


def test_a_row_is_traced_to_the_sink(console):
    """
    The document has the row's records and the sink's state; the page shows the sink.
    """
    find = {"table": "shop.orders", "key": "300"}
    until(
        lambda: console.json("/api/trace", **find)["sinks"][0]["state"] == "current",
        "the sink stores the newest version",
        timeout_s=PATIENCE_S,
    )
    found = console.json("/api/trace", **find)
    shown = console.get("/trace", **find).text

    assert (True, True) == (found["in_source"], bool(found["records"]))
    assert 'data-hop="cache"' in shown
    assert 422 == console.get("/api/trace", table="shop.orders").status_code


def test_the_doctor_shows_its_findings_with_remedies(console):
    """
    Once the examination is requested, the page shows the remedy of every finding.
    """
    found = console.json("/api/findings")["findings"]

    def shown() -> int:
        return console.get("/doctor", examined="yes").text.count("Cure:")

    # Each request repeats the examination, and findings may change in between.
    until(
        lambda: len(console.json("/api/findings")["findings"]) == shown(),
        "the page has as many findings as the document",
        timeout_s=PATIENCE_S,
    )
    assert found
    assert all(one["cure"] for one in found)


def test_the_api_describes_each_of_its_routes(console):
    """
    The OpenAPI document names every route under /api.
    """
    paths = {path for path in console.json("/openapi.json")["paths"] if "/api" in path}

    names = (
        "status topology samples histograms snapshots findings topics messages trace"
    )
    dead_letters = "dead-letters dead-letters/replay dead-letters/discard"
    changes = "snapshots/pause snapshots/resume snapshots/stop"
    expected = [*names.split(), *dead_letters.split(), *changes.split()]
    expected += ["verification", "sinks/change", "sinks", "sinks/refill", "kills"]
    expected += [
        "sinks/rebuild",
        "sinks/drop",
        *(f"relay/{name}" for name in dead_letters.split()),
    ]
    assert {f"/api/{name}" for name in expected} == paths


def test_messages_hide_the_columns_that_a_route_masks(console):
    """
    The API returns the records, but hides the values of a masked column.
    """
    topic = topic_of(console)
    text = console.platform.config.read_text(encoding="utf-8")
    try:
        mask_notes(console.platform)
        found = console.json("/api/messages", topic=topic, limit="20")
        values = [json.loads(one["value"]) for one in found["records"] if one["value"]]
        notes = {row["note"] for value in values if (row := value.get("after"))}
    finally:
        console.platform.config.write_text(text, encoding="utf-8")

    assert (["note"], {HIDDEN}) == (found["hidden"], notes)


def test_a_killed_relay_is_red_until_it_runs_again(console):
    """
    The page reports that no relay is running; once restarted, the relay is green.
    """
    platform = console.platform

    def relay():
        parts = console.json("/api/topology")["parts"]
        return next(part["state"] for part in parts if part["id"] == "relay")

    def is_reported() -> bool:
        return "no relay is consuming the slot" in console.get("/").text

    platform.kill()
    try:
        # A page shows the newest reading, which may fail for a moment.
        until(is_reported, "the page reports the lost relay", timeout_s=PATIENCE_S)
        shown = relay()
    finally:
        platform.start()
    until(lambda: relay() == "good", "the relay is green", timeout_s=PATIENCE_S)

    assert ("bad", False) == (shown, is_reported())


def test_a_login_is_written_to_the_audit_log_of_the_state_folder(console):
    """
    The log has one line of JSON per event, and never contains the token.
    """
    sent = {"token": TOKEN}
    code = requests.post(f"{console.address}/login", data=sent, timeout=60).status_code
    lines = console.audit_log.read_text(encoding="utf-8").splitlines()

    assert (200, "login") == (code, json.loads(lines[-1])["event"])
    assert TOKEN not in "".join(lines)
