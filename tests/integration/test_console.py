"""The console over a running platform: pages, documents, and a part that is lost."""

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
    """Provide a console over a platform with a cache, while an application writes."""
    sinks = f"[sinks]\nmetrics_ports = {{ serving = {ports.any_free()} }}\n"
    folder = tmp_path_factory.mktemp("console")
    with console_platform(stack, folder, relay=sinks) as served:
        yield served


def topic_of(console):
    """Return the topic of the orders."""
    return console.platform.topic("shop.orders")


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_whole_without_a_script(console, page):
    """
    It has one heading of the first level, and marks itself in the navigation.
    """
    answer = console.get(page)

    assert (200, 1, 1) == (
        answer.status_code,
        answer.text.count("<h1>"),
        answer.text.count('aria-current="page"'),
    )


def test_rates_and_lags_are_on_every_flow_of_the_topology(console):
    """
    While an application writes, each flow has a rate, and nothing is red.
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


def test_samples_are_those_of_the_status(console):
    """
    The plots show the numbers of the document.
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


def test_the_histogram_of_a_sink_is_that_of_its_driver(console):
    """
    Its bars count as many batches as it has; the page has them too.
    """
    until(
        lambda: console.json("/api/histograms")["histograms"],
        "the driver's metrics were read",
        timeout_s=PATIENCE_S,
    )
    [found] = [
        one
        for one in console.json("/api/histograms")["histograms"]
        if one["title"] == "Time of a batch"
    ]
    shown = console.get("/sinks").text

    assert ("cache", True) == (found["sink"], found["values"] > 0)
    assert found["values"] == sum(bar["values"] for bar in found["bars"])
    assert 'aria-label="Time of a batch of cache"' in shown


def test_the_snapshot_that_filled_the_sink_is_listed(console):
    """
    The page has its state and its rows, and names each captured table.
    """
    [row, *_] = console.json("/api/snapshots")["tables"]
    shown = console.get("/source").text

    assert ("shop.orders", "completed") == (row["collection"], row["state"])
    assert ("shop.orders</a>" in shown, "completed" in shown) == (True, True)


def test_a_topic_is_searched_by_key_offset_and_time(console):
    """
    Each way finds the same record; the newest stands first.
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
def test_a_wrong_look_is_one_clear_problem(console, query, status, text):
    """
    Topics that are not the platform's are not shown, and limits hold.
    """
    document = console.get("/api/messages", **query)
    page = console.get("/messages", **query)

    assert (status, True) == (document.status_code, text in document.text)
    assert (status, True) == (page.status_code, "<h1>" in page.text)


def test_a_row_is_traced_to_the_sink(console):
    """
    The page has the row's records, and the sink's state with its position.
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


def test_the_doctor_gives_its_findings_with_cures(console):
    """
    The page asks for the examination, and then has every cure.
    """
    found = console.json("/api/findings")["findings"]

    def shown() -> int:
        return console.get("/doctor", examined="yes").text.count("Cure:")

    # Each request examines again, and a finding may come or go between two of them.
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
    letters = "dead-letters dead-letters/replay dead-letters/discard"
    changes = "snapshots/pause snapshots/resume snapshots/stop"
    expected = [*names.split(), *letters.split(), *changes.split()]
    expected += ["verification", "sinks/change", "sinks", "sinks/refill", "kills"]
    expected += [
        "sinks/rebuild",
        "sinks/drop",
        *(f"relay/{name}" for name in letters.split()),
    ]
    assert {f"/api/{name}" for name in expected} == paths


def test_a_dead_letter_is_shown_with_its_reason_and_hidden_columns(console):
    """
    The record of a parked key is there; a column that a route masks is not.
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


def test_a_killed_relay_is_red_and_returns(console):
    """
    The topology shows the lost part, its sentence, and then its recovery.
    """
    platform = console.platform

    def relay():
        parts = console.json("/api/topology")["parts"]
        return next(part["state"] for part in parts if part["id"] == "relay")

    def is_named() -> bool:
        return "no relay follows the slot" in console.get("/").text

    platform.kill()
    try:
        # A page has the newest reading, which may fail for a moment.
        until(is_named, "the page names the lost relay", timeout_s=PATIENCE_S)
        shown = relay()
    finally:
        platform.start()
    until(lambda: relay() == "good", "the relay is back", timeout_s=PATIENCE_S)

    assert ("bad", False) == (shown, is_named())


def test_a_login_is_written_to_the_audit_log_of_the_state_folder(console):
    """
    The log is a line of JSON for each, and never has the token.
    """
    sent = {"token": TOKEN}
    code = requests.post(f"{console.address}/login", data=sent, timeout=60).status_code
    lines = console.audit_log.read_text(encoding="utf-8").splitlines()

    assert (200, "login") == (code, json.loads(lines[-1])["event"])
    assert TOKEN not in "".join(lines)
