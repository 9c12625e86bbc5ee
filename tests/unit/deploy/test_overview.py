"""The findings of ``towpath status``, and their format."""

import io

import pytest
from rich.console import Console

from towpath.deploy import status
from towpath.deploy.cli.stack import screen
from towpath.deploy.errors import SourceUnreachableError
from towpath.deploy.local.lifecycle import PartState, part_table
from towpath.deploy.status import problems_of
from towpath.relay.errors import SourceRefusedError
from towpath.schemas.clock import SystemClock
from towpath.settings import Settings
from towpath.sinks.state.progress import State

REFUSED = "its changed block is refused; the sink continues as before: no column x."
PART = {
    "name": "kafka",
    "state": PartState.READY,
    "port": 9092,
    "pid": 7,
    "memory_bytes": 1 << 20,
    "uptime_s": 61.0,
    "log": "/tmp/kafka.log",  # noqa: S108 - only a name
}
RELAY = {
    "slot": "towpath",
    "error": None,
    "active": True,
    "confirmed_lsn": "0/16B3748",
    "retained_bytes": 4096,
    "wal_status": "reserved",
    "lag_bytes": 56,
    "halted": "",
    "lineage_offset": 0,
}
SINK = {
    "sink": "cache",
    "kind": "cache",
    "driver": "serving",
    "is_alive": True,
    "not_alive": None,
    "budget_s": 10.0,
    "lag_records": 12,
    "lag_s": 20.0,
    "state": State.RUNNING,
    "running_state": "running",
    "open_letters": 0,
    "error": None,
    "rows": 1234,
    "stale": 0,
    "tombstones": 7,
    "retries": 0,
    "position": "0000000000000100.0000000001",
    "dead_letters": 0,
    "parked": 0,
    "pending_refetches": 0,
    "refused": None,
    "unfilled": (),
    "last_batch_ms": 42,
    "last_stages_ms": {"decode": 2, "apply": 30, "flush": 10},
}

GONE = {"is_alive": False, "not_alive": "it has ended"}


def document(*, part=(), relay=(), sink=()):
    """Describe a healthy platform with the given changes."""
    return {
        "parts": [PART | dict(part)],
        "relay": RELAY | dict(relay),
        "snapshots": [],
        "sinks": [SINK | dict(sink)],
    }


def findings(**changed):
    """Return the findings for a platform on which 5,000 retained bytes are critical."""
    return list(problems_of(document(**changed), critical_bytes=5000))


def test_a_healthy_platform_has_no_finding():
    """
    A lag between the budget and twice the budget is not a finding.
    """
    assert [] == findings()


def test_each_finding_of_the_status_has_its_own_message():
    """
    Parts, relay, slot, sink, lag, driver and parked keys each have a message.
    """
    found = [
        findings(part={"state": PartState.STOPPED}),
        findings(relay={"error": "the source does not answer"}),
        findings(relay={"active": False}),
        findings(relay={"wal_status": "lost"}),
        findings(relay={"retained_bytes": 5000}),
        findings(sink={"state": State.FAILED, "error": "Redis does not answer."}),
        findings(sink=GONE),
        findings(sink={"lag_s": 20.5}),
        findings(sink={"parked": 3}),
        findings(sink={"unfilled": ("lines", "orders")}),
        findings(sink={"refused": "no column x."}),
        findings(sink={"refused": "no column x.", **GONE}),
    ]

    assert [
        ["the part 'kafka' is stopped"],
        ["the relay: the source does not answer"],
        ["no relay is consuming the slot towpath: the relay is not running"],
        ["the slot's log is lost"],
        ["the slot retains 5,000 bytes of log"],
        ["cache: Redis does not answer."],
        ["cache: its driver 'serving' is not running: it has ended"],
        ["cache: 20 s behind, more than twice its budget of 10 s"],
        ["cache: 3 keys are parked"],
        ["cache: it lost rows, which are being read again (routes: lines, orders)"],
        [f"cache: {REFUSED}"],
        ["cache: its driver 'serving' is not running: it has ended"],
    ] == found


