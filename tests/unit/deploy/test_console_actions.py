"""The audit log of the console's actions, their forms, and the origin checks."""

import json
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from flask import Flask, request

from towpath.deploy.console import Samples
from towpath.deploy.console.actions import (
    DeadLettersInput,
    ReleaseInput,
    SnapshotInput,
    check_confirmed,
    release_aggregates,
)
from towpath.deploy.console.pages import changes_of, create_app
from towpath.deploy.console.security import (
    Access,
    AuditLog,
    AuditLogError,
    ForeignRequestError,
    LoginNeededError,
    RefusedLogins,
)
from towpath.relay.commands import dead_letters as relay
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.services.plumbing.http import InvalidInputError, read_form
from towpath.services.plumbing.server import LIFECYCLE

TOKEN = "a-token-of-this-test-alone"  # noqa: S105 - used only in this test
HOST = "localhost:8070"


@pytest.fixture
def audit(tmp_path):
    """Provide an audit log."""
    return AuditLog(tmp_path / "audit.jsonl", SystemClock())


def outcomes(audit):
    """Return the outcomes in the audit log, oldest first."""
    return [line["outcome"] for line in reversed(audit.newest(10))]


def test_an_action_is_recorded_before_it_begins(audit):
    """
    While it runs, its first line is on disk; both lines have its id and its actor.
    """
    seen = []

    def act():
        seen.extend(audit.newest(10))
        return 7

    recorded = audit.record("count", {"who": "token"}, act, str)
    lines = audit.newest(10)

    assert (7, ["begun"]) == (recorded.result, [line["outcome"] for line in seen])
    assert ["begun", "7"] == outcomes(audit)
    assert {(recorded.id, "token")} == {(one["action"], one["who"]) for one in lines}


def test_a_line_truncated_by_a_crash_is_left_out(audit):
    """
    The page shows the earlier entries.
    """
    audit.record("count", {"who": "token"}, lambda: 7, str)
    with audit.path.open("a", encoding="utf-8") as file:
        file.write('{"at": "2026-')

    assert ["begun", "7"] == outcomes(audit)


def test_a_line_after_a_truncated_one_is_complete(audit):
    """
    Neither a line separator in a value nor a truncated character hides another line.
    """
    audit.write("verify", {"key": "a\u2028ü"})
    with audit.path.open("ab") as file:
        file.write('{"event": "z\u00fc'.encode()[:-1])
    audit.write("replay", {"key": "ü"})

    assert [("replay", "ü"), ("verify", "a\u2028ü")] == [
        (line["event"], line["key"]) for line in audit.newest(10)
    ]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UsageError("no such sink"), "refused: no such sink"),
        (ZeroDivisionError(), "failed: ZeroDivisionError"),
    ],
)
def test_a_refused_or_failed_action_is_recorded_with_its_reason(audit, error, outcome):
    """
    The error is also raised, so that the response reports it.
    """

    def act():
        raise error

    with pytest.raises(type(error)):
        audit.record("drop", {}, act, str)

    assert ["begun", outcome] == outcomes(audit)


def test_an_action_that_cannot_be_recorded_does_not_begin(tmp_path):
    """
    A log whose path is a folder cannot be written.
    """
    begun = []
    audit = AuditLog(tmp_path, SystemClock())

    with pytest.raises(AuditLogError):
        audit.record("drop", {}, lambda: begun.append(1), str)

    assert [] == begun


def refusal(access, headers, cookie=""):
    """Return the class of the error that refuses a form, or None."""
    app = Flask(__name__)
    headers = {"Host": HOST, "Cookie": f"towpath_console={cookie}", **headers}
    with app.test_request_context("/x", method="POST", headers=headers):
        try:
            access.check(request)
        except (ForeignRequestError, LoginNeededError) as error:
            return type(error)
        return None


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"Origin": f"http://{HOST}"}, None),
        ({"Origin": f"https://{HOST}", "Sec-Fetch-Site": "same-origin"}, None),
        ({"Origin": "http://evil.example"}, ForeignRequestError),
        ({"Origin": "http://localhost:9999"}, ForeignRequestError),
        ({"Origin": "null"}, ForeignRequestError),
        ({"Sec-Fetch-Site": "same-site"}, ForeignRequestError),
        ({"X-Towpath-Word": "another"}, ForeignRequestError),
        ({"Cookie": ""}, LoginNeededError),
    ],
)
def test_a_change_must_come_from_the_consoles_own_page(audit, headers, expected):
    """
    Origin, Sec-Fetch-Site and the session's CSRF token must all be those of the page.
    """
    access = Access(TOKEN, audit, SystemClock(), is_local=True)
    opened = access.enter(TOKEN)
    headers = {"X-Towpath-Word": opened.session.csrf_token, **headers}

    assert expected is refusal(access, headers, opened.cookie)


def test_an_action_that_loses_data_must_be_confirmed():
    """
    The refusal names the required field.
    """
    check_confirmed(is_confirmed=True)

    with pytest.raises(InvalidInputError, match='"confirm": true'):
        check_confirmed(is_confirmed=False)


def test_a_discard_without_keys_is_refused_before_the_prompt(audit):
    """
    Without keys there is nothing to confirm; with them the page asks for confirmation.
    """
    access = Access(TOKEN, audit, SystemClock(), is_local=True)
    state = SimpleNamespace(samples=Samples(), refresh=lambda: None)
    client = create_app(state, access).test_client()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    none, some = (
        client.post(
            "/dead-letters/discard",
            data={"sink": "cache", "keys": keys},
            headers=headers,
        )
        for keys in ([], ["7"])
    )

    assert HTTPStatus.UNPROCESSABLE_ENTITY == none.status_code
    assert "name keys to discard, or set all" in none.text
    assert "Discard the dead letters of cache: 7?" in some.text


