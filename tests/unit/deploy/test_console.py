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

TOKEN = "a-token-of-this-test-alone"  # noqa: S105 - opens nothing but this test
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


class FixedClock:
    """A clock that a test moves."""

    def __init__(self):
        self.at = NOW

    def monotonic_s(self):
        """Return the seconds that have passed."""
        return self.at.timestamp()

    def now(self):
        """Return the time."""
        return self.at


class FixedState:
    """A platform that was read once."""

    def __init__(self, document):
        self.reading = Reading(NOW, document, ())
        self.samples = Samples()
        self.age_s = 0.0

    def refresh(self):
        """Read nothing."""


def document(relay=None, **sink):
    """Return a document of the status with one sink."""
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
    return FixedClock()


@pytest.fixture
def access(tmp_path, clock):
    """Provide the rules of a console on loopback, with a token."""
    return Access(TOKEN, AuditLog(tmp_path / "audit", clock), clock, is_local=True)


def client_of(access):
    """Return a client of a console with these rules."""
    return create_app(FixedState(document()), access).test_client()


@pytest.fixture
def client(access):
    """Provide a client of the console."""
    return client_of(access)


def audited(access):
    """Return the events of the audit log, newest first."""
    return [entry["event"] for entry in access.audit.newest(10)]


def test_a_rate_needs_two_samples_and_a_counter_that_grew():
    """
    The rate is that of the last seconds; a restarted counter has none.
    """
    samples = Samples()
    found = []
    for at_s, value in ((0, 0), (100, 1_000), (110, 1_200), (113, 7)):
        samples.add(Sample(at_s, {"n": value}))
        found.append(samples.rate("n"))

    assert [None, None, 20.0, None] == found


def test_a_counter_that_is_no_longer_read_has_no_rate():
    """
    While the broker is down, the rate from before is not shown as the current one.
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


def test_samples_of_a_clock_that_was_set_back_begin_again():
    """
    A rate needs no day until the clock has caught up, and times ascend.
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
def test_what_passes_its_budget_is_red_in_the_topology(relay, sink, part):
    """
    The part is red, and so is a flow that ends there; nothing is red without cause.
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
    A budget of ten seconds is not shown with a decimal.
    """
    assert text == seconds_text(time_s)


@pytest.mark.parametrize("draw", [wide, tall])
def test_boxes_of_a_drawing_are_inside_and_apart(draw):
    """
    Both pictures have each part once, and no box covers another.
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


def test_a_hidden_column_is_hidden_wherever_it_stands():
    """
    A masked column stays masked in both images, also if its value is a structure.
    """
    value = {"before": None, "after": {"id": 7, "note": "x", "card": {"no": 1}}}
    shown = shown_value(json.dumps(value), frozenset({"note", "card"}))

    after = {"id": 7, "note": HIDDEN, "card": HIDDEN}
    assert {"before": None, "after": after} == json.loads(shown)


def test_an_opaque_value_is_shown_by_its_size():
    """
    Bytes that cannot be parsed could have hidden columns, so none of them is shown.
    """
    assert "(7 bytes that are not JSON)" == shown_value(b"\x00secret", frozenset())


def test_bars_of_stages_are_relative_to_the_longest():
    """
    The stages stand in the order in which a batch takes them.
    """
    found = stage_times({"flush": 50, "decode": 1}, 100)

    assert [("decode", 1), ("flush", 50), ("batch", 100)] == [
        (stage.name, stage.share) for stage in found
    ]


@pytest.mark.parametrize(
    ("token", "host"), [("short", "127.0.0.1"), ("", "::"), (" \n", "10.0.0.1")]
)
def test_a_console_that_others_reach_needs_a_long_token(token, host):
    """
    It is refused before it listens.
    """
    with pytest.raises(ConsoleTokenError):
        checked_token(token, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_a_console_on_loopback_needs_no_token(host):
    """
    It is then read-only.
    """
    assert "" == checked_token("", host)


def test_a_missing_token_file_is_one_sentence(tmp_path, capsys):
    """
    The command ends with the exit code of a wrong command line.
    """
    code = run(["console", "--token-file", str(tmp_path / "none")])

    assert (2, 1) == (code, capsys.readouterr().err.count("No such file"))


def test_another_name_of_this_machine_is_refused(client):
    """
    A foreign page whose name points here does not read the console.
    """
    local = client.get("/api/status", headers={"Host": "localhost:8070"})
    foreign = client.get("/api/status", headers={"Host": "evil.example:8070"})
    page = client.get("/", headers={"Host": "evil.example"})

    assert (200, 403, 403) == (local.status_code, foreign.status_code, page.status_code)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2:8070", "[::1]:8070"])
def test_a_console_answers_to_each_address_that_it_may_listen_on(client, host):
    """
    No page of another site has an address of this machine for its name.
    """
    assert 200 == client.get("/api/status", headers={"Host": host}).status_code


def test_everything_needs_the_token_on_another_address(tmp_path, clock):
    """
    Documents are refused, pages lead to the login; the token opens both.
    """
    audit = AuditLog(tmp_path / "audit", clock)
    client = client_of(Access(TOKEN, audit, clock, is_local=False))
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    wrong = {"Authorization": f"Bearer {TOKEN}x"}
    answers = [
        client.get("/api/status"),
        client.get("/api/status", headers=wrong),
        client.get("/sinks"),
        client.get("/login"),
        client.get("/health/live"),
        client.get("/api/status", headers=bearer),
        client.get("/sinks", headers=bearer),
    ]

    assert [401, 401, 302, 200, 200, 200, 200] == [a.status_code for a in answers]


def test_a_login_opens_a_session_that_ends(client, access, clock):
    """
    The cookie is not sent by other sites; logins and refused ones are in the log.
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


