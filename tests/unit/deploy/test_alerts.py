"""The alert rules, run by Prometheus's own tool over planted series."""

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from support.pages import ROOT, anchors
from support.prometheus import MONITORING, promtool, written
from towpath.schemas.telemetry import published
from towpath.settings import Settings
from towpath.settings.sink import Sink
from towpath.sinks.state.lag import Alarm, budget_s

RULES: Final = MONITORING / "alerts.yaml"
GIB: Final = 2**30
RELAY: Final = {"job": "towpath-relay", "instance": "r:1"}
SINK: Final = {"job": "towpath-sinks", "instance": "s:1", "sink": "cache"}
# Prometheus's notation for a missing sample, and for a series that has ended.
GONE: Final = "stale _x59"

pytestmark = pytest.mark.timeout(60)


class Case(NamedTuple):
    """
    One alert with the series that raise it: an hour below, above, and below again.

    Attributes:
        alert: The alert's name.
        series: Values by metric and labels, one for each minute.
        labels: Labels of the alert, without its severity.
        summary: The text that people read.
        held: The minutes for which the condition must hold.
        begins: The minute in which the condition begins to hold.
        ends: A minute in which the alert has ended.
    """

    alert: str
    series: dict[str, str]
    labels: dict[str, str]
    summary: str
    held: int
    begins: int = 60
    ends: int = 120


def series(metric: str, labels: dict[str, str]) -> str:
    """Return a series in Prometheus's notation."""
    return metric + "{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}"


def crossing(below: Any, above: Any) -> str:
    """Return an hour below, an hour above, and an hour below again."""
    return f"{below}x59 {above if above == GONE else f'{above}x59'} {below}x59"


def relay(metric: str, below: Any, above: Any, **labels: str) -> dict[str, str]:
    """Return a series of the relay that crosses a bound."""
    name = series(f"towpath_{metric}", RELAY | labels)
    return {name: crossing(below, above)}


def sink(metric: str, below: Any, above: Any, **labels: str) -> dict[str, str]:
    """Return a series of a sink that crosses a bound."""
    name = series(f"towpath_sink_{metric}", SINK | labels)
    return {name: crossing(below, above)}