def test_a_lagging_sink_is_marked():
    """
    A sink beyond twice its budget has a marked row, with and without color.
    """
    console = Console(
        width=140, record=True, file=io.StringIO(), color_system="truecolor"
    )
    for lag_s in (20.0, 20.5):
        found = document(sink={"lag_s": lag_s}) | {"wrong": []}
        console.print(screen(found))
    styled = console.export_text(clear=False, styles=True)
    (normal, late) = [
        line for line in styled.splitlines() if "20." in line and "ms" in line
    ]

    assert (False, True) == ("20.5 !" in normal, "20.5 !" in late)
    assert (False, True) == ("\x1b[1;31m" in normal, "\x1b[1;31m" in late)


def test_the_status_screen_shows_every_section():
    """
    Parts, relay, snapshots, sinks with their lag, and problems are shown.
    """
    row = {"snapshot": "s1", "table": "shop.orders", "target": "cache"}
    changed = {"lag_s": 25.0, "error": "[b]no markup[/b]", "pending_refetches": 4321}
    found = document(sink=changed) | {
        "snapshots": [row | {"state": "running", "rows": 70, "percent": 7.0}],
        "wrong": ["cache: [b]no markup[/b]"],
    }
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(screen(found))
    text = console.export_text()
    expected = (
        *("kafka", "streaming, 56 bytes behind", "s1  shop.orders for cache: running"),
        *("applied 0/100, 25.0 s behind, 7 tombstones",),
        *(
            "4,321",
            "25.0",
            "42 ms (decode 2, apply 30, flush 10)",
            "! cache: [b]no markup[/b]",
        ),
    )

    assert [] == [part for part in expected if part not in text]


def overview_of(monkeypatch, failure, relay):
    """Return the problems of a platform whose snapshots cannot be read."""

    def refuse(_settings):
        raise failure

    settings = Settings.model_validate(
        {
            "version": 1,
            "source": [{"dsn": "postgresql:///x"}],
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
        }
    )
    monkeypatch.setattr(status.signals, "progress", refuse)
    for name, value in relay.items():
        monkeypatch.setattr(status, name, value)
    return status.overview((), settings, SystemClock())["wrong"]


def test_a_source_that_refuses_the_login_is_reported_as_the_relays_problem(monkeypatch):
    """
    It is one problem, not two; the other parts are still shown.
    """
    unread = SourceUnreachableError("the source does not answer: no password")
    message = "the source refuses the login"
    relay = {
        "lineage_offset": lambda _settings: 0,
        "slot_facts": lambda _settings: (None, message),
    }

    assert [f"the relay: {message}"] == overview_of(monkeypatch, unread, relay)


def test_an_outage_after_a_missing_slot_is_a_second_problem(monkeypatch):
    """
    The source still responded when the slot was read, so the relay's problem differs.
    """
    unread = SourceUnreachableError("the source does not answer: shut down")
    relay = {
        "lineage_offset": lambda _settings: 0,
        "slot_facts": lambda _settings: (None, None),
    }
    slot, snapshots = overview_of(monkeypatch, unread, relay)

    assert "the relay: there is no slot towpath" == slot
    assert f"the snapshots cannot be read: {unread}" in snapshots


@pytest.mark.parametrize("relay_error", [None, "there is no slot towpath"])
def test_snapshots_that_a_role_may_not_read_are_a_problem(monkeypatch, relay_error):
    """
    If it were not reported, the platform would look as though it had no snapshots.
    """
    message = "permission denied for table snapshot"
    relay = {"_relay": lambda _settings: (RELAY | {"error": relay_error}, True)}
    *others, found = overview_of(monkeypatch, SourceRefusedError(message), relay)

    assert bool(relay_error) == len(others)
    assert f"the snapshots cannot be read: {message}. " in found
    assert SourceRefusedError.remedy in found


def test_a_path_with_brackets_is_shown_verbatim():
    """
    A word in brackets must not style the text after it.
    """
    parts = [PART | {"log": "/srv/[red]/[/red]/kafka.log"}]
    console = Console(file=io.StringIO(), width=120)
    console.print(part_table(parts))

    assert "/srv/[red]/[/red]/kafka.log" in console.file.getvalue()
