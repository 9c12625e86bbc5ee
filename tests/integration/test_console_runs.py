"""Long-running actions of the console: verifications, and changes to sinks."""

import json
from contextlib import closing, contextmanager

import pytest
import redis
import requests
from opensearchpy import OpenSearch

from support.console import console_platform, mask_notes, settled_order
from support.disaster import PATIENCE_S
from support.waiting import until
from towpath.deploy.console.messages import HIDDEN

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def console(stack, tmp_path_factory):
    """Provide the console of a platform with two sinks, while an application writes."""
    stack.up("opensearch")
    folder = tmp_path_factory.mktemp("runs")
    with console_platform(stack, folder, "search", "cache") as served:
        yield served


VERIFICATION = "/api/verification"
CHANGE = "/api/sinks/change"
EXTRA = """
[[sink]]
name = "extra"
kind = "cache"
driver = "serving"
url = "{url}"
trigger_ms = 100
[[sink.route]]
topic = "{prefix}.shop.orders"
name = "{prefix}-extra"
"""


def newest(console, path=VERIFICATION):
    """Return the newest run at a path, by default the newest verification."""
    return console.json(path)["run"]


def ended(console, path=VERIFICATION):
    """Wait until the newest run at a path has ended, and return it."""
    until(
        lambda: newest(console, path)["state"] != "running",
        "the run has ended",
        timeout_s=PATIENCE_S,
    )
    return newest(console, path)


def test_a_verification_continues_without_its_browser(console):
    """
    The run reports its steps with their rows; the audit log records its end.
    """
    console.browser().send("/verify", sinks="cache")
    run = ended(console)
    [result] = run["results"]
    begun, accepted, finished = console.audited()[-3:]
    shown = console.get("/verify").text

    assert ("equal", 0, "cache equals the source") == (
        *(result["result"], result["differences"]),
        run["outcome"],
    )
    assert {True} == {step["rows"] > 0 for step in run["steps"]}
    assert ["verify", "verify", "verify ended"] == [
        line["event"] for line in (begun, accepted, finished)
    ]
    assert ("cache equals the source", True) == (
        finished["outcome"],
        'data-state="ended"' in shown,
    )


def test_only_one_verification_runs_at_a_time(console):
    """
    A second verification is refused, and the first one continues.
    """
    with console.platform.writer.paused():
        first, second = (console.post("/api/verification") for _ in range(2))
    run = ended(console)

    assert (202, 409, True) == (
        *(first.status_code, second.status_code),
        "one at a time" in second.text,
    )
    assert "ended" == run["state"]


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"sinks": ["nowhere"]}, "no sink is named nowhere"),
        ({"sinks": ["cache"], "routes": ["none"]}, "none"),
        ({"sinks": ["cache"], "sample": "many"}, "a sample is a number of rows"),
        ({"erase": True}, "--erase needs --repair"),
        ({"sink": "cache"}, "sink"),
    ],
)
def test_an_invalid_verification_does_not_begin(console, document, text):
    """
    The response has the command's error, and no run is added.
    """
    before = newest(console)
    response = console.post("/api/verification", document)

    assert (422, True) == (response.status_code, text in response.text)
    assert before == newest(console)


def test_a_verification_needs_a_login(console):
    """
    A verification reads whole tables, so an anonymous user cannot start one.
    """
    where = f"{console.address}/api/verification"
    browser = console.browser()
    form = browser.session.post(f"{console.address}/verify", data={}, timeout=60)

    assert 401 == requests.post(where, json={}, timeout=60).status_code
    assert 403 == form.status_code
    assert 'id="start-verification"' not in console.get("/verify").text


def test_differences_are_shown_by_key_and_column_and_repaired(console):
    """
    The page shows the different value; a separate run repairs it.
    """
    with console.platform.writer.paused(), settled_order(console.platform) as order:
        order.change_note("not the source's")
        console.post("/api/verification", {"sinks": ["cache"]})
        found = ended(console)["results"][0]["routes"][0]["first"]
        shown = console.browser().get("/verify")
        console.browser().send("/verify", sinks="cache", repair="true")
        repaired = ended(console)["results"][0]

    assert [("changed", "note")] == [(one["kind"], one["column"]) for one in found]
    assert ("not the source&#39;s" in shown, 'id="repair-cache"' in shown) == (
        True,
        True,
    )
    assert ("equal", 1) == (repaired["result"], repaired["routes"][0]["repaired"])


