"""The console's rates, topology, hidden columns, and access rules."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from towpath.cli.app import run
from towpath.deploy import console as platform
from towpath.deploy.cli.console import ConsoleTokenError, checked_token, console
from towpath.deploy.console import KEPT_S, Reading, Sample, Samples
from towpath.deploy.console.messages import HIDDEN, shown_value
from towpath.deploy.console.pages import create_app, stage_times
from towpath.deploy.console.security import Access, AuditLog
from towpath.deploy.console.topology import seconds_text, tall, topology_of, wide
from towpath.schemas.failure import UsageError
from towpath.services.plumbing import server
from towpath.settings import Settings

TOKEN = "a-token-of-this-test-alone"  # noqa: S105 - used only in this test
NOW = datetime(2026, 11, 27, tzinfo=UTC)
RELAY = {
    "slot": "towpath",
    "error": None,
    "active": True,
    "halted": "",
    "confirmed_lsn": "0/1000",
    "retained_bytes": 5_000,
    "lag_bytes": 100,
    "wal_status": "reserved",
}
SINK = {
    "sink": "cache",
    "kind": "cache",
    "driver": "serving",
    "running_state": "ready",
    "budget_s": 10.0,
    "lag_s": 0.0,
    "lag_records": 0,
    "is_alive": True,
    "error": None,
    "parked": 0,
    "open_letters": 0,
    "refused": None,
    "unfilled": [],
    "last_stages_ms": {},
    "last_batch_ms": 0,
    **dict.fromkeys(("rows", "stale", "tombstones", "retries", "pending_refetches"), 0),
    "position": "",
}


class ManualClock:
    """A clock that a test advances."""

    def __init__(self):
        self.at = NOW

    def monotonic_s(self):
        """Return the seconds that have passed."""
        return self.at.timestamp()

    def now(self):
        """Return the time."""
        return self.at


class FixedState:
    """A platform whose status was read once."""

    def __init__(self, document):
        self.reading = Reading(NOW, document, ())
        self.samples = Samples()
        self.age_s = 0.0

    def refresh(self):
        """Read nothing."""


def document(relay=None, **sink):
    """Return a status document with one sink."""
    source = {
        "address": "shop",
        "tables": ["shop.orders"],
        "warning_bytes": 10_000,
        "critical_bytes": 20_000,
    }
    relay = RELAY | (relay or {})
    found = {"relay": relay, "sinks": [SINK | sink], "source": source, "wrong": []}
    return found | {"parts": [], "snapshots": []}


@pytest.fixture
def clock():
    """Provide a clock."""
    return ManualClock()


@pytest.fixture
def access(tmp_path, clock):
    """Provide the access rules of a console on loopback, with a token."""
    return Access(TOKEN, AuditLog(tmp_path / "audit", clock), clock, is_local=True)


def client_of(access):
    """Return a client of a console with these access rules."""
    return create_app(FixedState(document()), access).test_client()


@pytest.fixture
def client(access):
    """Provide a client of the console."""
    return client_of(access)


def audited(access):
    """Return the events of the audit log, newest first."""
    return [entry["event"] for entry in access.audit.newest(10)]


def test_a_rate_needs_two_samples_and_a_rising_counter():
    """
    The rate covers the last few seconds; a restarted counter has none.
    """
    samples = Samples()
    found = []
    for at_s, value in ((0, 0), (100, 1_000), (110, 1_200), (113, 7)):
        samples.add(Sample(at_s, {"n": value}))
        found.append(samples.rate("n"))

    assert [None, None, 20.0, None] == found


def test_a_counter_that_is_no_longer_read_has_no_rate():
    """
    While the broker is down, the earlier rate is not shown as the current one.
    """
    samples = Samples()
    samples.add(Sample(100, {"n": 0}))
    samples.add(Sample(103, {"n": 300}))
    samples.add(Sample(106, {"m": 1}))
    recent = samples.rate("n")
    samples.add(Sample(140, {"m": 1}))

    assert (100.0, None) == (recent, samples.rate("n"))


def test_samples_older_than_half_an_hour_are_forgotten():
    """
    The ring is bounded by time, and an unknown value is None.
    """
    samples = Samples()
    samples.add(Sample(0, {"n": 1}))
    samples.add(Sample(KEPT_S + 1, {"m": 2}))

    expected = {"at": [KEPT_S + 1], "values": {"n": [None], "m": [2]}}
    assert expected == samples.series(["n", "m"])


def test_samples_begin_again_after_the_clock_was_set_back():
    """
    A rate is available before the clock has caught up, and times ascend.
    """
    samples = Samples()
    for at_s, value in ((90_000, 0), (90_010, 100), (10, 200), (20, 300)):
        samples.add(Sample(at_s, {"n": value}))

    assert ([10, 20], 10.0) == (samples.series(["n"])["at"], samples.rate("n"))


@pytest.mark.parametrize(
    ("relay", "sink", "part"),
    [
        ({"retained_bytes": 20_000}, {}, "slot"),
        ({"wal_status": "lost"}, {}, "slot"),
        ({"active": False}, {}, "relay"),
        ({}, {"lag_s": 21.0, "lag_records": 3}, "sink-cache"),
        ({}, {"is_alive": False}, "sink-cache"),
        ({}, {"error": "the index refuses it"}, "sink-cache"),
    ],
)
def test_a_part_beyond_its_budget_is_red_in_the_topology(relay, sink, part):
    """
    The part and a flow to or from it are red; nothing is red without cause.
    """
    found = topology_of(document(relay, **sink), Samples())
    calm = topology_of(document(), Samples())
    red = {one.id for one in found.parts if one.state == "bad"}
    flows = [one for one in found.flows if one.is_bad]

    assert ({part}, True) == (red, any(part in (f.begin, f.end) for f in flows))
    assert ([], []) == (
        [one for one in calm.parts if one.state != "good"],
        [one for one in calm.flows if one.is_bad],
    )


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(0.004, "4 ms"), (10.0, "10 s"), (2.44, "2.4 s"), (7300.0, "122 min")],
)
def test_a_duration_is_written_in_its_natural_unit(time_s, text):
    """
    A budget of ten seconds is shown without a decimal.
    """
    assert text == seconds_text(time_s)


@pytest.mark.parametrize("draw", [wide, tall])
def test_the_boxes_of_a_drawing_are_inside_it_and_apart(draw):
    """
    Both drawings show each component once, and boxes do not overlap.
    """
    many = document()
    many["sinks"] = [SINK | {"sink": f"s{n}"} for n in range(4)]
    drawing = draw(topology_of(many, Samples()))
    boxes = [(b["x"], b["y"], b["x"] + b["w"], b["y"] + b["h"]) for b in drawing.boxes]
    inside = all(
        0 <= x1 and x2 <= drawing.width and 0 <= y1 and y2 <= drawing.height
        for x1, y1, x2, y2 in boxes
    )
    covered = [
        (a, b)
        for number, a in enumerate(boxes)
        for b in boxes[number + 1 :]
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]

    assert (8, True, []) == (len(boxes), inside, covered)


def test_a_hidden_column_is_hidden_at_any_depth():
    """
    A masked column is hidden in both images, even if its value is a structure.
    """
    value = {"before": None, "after": {"id": 7, "note": "x", "card": {"no": 1}}}
    shown = shown_value(json.dumps(value), frozenset({"note", "card"}))

    after = {"id": 7, "note": HIDDEN, "card": HIDDEN}
    assert {"before": None, "after": after} == json.loads(shown)


def test_an_opaque_value_is_shown_as_its_size():
    """
    Unparseable bytes could contain hidden columns, so none of them are shown.
    """
    assert "(7 bytes that are not JSON)" == shown_value(b"\x00secret", frozenset())


def test_bars_of_stages_are_relative_to_the_longest():
    """
    The stages are listed in the order in which a batch passes them.
    """
    found = stage_times({"flush": 50, "decode": 1}, 100)

    assert [("decode", 1), ("flush", 50), ("batch", 100)] == [
        (stage.name, stage.share) for stage in found
    ]


@pytest.mark.parametrize(
    ("token", "host"), [("short", "127.0.0.1"), ("", "::"), (" \n", "10.0.0.1")]
)
def test_a_console_reachable_from_outside_needs_a_long_token(token, host):
    """
    A short token is refused before the console listens.
    """
    with pytest.raises(ConsoleTokenError):
        checked_token(token, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_a_console_on_loopback_needs_no_token(host):
    """
    Without a token, it is read-only.
    """
    assert "" == checked_token("", host)


def test_a_missing_token_file_gives_one_sentence(tmp_path, capsys):
    """
    The command ends with the exit code of an invalid command line.
    """
    code = run(["console", "--token-file", str(tmp_path / "none")])

    assert (2, 1) == (code, capsys.readouterr().err.count("No such file"))


def test_a_foreign_host_name_of_this_machine_is_refused(client):
    """
    A page under a foreign name that resolves to this machine cannot read the console.

    This prevents DNS rebinding.
    """
    local = client.get("/api/status", headers={"Host": "localhost:8070"})
    foreign = client.get("/api/status", headers={"Host": "evil.example:8070"})
    page = client.get("/", headers={"Host": "evil.example"})

    assert (200, 403, 403) == (local.status_code, foreign.status_code, page.status_code)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2:8070", "[::1]:8070"])
def test_a_console_accepts_each_address_of_this_machine_as_its_host(client, host):
    """
    No page of another site has an address of this machine as its host.
    """
    assert 200 == client.get("/api/status", headers={"Host": host}).status_code


def test_a_non_local_console_requires_the_token(tmp_path, clock):
    """
    API requests are refused and pages redirect to the login; the token opens both.
    """
    audit = AuditLog(tmp_path / "audit", clock)
    client = client_of(Access(TOKEN, audit, clock, is_local=False))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    wrong = {"Authorization": f"Bearer {TOKEN}x"}
    responses = [
        client.get("/api/status"),
        client.get("/api/status", headers=wrong),
        client.get("/sinks"),
        client.get("/login"),
        client.get("/health/live"),
        client.get("/api/status", headers=bearer),
        client.get("/sinks", headers=bearer),
    ]

    assert [401, 401, 302, 200, 200, 200, 200] == [a.status_code for a in responses]


def test_a_login_opens_a_session_that_ends(client, access, clock):
    """
    The cookie is not sent with requests from other sites; all logins are audited.
    """
    refused = client.post("/login", data={"token": "guess"})
    entered = client.post("/login", data={"token": TOKEN})
    cookie = entered.headers["Set-Cookie"]
    during = "Log out" in client.get("/").text
    clock.at += timedelta(hours=13)
    after = "Log out" in client.get("/").text

    assert (403, 302, True, False) == (
        *(refused.status_code, entered.status_code),
        *(during, after),
    )
    assert ("HttpOnly" in cookie, "SameSite=Strict" in cookie) == (True, True)
    assert ["login", "login refused"] == audited(access)


def test_a_form_from_another_site_or_without_the_csrf_token_is_refused(client):
    """
    A session alone is not enough: the form must come from one of the console's pages.
    """
    client.post("/login", data={"token": TOKEN})
    text = client.get("/").text
    csrf_token = text.partition('name="csrf_token" value="')[2].partition('"')[0]
    foreign = client.post(
        "/logout",
        data={"csrf_token": csrf_token},
        headers={"Sec-Fetch-Site": "cross-site"},
    )
    without_token = client.post("/logout")
    own = client.post("/logout", data={"csrf_token": csrf_token})

    found = [a.status_code for a in (foreign, without_token, own)]
    assert ([403, 403, 302], True) == (found, "Log in" in client.get("/").text)


def test_the_page_of_a_refused_logout_links_to_a_page(client):
    """
    A session may have ended before its browser logs out; the form's path is not a page.
    """
    refused = client.post("/logout")
    link = refused.text.partition("Back to the page")[0].rpartition('href="')[2]
    back = client.get(link.partition('"')[0])

    assert (403, 200) == (refused.status_code, back.status_code)


def test_a_console_without_a_token_changes_nothing(tmp_path, clock):
    """
    An empty token does not count as a token, and does not allow a login.
    """
    access = Access("", AuditLog(tmp_path / "audit", clock), clock, is_local=True)
    client = client_of(access)
    responses = client.post("/login", data={"token": ""}), client.get("/")
    bearer = client.post("/logout", headers={"Authorization": "Bearer "})

    found = responses[0].status_code, responses[1].status_code, bearer.status_code
    assert ((403, 200, 403), True) == (found, "read-only" in responses[1].text)
    assert access.enter("") is None


def test_pages_load_nothing_from_elsewhere(client):
    """
    The policy allows only the package's own files, and no inline script.
    """
    policies = set()
    for page in ("/", "/sinks", "/api/status", "/static/console.js"):
        with client.get(page) as response:
            policies.add(response.headers["Content-Security-Policy"])
    text = client.get("/").text

    assert (1, False, False) == (len(policies), "http" in text, " style=" in text)
    assert "script-src 'self';" in policies.pop()


def test_a_token_of_random_bytes_is_refused(tmp_path, monkeypatch):
    """
    A token must be text; the error does not repeat its bytes.
    """
    file = tmp_path / "token"
    file.write_bytes(b"\xff" * 32)
    monkeypatch.setattr("towpath.deploy.cli.console.configure_logs", lambda: None)
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        console(token_file=file)


@pytest.mark.parametrize(
    ("template", "events"),
    [
        ("outbox.event.{aggregate_type}", 3),
        ("{aggregate_type}.order", 3),
        ("{aggregate_type}", 0),
    ],
)
def test_records_for_one_sink_are_not_counted_as_events(template, events, monkeypatch):
    """
    As for tables, only records in the shared topics count.
    """
    ends = {
        "towpath.shop.orders": {"0": 5},
        "towpath.shop.orders.backfill.cache": {"0": 70},
        "outbox.event.order": {"0": 3},
        "outbox.event.order.backfill.cache": {"0": 900},
    }
    monkeypatch.setattr(platform, "Topics", lambda _: None)
    monkeypatch.setattr(platform, "read_ends", lambda _: ends)
    settings = Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "x", "tables": ["shop.orders"]}],
            "kafka": {"bootstrap_servers": "x"},
            "registry": {"url": "x"},
            "relay": {"outbox": {"topic": template}},
        }
    )

    expected = {"topics.tables": 5, "topics.events": events}
    expected["topics.records"] = 5 + events
    assert expected == platform._read_topics(settings)


def test_only_the_end_of_a_long_audit_log_is_read(access):
    """
    The page shown after a form is submitted reads a log that may cover several years.
    """
    access.audit.path.write_bytes(b'{"event": "login"}\n' * 300_000)
    access.audit.write("verify", {})
    found = access.audit.newest(300_001)

    assert ("verify", "login") == (found[0]["event"], found[-1]["event"])
    assert 200_000 < len(found) < 300_000


@pytest.mark.parametrize(
    ("host", "served_host"),
    [("::1", "[::1]"), ("[::1]", "[::1]"), ("127.0.0.1", "127.0.0.1")],
)
def test_an_ipv6_address_is_served_with_or_without_brackets(
    host, served_host, tmp_path, monkeypatch, capsys
):
    """
    Without brackets, the server would mistake the last group for the port.
    """
    served = []
    monkeypatch.setattr(server, "serve", lambda _, listen: served.append(listen.host))
    config = tmp_path / "towpath.toml"
    config.write_text(
        'version = 1\n[[source]]\ndsn = "postgresql://shop"\n'
        '[kafka]\nbootstrap_servers = "kafka:9092"\n'
    )
    assert 0 == console(host=host, config=config)

    assert [served_host] == served
    assert f"http://{served_host}:8070 " in capsys.readouterr().out


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_an_impossible_port_is_refused(port, capsys):
    """
    The server would end with a traceback, or listen on a random port.
    """
    assert 2 == run(["console", "--port", port])

    assert "--port" in capsys.readouterr().err
