"""
Routes that run actions: the forms on the pages, and the same actions in the API.

====================================  ================================================
route                                 action
====================================  ================================================
POST /api/snapshots                   starts a snapshot
POST /api/snapshots/pause             pauses snapshots; likewise resume and stop
POST /api/dead-letters/replay         has a sink apply dead letters again
POST /api/dead-letters/discard        has a sink discard dead letters
POST /api/relay/dead-letters/replay   publishes the events of parked aggregates
POST /api/relay/dead-letters/discard  discards the events of parked aggregates
====================================  ================================================

The forms on a page have separate routes, under the path of the page. After a form is
submitted, the browser is redirected to that page, which shows the outcome.
"""

from http import HTTPStatus
from typing import Any, Final

from flask import (
    Blueprint,
    Response,
    make_response,
    redirect,
    render_template,
    request,
    url_for,
)

from towpath.deploy.console.actions import (
    Action,
    DeadLettersInput,
    DiscardAggregatesInput,
    DiscardInput,
    ReleaseInput,
    SnapshotInput,
    SnapshotNamesInput,
    carry_out,
    change_snapshots,
    check_chosen,
    check_confirmed,
    release_aggregates,
    resolve_dead_letters,
    start_snapshot,
)
from towpath.deploy.console.api import blueprint as api
from towpath.deploy.console.api import current_state, operations
from towpath.deploy.console.security import CSRF_FIELD
from towpath.deploy.snapshots.requests import RunningChange
from towpath.services.plumbing.http import json_response, read_body, read_form
from towpath.services.plumbing.openapi import Document, Operation
from towpath.settings import Settings
from towpath.sinks.dead_letters.entries import Verb

# The parameter by which a page finds the outcome of its form in the audit log.
DONE: Final = "done"

# Registered within the pages' blueprint, whose rules and problem pages it shares.
forms = Blueprint("actions", __name__)

REFUSALS: Final = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.CONFLICT,
)


class SignalDocument(Document):
    """The relay's answer to a signal, and the action's id in the audit log."""

    id: str
    status: str | None
    detail: dict[str, Any]
    action: str


@api.post("/snapshots")
@operations.add(
    Operation(response=SignalDocument, body=SnapshotInput, problems=REFUSALS)
)
def start() -> Response:
    """Start a snapshot, as towpath snapshot start does."""
    return answer(start_snapshot(_settings(), read_body(request, SnapshotInput)))


_CHANGE: Final = Operation(
    response=SignalDocument,
    body=SnapshotNamesInput,
    body_optional=True,
    problems=REFUSALS,
)


@api.post("/snapshots/pause")
@operations.add(_CHANGE)
def pause() -> Response:
    """Pause snapshots until they are resumed."""
    return _change("pause")


@api.post("/snapshots/resume")
@operations.add(_CHANGE)
def resume() -> Response:
    """Resume paused snapshots, or one failed or stopped snapshot by its id."""
    return _change("resume")


@api.post("/snapshots/stop")
@operations.add(_CHANGE)
def stop() -> Response:
    """Stop snapshots where they are."""
    return _change("stop")


def _change(change: RunningChange) -> Response:
    wanted = read_body(request, SnapshotNamesInput, optional=True)
    return answer(change_snapshots(_settings(), change, wanted))


@forms.post("/source/snapshots")
def start_form() -> Response:
    """Start a snapshot."""
    action = start_snapshot(
        _settings(), read_form(request, SnapshotInput, ignored=CSRF_FIELD)
    )
    return redirect_back("console.source", action)


@forms.post("/source/snapshots/<any(pause, resume, stop):change>")
def change_form(change: RunningChange) -> Response:
    """Pause, resume or stop snapshots."""
    wanted = read_form(request, SnapshotNamesInput, ignored=CSRF_FIELD)
    return redirect_back(
        "console.source", change_snapshots(_settings(), change, wanted)
    )


class KeyOutcome(Document):
    """The outcome for one key: done, refused, or open until the sink answers."""

    topic: str
    key: str
    letters: int
    state: str
    outcome: str


class OutcomesDocument(Document):
    """The outcome for each key, and the action's id in the audit log."""

    outcomes: list[KeyOutcome]
    action: str


class ReleasedAggregate(Document):
    """A released aggregate, and how many of its events were published or dropped."""

    type: str | None
    id: str
    published: int
    dropped: int


class ReleasedDocument(Document):
    """
    The released aggregates, and the action's id in the audit log.

    ``failed`` names those that were not released, and the reason; null if all were.
    """

    released: list[ReleasedAggregate]
    failed: str | None
    action: str