def test_values_of_a_masked_column_are_hidden_in_differences(console):
    """
    The source has the plain value, and after a fault the sink may have it too.
    """
    platform = console.platform
    text = platform.config.read_text(encoding="utf-8")
    try:
        mask_notes(platform)
        with platform.writer.paused():
            console.post("/api/verification", {"sinks": ["cache"]})
            first = ended(console)["results"][0]["routes"][0]["first"]
    finally:
        platform.config.write_text(text, encoding="utf-8")

    assert ({"note"}, {HIDDEN}) == (
        {one["column"] for one in first},
        {one[side] for one in first for side in ("source", "sink")},
    )
    assert "note" in json.dumps(first)


def extra(console):
    """Return the configuration block of an additional sink."""
    platform = console.platform
    return EXTRA.format(url=platform.shared.redis_url, prefix=platform.prefix)


def names_of(console):
    """Return the names of the configured sinks."""
    return [sink["sink"] for sink in console.json("/api/status")["sinks"]]


def test_a_sink_is_added_refilled_and_dropped(console):
    """
    Each change is a run with an outcome; the drop must be confirmed.
    """
    browser, prefix = console.browser(), console.platform.prefix
    browser.send("/sinks", block=extra(console).replace("\n", "\r\n"))
    added = ended(console, CHANGE)
    refilled = browser.send("/sinks/refill", sink="extra"), ended(console, CHANGE)
    prompt = browser.send("/sinks/drop", sink="extra", data="true")
    is_kept = 'name = "extra"' in console.platform.config.read_text()
    browser.send("/sinks/drop", sink="extra", data="true", confirm="true")
    dropped = ended(console, CHANGE)
    with redis.Redis.from_url(console.platform.shared.redis_url) as client:
        left = client.keys(f"{prefix}:{prefix}-extra:*")

    assert ("ended", "extra is ready") == (added["state"], added["outcome"])
    assert [("shop.orders", True)] == [
        (step["name"], step["rows"] > 0) for step in added["steps"]
    ]
    assert "extra is refilled" == refilled[1]["outcome"]
    assert (f"and all that it wrote ({prefix}-extra)" in prompt.text, True) == (
        True,
        is_kept,
    )
    assert ("ended", "extra is dropped", []) == (
        *(dropped["state"], dropped["outcome"]),
        left,
    )
    assert 'name = "extra"' not in console.platform.config.read_text()
    lines = [line for line in console.audited() if line["event"].startswith("sink")]
    assert "sink drop ended" == lines[-1]["event"]
    assert "redis://" not in str(lines)


@pytest.mark.parametrize(
    ("path", "document", "status", "text"),
    [
        ("", {"block": "not TOML"}, 422, "not TOML"),
        ("", {"block": "a = 1"}, 422, "must declare one [[sink]]"),
        ("/refill", {"sink": "nowhere"}, 422, "nowhere"),
        ("/refill", {"sink": "cache", "route": "none"}, 422, "none"),
        ("/rebuild", {"sink": "cache"}, 422, "only a search index can be rebuilt"),
        ("/drop", {"sink": "cache"}, 422, "confirm"),
        ("/drop", {"sink": "nowhere", "confirm": True}, 422, "nowhere"),
    ],
)
def test_an_invalid_change_does_not_begin(console, path, document, status, text):
    """
    The request is refused, and no run is added.
    """
    before = newest(console, CHANGE)
    response = console.post(f"/api/sinks{path}", document)

    assert (status, True) == (response.status_code, text in response.text)
    assert before == newest(console, CHANGE)


def test_an_unusable_block_ends_its_run_with_the_reason(console):
    """
    The configuration file does not change.
    """
    before = console.platform.config.read_text()
    block = extra(console).replace("shop.orders", "shop.none")
    response = console.post("/api/sinks", {"block": block})
    run = ended(console, CHANGE)

    assert (202, "failed") == (response.status_code, run["state"])
    assert ("shop.none" in run["outcome"], before) == (
        True,
        console.platform.config.read_text(),
    )