# At four megabytes per minute, space is left after four hours; at five, none is.
_SPACE: Final = {
    series("towpath_relay_slot_safe_wal_bytes", RELAY): (
        "1240000000-4000000x59 1000000000-5000000x59 705000000x59"
    )
}
_READ: Final = {
    **relay("snapshot_tables", 0, 2, state="running"),
    series("towpath_snapshot_rows_total", RELAY): "0+9x59 540x59 540+9x59",
    series("towpath_snapshot_dropped_rows_total", RELAY): "0x179",
}
CASES: Final = (
    Case(
        "TowpathTargetDown",
        {series("up", RELAY): crossing(1, 0)},
        RELAY,
        "towpath-relay on r:1 does not answer",
        2,
    ),
    Case(
        "TowpathRelayAbsent",
        relay("relay_streaming", 1, GONE),
        {},
        "No relay shows metrics",
        2,
    ),
    Case(
        "TowpathSinksAbsent",
        sink("state", 1, GONE, state="running"),
        {},
        "No driver of sinks shows metrics",
        5,
    ),
    Case(
        "TowpathRelayNotStreaming",
        relay("relay_streaming", 1, 0),
        RELAY,
        "The relay r:1 does not stream",
        2,
    ),
    Case(
        "TowpathHeartbeatMissing",
        relay("relay_heartbeat_age_seconds", 30, 31),
        RELAY,
        "No heartbeat of the relay r:1 has come back through the log",
        1,
    ),
    # The process has not seen its own heartbeat since it was started.
    Case(
        "TowpathHeartbeatMissing",
        {
            series("towpath_relay_streaming", RELAY): "1x179",
            **relay("relay_heartbeat_age_seconds", 1, GONE),
        },
        RELAY,
        "No heartbeat of the relay r:1 has come back through the log",
        1,
    ),
    Case(
        "TowpathRelayBehind",
        relay("relay_behind_source_seconds", 10, 11),
        RELAY,
        "The relay r:1 reads transactions 11s after their commit",
        5,
    ),
    Case(
        "TowpathRelayHeldBack",
        {
            **relay("relay_in_flight_bytes", 94, 95),
            series("towpath_relay_in_flight_limit_bytes", RELAY): "100x179",
        },
        RELAY,
        "Kafka does not acknowledge what the relay r:1 publishes",
        5,
    ),
    # A reason has no series until it first occurs, so its first value is one.
    Case(
        "TowpathRelayDeadLetters",
        {
            series(
                "towpath_relay_dead_letters_total", RELAY | {"reason": "too large"}
            ): "_x60 1x119"
        },
        RELAY | {"reason": "too large"},
        "The relay r:1 wrote dead letters: too large",
        0,
        ends=71,
    ),
    Case(
        "TowpathRelayDeadLetters",
        {
            series(
                "towpath_relay_dead_letters_total", RELAY | {"reason": "too large"}
            ): "4x59 5x119"
        },
        RELAY | {"reason": "too large"},
        "The relay r:1 wrote dead letters: too large",
        0,
        ends=71,
    ),
    Case(
        "TowpathRelayParkedKeys",
        relay("relay_parked_keys", 0, 1),
        RELAY,
        "1 aggregates are parked at the relay r:1",
        5,
    ),
    Case(
        "TowpathSourceProblems",
        relay("relay_source_problems", 0, 1),
        RELAY,
        "The source has 1 problems that the relay r:1 sees",
        5,
    ),
    Case(
        "TowpathSlotRetained",
        relay("relay_slot_retained_bytes", 10 * GIB, 10 * GIB + 1),
        RELAY,
        "The slot of r:1 retains 10GiB of log",
        1,
    ),
    Case(
        "TowpathSlotRetainedCritical",
        relay("relay_slot_retained_bytes", 20 * GIB, 20 * GIB + 1),
        RELAY,
        "The slot of r:1 retains 20GiB of log",
        1,
    ),
    Case(
        "TowpathSlotInactive",
        relay("relay_slot_inactive_seconds", 1800, 1801),
        RELAY,
        "No process has followed the slot of r:1 for 30m 1s",
        0,
    ),
    Case(
        "TowpathSlotEndangered",
        {
            **relay("relay_slot_wal_status", 0, 1, status="unreserved"),
            series(
                "towpath_relay_slot_wal_status", RELAY | {"status": "extended"}
            ): crossing(1, 0),
        },
        RELAY | {"status": "unreserved"},
        "The log of the slot of r:1 is unreserved",
        0,
    ),
    # The rate is measured over half an hour.
    Case(
        "TowpathSlotLossPredicted",
        _SPACE,
        RELAY,
        "The slot of r:1 is lost within four hours at the present rate",
        10,
        begins=65,
        ends=150,
    ),
    Case(
        "TowpathSourceArchiveFailing",
        relay("relay_source_archive_failing", 0, 1),
        RELAY,
        "The source of r:1 cannot archive its log",
        5,
    ),
    Case(
        "TowpathSnapshotStalled",
        _READ,
        RELAY | {"state": "running"},
        "2 tables of a snapshot at r:1 have made no progress for 15 minutes",
        5,
        begins=74,
    ),
    Case(
        "TowpathSnapshotFailed",
        relay("snapshot_tables", 0, 1, state="incomplete"),
        RELAY | {"state": "incomplete"},
        "1 tables of snapshots at r:1 are incomplete",
        0,
    ),
    Case(
        "TowpathSinkLag",
        {
            **sink("lag_seconds", 20, 21),
            series("towpath_sink_budget_seconds", SINK): "10x179",
        },
        SINK,
        "The sink cache is 21s behind",
        0,
    ),
    Case(
        "TowpathSinkFailed",
        sink("state", 0, 1, state="failed"),
        SINK | {"state": "failed"},
        "The sink cache has failed",
        2,
    ),
    Case(
        "TowpathSinkDifferent",
        sink("verify_differences", 0, 4),
        SINK,
        "4 keys of the sink cache differ from the source",
        0,
    ),
    # Two failures every minute for an hour.
    Case(
        "TowpathSinkUnpublished",
        {series("towpath_sink_unpublished_total", SINK): "3x59 4+2x59 122x59"},
        SINK,
        "The progress of the sink cache cannot be published",
        5,
    ),
    # For an hour, no driver publishes the sink's progress. A second driver last
    # published it at minute 0.
    Case(
        "TowpathSinkSilent",
        {
            series("towpath_sink_published_timestamp_seconds", SINK): (
                "0+60x59 3540x59 7200+60x59"
            ),
            series(
                "towpath_sink_published_timestamp_seconds",
                SINK | {"instance": "s:2"},
            ): "0x179",
        },
        {"sink": "cache"},
        "Nothing was heard of the sink cache for 7m 0s",
        5,
        begins=61,
    ),
    Case(
        "TowpathSinkDiskLow",
        sink("state_free_bytes", GIB, GIB - 1),
        SINK,
        "The disk with the state of the sink cache has 1024MiB left",
        5,
    ),
    Case(
        "TowpathSinkDeadLetters",
        {series("towpath_sink_dead_letters_total", SINK): "3x59 4x119"},
        SINK,
        "The sink cache wrote dead letters",
        0,
        ends=71,
    ),
    Case(
        "TowpathSinkParkedKeys",
        sink("parked_keys", 0, 1),
        SINK,
        "1 keys of the sink cache are parked",
        5,
    ),
    Case(
        "TowpathSinkRefetches",
        sink("pending_refetches", 0, 7),
        SINK,
        "7 rows of the sink cache have waited for their refetch for 30 minutes",
        30,
    ),
    Case(
        "TowpathInboxParked",
        {
            series(
                "towpath_inbox_parked_events", {"consumer": "orders", "instance": "o:1"}
            ): crossing(0, 2)
        },
        {"consumer": "orders"},
        "2 events of the consumer orders are parked",
        1,
    ),
)