@api.post("/dead-letters/replay")
@operations.add(
    Operation(response=OutcomesDocument, body=DeadLettersInput, problems=REFUSALS)
)
def replay() -> Response:
    """Have a sink apply dead letters again, in order per key."""
    wanted = read_body(request, DeadLettersInput)
    return answer(resolve_dead_letters(_settings(), Verb.REPLAY, wanted))


@api.post("/dead-letters/discard")
@operations.add(
    Operation(response=OutcomesDocument, body=DiscardInput, problems=REFUSALS)
)
def discard() -> Response:
    """Have a sink discard dead letters, and refetch the rows of their keys."""
    wanted = read_body(request, DiscardInput)
    check_confirmed(is_confirmed=wanted.confirm)
    return answer(resolve_dead_letters(_settings(), Verb.DISCARD, wanted))


@api.post("/relay/dead-letters/replay")
@operations.add(
    Operation(response=ReleasedDocument, body=ReleaseInput, problems=REFUSALS)
)
def publish() -> Response:
    """Publish the events of parked aggregates; the relay must be stopped."""
    wanted = read_body(request, ReleaseInput)
    return answer(_release(wanted))


@api.post("/relay/dead-letters/discard")
@operations.add(
    Operation(response=ReleasedDocument, body=DiscardAggregatesInput, problems=REFUSALS)
)
def discard_aggregates() -> Response:
    """Discard the events of parked aggregates; the relay must be stopped."""
    wanted = read_body(request, DiscardAggregatesInput)
    check_confirmed(is_confirmed=wanted.confirm)
    return answer(_discard_aggregates(wanted))


def _release(wanted: ReleaseInput) -> Action:
    return release_aggregates(
        _settings(), wanted.aggregates, publishes=True, drops=wanted.drop
    )


def _discard_aggregates(wanted: DiscardAggregatesInput) -> Action:
    return release_aggregates(
        _settings(), wanted.aggregates, publishes=False, drops=True
    )


@forms.post("/dead-letters/replay")
def replay_form() -> Response:
    """Have a sink apply dead letters again."""
    wanted = read_form(request, DeadLettersInput, ignored=CSRF_FIELD)
    action = resolve_dead_letters(_settings(), Verb.REPLAY, wanted)
    return redirect_back("console.dead_letters", action)


@forms.post("/dead-letters/discard")
def discard_form() -> str | Response:
    """Have a sink discard dead letters, once the user has confirmed."""
    wanted = read_form(request, DiscardInput, ignored=CSRF_FIELD)
    if not wanted.confirm:
        check_chosen(wanted, Verb.DISCARD)
        keys = "all keys" if wanted.all else ", ".join(wanted.keys)
        return ask_first(
            f"Discard the dead letters of {wanted.sink}: {keys}?",
            "The sink discards these changes, and refetches the current rows of their "
            "keys from the source.",
        )
    action = resolve_dead_letters(_settings(), Verb.DISCARD, wanted)
    return redirect_back("console.dead_letters", action)


@forms.post("/dead-letters/relay/replay")
def publish_form() -> Response:
    """Publish the events of parked aggregates."""
    wanted = read_form(request, ReleaseInput, ignored=CSRF_FIELD)
    return redirect_back("console.dead_letters", _release(wanted))


@forms.post("/dead-letters/relay/discard")
def discard_aggregates_form() -> str | Response:
    """Discard the events of parked aggregates, once the user has confirmed."""
    wanted = read_form(request, DiscardAggregatesInput, ignored=CSRF_FIELD)
    if not wanted.confirm:
        names = ", ".join(
            f"{kind or 'any type'} {id_}" for kind, id_ in wanted.aggregates
        )
        return ask_first(
            f"Discard the events of {names}?",
            "They are never published; the relay's dead-letter topic keeps them.",
        )
    return redirect_back("console.dead_letters", _discard_aggregates(wanted))


def ask_first(question: str, consequence: str) -> str:
    """Ask for confirmation with a form that submits the same fields again."""
    fields = [
        (name, value)
        for name, values in request.form.lists()
        for value in values
        if name != CSRF_FIELD
    ]
    return render_template(
        "confirm.html", question=question, consequence=consequence, fields=fields
    )


def answer(action: Action, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Carry out an action, and respond with its document."""
    recorded = carry_out(action)
    document = recorded.result.document | {"action": recorded.id}
    return json_response(status, document)


def redirect_back(page: str, action: Action) -> Response:
    """Carry out an action, and redirect to a page that shows its outcome."""
    recorded = carry_out(action)
    address = f"{url_for(page)}?{DONE}={recorded.id}"
    return make_response(redirect(address, HTTPStatus.SEE_OTHER))


def _settings() -> Settings:
    return current_state().settings