def test_a_form_of_another_site_or_without_the_word_is_refused(client):
    """
    A session alone changes nothing: the form must be one of its own pages.
    """
    client.post("/login", data={"token": TOKEN})
    word = client.get("/").text.partition('name="word" value="')[2].partition('"')[0]
    foreign = client.post(
        "/logout", data={"word": word}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    wordless = client.post("/logout")
    own = client.post("/logout", data={"word": word})

    found = [a.status_code for a in (foreign, wordless, own)]
    assert ([403, 403, 302], True) == (found, "Log in" in client.get("/").text)


def test_the_page_of_a_refused_logout_leads_to_a_page(client):
    """
    A session may have ended before its browser logs out; no page is at that path.
    """
    refused = client.post("/logout")
    place = refused.text.partition("Back to the page")[0].rpartition('href="')[2]
    back = client.get(place.partition('"')[0])

    assert (403, 200) == (refused.status_code, back.status_code)


def test_a_console_without_a_token_changes_nothing(tmp_path, clock):
    """
    An empty token is no token, and nobody logs in with it.
    """
    access = Access("", AuditLog(tmp_path / "audit", clock), clock, is_local=True)
    client = client_of(access)
    answers = client.post("/login", data={"token": ""}), client.get("/")
    bearer = client.post("/logout", headers={"Authorization": "Bearer "})

    found = answers[0].status_code, answers[1].status_code, bearer.status_code
    assert ((403, 200, 403), True) == (found, "read-only" in answers[1].text)
    assert access.enter("") is None


def test_pages_load_nothing_from_elsewhere(client):
    """
    The policy allows the package's own files alone, and no script inside a page.
    """
    policies = set()
    for page in ("/", "/sinks", "/api/status", "/static/console.js"):
        with client.get(page) as answer:
            policies.add(answer.headers["Content-Security-Policy"])
    text = client.get("/").text

    assert (1, False, False) == (len(policies), "http" in text, " style=" in text)
    assert "script-src 'self';" in policies.pop()


def test_a_token_of_random_bytes_is_refused(tmp_path, monkeypatch):
    """
    A login is text; the bytes are not repeated.
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
def test_records_of_events_are_counted_without_those_for_one_sink(
    template, events, monkeypatch
):
    """
    As those of tables are: the rate is that of the shared topics.
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
    Each page after a form reads it, and it has the entries of years.
    """
    access.audit.path.write_bytes(b'{"event": "login"}\n' * 300_000)
    access.audit.write("verify", {})
    found = access.audit.newest(300_001)

    assert ("verify", "login") == (found[0]["event"], found[-1]["event"])
    assert 200_000 < len(found) < 300_000


@pytest.mark.parametrize(
    ("host", "place"),
    [("::1", "[::1]"), ("[::1]", "[::1]"), ("127.0.0.1", "127.0.0.1")],
)
def test_an_ipv6_address_is_served_with_or_without_brackets(
    host, place, tmp_path, monkeypatch, capsys
):
    """
    The server would take its last part for the port.
    """
    served = []
    monkeypatch.setattr(server, "serve", lambda _, listen: served.append(listen.host))
    config = tmp_path / "towpath.toml"
    config.write_text(
        'version = 1\n[[source]]\ndsn = "postgresql://shop"\n'
        '[kafka]\nbootstrap_servers = "kafka:9092"\n'
    )
    assert 0 == console(host=host, config=config)

    assert [place] == served
    assert f"http://{place}:8070 " in capsys.readouterr().out


@pytest.mark.parametrize("port", ["0", "65536", "-1"])
def test_a_port_that_no_server_can_have_is_refused(port, capsys):
    """
    The server would end with a traceback, or listen on a port that it does not name.
    """
    assert 2 == run(["console", "--port", port])

    assert "--port" in capsys.readouterr().err