def rules(text: str) -> dict[str, Any]:
    """Read the rules, by the names of their alerts."""
    # The parser in C is ten times as fast.
    groups = yaml.load(text, yaml.CSafeLoader)["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@pytest.fixture(scope="module")
def alerts() -> dict[str, Any]:
    """Read the rules of the project."""
    return rules(RULES.read_text(encoding="utf-8"))


def timeline(case: Case, rule: dict[str, Any]) -> dict[str, Any]:
    """Return a case in the tool's format: silent, silent, firing, silent again."""
    fired = {
        "exp_labels": case.labels | rule["labels"],
        "exp_annotations": rule["annotations"] | {"summary": case.summary},
    }
    fires = case.begins + case.held
    moments = {case.begins - 1: [], fires: [fired], case.ends: []}
    moments |= {fires - 1: []} if case.held else {}
    return {
        "interval": "1m",
        "input_series": [{"series": s, "values": v} for s, v in case.series.items()],
        "alert_rule_test": [
            {"alertname": case.alert, "eval_time": f"{minute}m", "exp_alerts": expected}
            for minute, expected in moments.items()
        ],
    }


def failures(folder: Path, text: str, alert: str) -> str:
    """Run an alert's cases against its rule; return the tool's error messages."""
    rule = rules(text)[alert]
    written(folder / "rule.yaml", {"groups": [{"name": "one", "rules": [rule]}]})
    document = {
        "rule_files": ["rule.yaml"],
        "evaluation_interval": "1m",
        "tests": [timeline(case, rule) for case in CASES if case.alert == alert],
    }
    done = promtool("test", "rules", written(folder / "cases.yaml", document))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_tool_accepts_the_rules():
    """
    Prometheus itself reads expressions, durations and templates.
    """
    done = promtool("check", "rules", "--lint-fatal", RULES)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", sorted({case.alert for case in CASES}))
def test_an_alert_fires_at_its_bound_and_not_below_it(tmp_path: Path, alert: str):
    """
    It is silent just below its bound, while pending, and after the condition ends.
    """
    assert failures(tmp_path, RULES.read_text(encoding="utf-8"), alert) == ""


def test_each_alert_has_a_case(alerts: dict[str, Any]):
    """
    A new rule needs series that raise it.
    """
    assert sorted(alerts) == sorted({case.alert for case in CASES})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slot_retained_bytes > 10 *", "slot_retained_bytes > 11 *"),
        ("slot_retained_bytes > 20 *", "slot_retained_bytes >= 20 *"),
        ("> 30 * 60", "> 20 * 60"),
        ("lag_seconds > 2 *", "lag_seconds > 3 *"),
        ("age_seconds > 30", "age_seconds > 29"),
        ("towpath_relay_streaming == 1 unless", "towpath_relay_streaming == 2 unless"),
        ('up{job=~"towpath-.+"} == 0', 'up{job=~"relay"} == 0'),
        ("absent(towpath_sink_state)", "absent(towpath_sink_state) > 1"),
        ("unless towpath_relay_dead_letters_total offset 10m", "> 9"),
        ('{state="failed"}', '{state="ready"}'),
        ("for: 30m", "for: 29m"),
        ("4 * 3600", "3 * 3600"),
        ('"unreserved|lost"', '"lost"'),
        ("sink_dead_letters_total[10m]", "sink_dead_letters_total[20m]"),
    ],
)
def test_a_planted_wrong_rule_is_found(tmp_path: Path, old: str, new: str):
    """
    A wrong bound, time, condition or metric makes a case fail.
    """
    text = RULES.read_text(encoding="utf-8")
    broken = text.replace(old, new)
    (alert,) = (n for n, rule in rules(text).items() if rules(broken)[n] != rule)

    assert "FAILED" in failures(tmp_path, broken, alert)