def test_sinks_are_changed_only_where_their_state_is_stored(console):
    """
    With a different state folder, the API and the page report the missing state.
    """
    folder = console.platform.folder
    config = console.platform.config
    text = config.read_text(encoding="utf-8")
    try:
        other = text.replace('state_folder = "state"', 'state_folder = "elsewhere"')
        config.write_text(other, encoding="utf-8")
        response = console.post("/api/sinks/drop", {"sink": "cache", "confirm": True})
        added = console.post("/api/sinks", {"block": extra(console)})
        page = console.browser().get("/sinks")
    finally:
        config.write_text(text, encoding="utf-8")

    assert (409, 409) == (response.status_code, added.status_code)
    assert f"{folder}/elsewhere holds no state of cache" in response.json()["detail"]
    assert ("To refill or drop it:" in page, 'id="drop-cache"' in page) == (True, False)
    assert 'id="drop-cache"' in console.browser().get("/sinks")


@pytest.mark.parametrize("path", ["", "/refill", "/rebuild", "/drop"])
def test_a_change_to_sinks_needs_a_login(console, path):
    """
    Neither the API nor a form accepts an anonymous change.
    """
    api = requests.post(f"{console.address}/api/sinks{path}", json={}, timeout=60)
    form = requests.post(f"{console.address}/sinks{path}", data={}, timeout=60)

    assert (401, 403) == (api.status_code, form.status_code)
    assert 'id="add-sink"' not in console.get("/sinks").text


@contextmanager
def index_of(console):
    """Provide a search client, and the index's alias."""
    platform = console.platform
    with closing(OpenSearch(hosts=[platform.shared.opensearch_url])) as client:
        yield client, f"{platform.prefix}-orders"


def test_an_index_is_rebuilt_while_it_is_written(console):
    """
    The new index replaces the old one with all rows; the run has the command's output.
    """
    with index_of(console) as (client, name):
        before = {*client.indices.get_alias(name=name)}
        console.browser().send("/sinks/rebuild", sink="search")
        run = ended(console, CHANGE)
        after = {*client.indices.get_alias(name=name)}
    with console.platform.writer.paused():
        verified = console.platform.towpath("verify", "search")

    assert ("ended", 0) == (run["state"], verified.code), (run, verified.text)
    assert (1, set()) == (len(after), before & after)
    assert any(f"replaces {old}" in line for old in before for line in run["lines"])
    assert [("shop.orders", True)] == [
        (step["name"], step["rows"] > 0) for step in run["steps"]
    ]
    assert "sink rebuild ended" == console.audited()[-1]["event"]


def test_a_dead_letter_is_applied_once_its_index_accepts_it(console):
    """
    A mapping refuses a long note; after a correction, it accepts the replayed note.
    """
    key, note = 900_001, "n" * 40_000

    def dead_letters():
        wanted = {"sink": "search", "key": str(key)}
        return console.json("/api/dead-letters", **wanted)["dead_letters"]

    with index_of(console) as (client, name):

        def keep_terms(longest):
            text = {"type": "keyword", "ignore_above": longest}
            field = {"type": "text", "fields": {"keyword": text}}
            client.indices.put_mapping(index=name, body={"properties": {"note": field}})

        keep_terms(100_000)
        insert = "insert into shop.orders values (%s, 'placed', %s)"
        console.platform.execute(insert, key, note)
        until(dead_letters, "the row is a dead letter", timeout_s=PATIENCE_S)
        (refused,) = dead_letters()
        keep_terms(256)
        chosen = {"sink": "search", "keys": refused["key"]}
        page = console.browser().send("/dead-letters/replay", **chosen)
        found = client.get(index=name, id=str(key))["_source"]

    assert (True, True) == (refused["is_parked"], "immense term" in refused["reason"])
    assert "dead letters replay:</strong>" in page.text
    assert ([], note) == (dead_letters(), found["note"])
    assert "dead letters replay" == console.audited()[-1]["event"]