def test_a_bearer_token_needs_neither_csrf_token_nor_origin(audit):
    """
    No page of another site has the console's token.
    """
    access = Access(TOKEN, audit, SystemClock(), is_local=True)
    headers = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://evil.example"}

    assert refusal(access, headers) is None


def form(**fields):
    """Read a form as a request for a snapshot."""
    with Flask(__name__).test_request_context("/x", method="POST", data=fields):
        return read_form(request, SnapshotInput, ignored="csrf_token")


def test_chosen_keys_are_not_split_at_line_breaks():
    """
    Each checkbox is one key; browsers send line breaks as CR and LF.
    """
    keys = ["a\u2028b", "c\r\nd", "e"]
    fields = {"sink": "cache", "keys": keys}
    with Flask(__name__).test_request_context("/x", method="POST", data=fields):
        found = read_form(request, DeadLettersInput, ignored="csrf_token")

    assert ["a\u2028b", "c\nd", "e"] == found.keys


def test_a_form_is_read_like_the_document_of_the_api():
    """
    Each line of a list field is one value; an empty field counts as missing.
    """
    found = form(
        csrf_token="secret",  # noqa: S106 - a form field of the test
        tables=["shop.orders\r\n\r\nshop.items", "shop.parts"],
        target="",
        max_rows_per_second="100",
        sweep="true",
    )
    same = SnapshotInput.model_validate_json(
        json.dumps(
            {
                "tables": ["shop.orders", "shop.items", "shop.parts"],
                "max_rows_per_second": 100,
                "sweep": True,
            }
        )
    )

    assert same == found


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_rows_per_second", "fast"), ("type", "quick"), ("table", "shop.orders")],
)
def test_an_invalid_field_of_a_form_is_named(field, value):
    """
    The refusal is the same as the API's.
    """
    with pytest.raises(InvalidInputError) as refused:
        form(**{field: value})

    assert HTTPStatus.UNPROCESSABLE_ENTITY == refused.value.status
    assert [field] == [error.field for error in refused.value.errors]


@pytest.mark.parametrize(
    ("states", "offered"),
    [
        (["running", "completed"], ["pause", "stop"]),
        (["paused"], ["resume", "stop"]),
        (["stopped"], ["resume"]),
        (["incomplete"], ["resume"]),
        (["completed"], []),
    ],
)
def test_the_buttons_of_a_snapshot_are_those_that_its_state_allows(states, offered):
    """
    The states of other snapshots do not count.
    """
    rows = [{"snapshot_id": "one", "state": state} for state in states]
    other = {"snapshot_id": "other", "state": "running"}

    assert offered == changes_of([other, *rows], "one")


def test_a_too_deeply_nested_aggregate_is_an_invalid_field():
    """
    It is not reported as a failure of the console.
    """
    fields = {"aggregates": "[" * 100_000}
    with (
        Flask(__name__).test_request_context("/x", method="POST", data=fields),
        pytest.raises(InvalidInputError) as refused,
    ):
        read_form(request, ReleaseInput, ignored="csrf_token")

    assert ["aggregates[0]"] == [error.field for error in refused.value.errors]


def test_an_aggregate_named_twice_is_released_once(monkeypatch):
    """
    Otherwise the second name would be reported as an aggregate that was not released.
    """
    released = []

    def release(_settings, kind, id_, **_):
        released.append((kind, id_))
        return 1, 0

    monkeypatch.setattr(relay, "read_parked_events", lambda _: {"it": []})
    monkeypatch.setattr(relay, "parked_aggregate", lambda *_: "it")
    monkeypatch.setattr(relay, "release_aggregate", release)
    names = [("order", "7"), ("order", "7")]
    action = release_aggregates(None, names, publishes=True, drops=False)

    assert 1 == len(action.act().document["released"])
    assert [("order", "7")] == released


class SteppedClock(SystemClock):
    """A clock that a test sets."""

    at_s = 0.0

    def monotonic_s(self):
        """Return the time that the test has set."""
        return self.at_s


def test_guesses_at_the_token_are_logged_once_per_minute(tmp_path):
    """
    Otherwise an attacker could fill the disk; the counts include every guess.
    """
    clock = SteppedClock()
    audit = AuditLog(tmp_path / "audit", clock)
    refused = RefusedLogins(audit, clock)
    for at_s in (0, 1, 59, 60, 61):
        clock.at_s = at_s
        refused.add(f"10.0.0.{at_s}")
    refused.flush()
    refused.flush()
    lines = [(line["from"], line["count"]) for line in reversed(audit.newest(10))]

    assert [("10.0.0.0", 1), ("10.0.0.60", 3), ("10.0.0.61", 1)] == lines


def test_the_last_guesses_are_logged_even_if_no_more_follow(tmp_path):
    """
    This happens a minute after the previous line or when the console stops.
    """
    clock = SteppedClock()
    access = Access(TOKEN, AuditLog(tmp_path / "audit", clock), clock, is_local=True)
    app = create_app(SimpleNamespace(refresh=None), access)
    lifecycle = app.extensions[LIFECYCLE]
    [task] = [task for task in lifecycle.tasks if task.name == "refused logins"]

    def counts():
        return [line["count"] for line in reversed(access.audit.newest(10))]

    for _ in range(4):
        app.test_client().post("/login", data={"token": "a guess"})
    task.run()
    assert [1] == counts()
    clock.at_s = 60
    task.run()
    task.run()
    assert [1, 3] == counts()
    app.test_client().post("/login", data={"token": "a guess"})
    lifecycle.close()
    assert [1, 3, 1] == counts()