def test_bounds_are_those_of_the_configuration(alerts: dict[str, Any]):
    """
    The rules use the defaults of the keys that the relay's log and the doctor use.
    """
    relay = Settings.model_fields["relay"].get_default(call_default_factory=True)
    expressions = {name: rule["expr"] for name, rule in alerts.items()}

    assert expressions["TowpathSlotRetained"].endswith("> 10 * 1024 ^ 3")
    assert relay.retained_warning_bytes == 10 * 1024**3
    assert expressions["TowpathSlotRetainedCritical"].endswith("> 20 * 1024 ^ 3")
    assert relay.retained_critical_bytes == 20 * 1024**3
    assert expressions["TowpathSlotInactive"].endswith("> 30 * 60")
    assert relay.inactive_critical_s == 30 * 60
    assert "age_seconds > 30\n" in expressions["TowpathHeartbeatMissing"]
    assert 3 * relay.heartbeat_interval_s == 30


@pytest.mark.parametrize(
    ("kind", "budget"), [("cache", 10), ("search", 60), ("warehouse", 3600)]
)
def test_the_lag_rule_fires_when_the_drivers_alarm_is_raised(kind: str, budget: float):
    """
    D-11: the rule fires, and the driver logs, above twice the budget of the kind.
    """
    alarm = Alarm(budget_s(Sink.model_construct(kind=kind, budget_s=None)))
    raised = [alarm.update(age_s) for age_s in (2 * budget, 2 * budget + 1)]

    assert [False, True] == raised


def test_every_metric_of_the_rules_is_published(alerts: dict[str, Any]):
    """
    An alert on a metric that nothing publishes would never fire.
    """
    text = " ".join(rule["expr"] for rule in alerts.values())

    assert set(re.findall(r"towpath_\w+", text)) <= set(published())


def test_every_alert_leads_to_its_heading_in_the_runbook(alerts: dict[str, Any]):
    """
    The link of each alert leads to a heading that no other alert has.
    """
    links = {name: rule["annotations"]["runbook_url"] for name, rule in alerts.items()}
    known = anchors(ROOT / "docs/runbook.md")

    assert links == {name: f"docs/runbook.md#{name.lower()}" for name in alerts}
    assert [] == [name for name in alerts if name.lower() not in known]
    assert {rule["labels"]["severity"] for rule in alerts.values()} == {
        "critical",
        "warning",
    }
