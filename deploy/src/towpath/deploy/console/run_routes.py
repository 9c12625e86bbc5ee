"""
Routes that start long-running actions, and routes that report their progress.

============================  ========================================================
route                         response or action
============================  ========================================================
GET /api/verification         the newest verification, with its progress or result
POST /api/verification        starts a verification
GET /api/sinks/change         the latest change to a sink, with its progress
POST /api/sinks               starts adding a sink
POST /api/sinks/refill        starts reading a sink's rows again
POST /api/sinks/rebuild       starts rebuilding a search sink's indexes
POST /api/sinks/drop          starts dropping a sink
============================  ========================================================

The forms on the pages have the same paths without ``/api``, except ``POST /verify``.
"""

from http import HTTPStatus
from typing import Any, Final

from flask import Blueprint, Response, current_app, request
from pydantic import BaseModel

from towpath.deploy.console import ConfigurationFile
from towpath.deploy.console.action_routes import (
    REFUSALS,
    answer,
    ask_first,
    redirect_back,
)
from towpath.deploy.console.actions import check_confirmed
from towpath.deploy.console.api import blueprint as api
from towpath.deploy.console.api import current_state, operations
from towpath.deploy.console.long_actions import (
    SINK_CHANGE,
    VERIFICATION,
    AddSinkInput,
    DropInput,
    RebuildInput,
    RefillInput,
    VerificationInput,
    add_sink,
    begin_verification,
    drop_sink,
    planned_drop,
    rebuild_sink,
    refill_sink,
)
from towpath.deploy.console.runs import EXTENSION, Runs
from towpath.deploy.console.security import CSRF_FIELD
from towpath.deploy.sinks.lifecycle import drop_question
from towpath.services.plumbing.http import json_response, read_body, read_form
from towpath.services.plumbing.openapi import Document, Operation

# Registered within the pages' blueprint, whose rules and problem pages it shares.
forms = Blueprint("runs", __name__)


class StepDocument(Document):
    """A step of a run; its rate, percentage and time left are null if unknown."""

    name: str
    rows: int
    estimate: int | None
    percent: float | None
    rows_per_second: float | None
    left_s: float | None


class RunDocument(Document):
    """A long action; ``state`` is running, ended or failed."""

    event: str
    fields: dict[str, Any]
    state: str
    outcome: str
    began_at: str
    ended_at: str | None
    steps: list[StepDocument]
    lines: list[str]
    results: list[dict[str, Any]]


class NewestRunDocument(Document):
    """The newest run of its kind; ``run`` is null if there has been none yet."""

    run: RunDocument | None


class BegunDocument(Document):
    """A run that has started, and the action's id in the audit log."""

    run: RunDocument
    action: str


def _begins(body: type[BaseModel], *, body_optional: bool = False) -> Operation:
    return Operation(
        response=BegunDocument,
        status=HTTPStatus.ACCEPTED,
        body=body,
        body_optional=body_optional,
        problems=REFUSALS,
    )


_NEWEST: Final = Operation(response=NewestRunDocument, needs_database=False)


def current_runs() -> Runs:
    """Return the long actions of the current application."""
    found: Any = current_app.extensions[EXTENSION]
    runs: Runs = found
    return runs


def _file() -> ConfigurationFile:
    return current_state().file


@api.get("/verification")
@operations.add(_NEWEST)
def newest_verification() -> Response:
    """Return the newest verification, with its progress or its result."""
    run = current_runs().newest(VERIFICATION)
    return json_response(HTTPStatus.OK, {"run": run})


@api.post("/verification")
@operations.add(_begins(VerificationInput, body_optional=True))
def verify() -> Response:
    """Start a verification, as towpath verify does, unless one is running."""
    wanted = read_body(request, VerificationInput, optional=True)
    action = begin_verification(current_state().settings, current_runs(), wanted)
    return answer(action, HTTPStatus.ACCEPTED)


@forms.post("/verify")
def verify_form() -> Response:
    """Start a verification."""
    wanted = read_form(request, VerificationInput, ignored=CSRF_FIELD)
    action = begin_verification(current_state().settings, current_runs(), wanted)
    return redirect_back("console.verify", action)


@api.get("/sinks/change")
@operations.add(_NEWEST)
def newest_change() -> Response:
    """Return the latest change to a sink, with its progress."""
    run = current_runs().newest(SINK_CHANGE)
    return json_response(HTTPStatus.OK, {"run": run})


@api.post("/sinks")
@operations.add(_begins(AddSinkInput))
def add() -> Response:
    """Start adding a sink, as towpath sink add does, unless a change is running."""
    wanted = read_body(request, AddSinkInput)
    return answer(add_sink(_file(), current_runs(), wanted), HTTPStatus.ACCEPTED)


@api.post("/sinks/refill")
@operations.add(_begins(RefillInput))
def refill() -> Response:
    """Start reading a sink's rows again, as towpath sink refill does."""
    wanted = read_body(request, RefillInput)
    return answer(refill_sink(_file(), current_runs(), wanted), HTTPStatus.ACCEPTED)


@api.post("/sinks/rebuild")
@operations.add(_begins(RebuildInput))
def rebuild() -> Response:
    """Start rebuilding a search sink's indexes, as towpath sink rebuild does."""
    wanted = read_body(request, RebuildInput)
    return answer(rebuild_sink(_file(), current_runs(), wanted), HTTPStatus.ACCEPTED)


@api.post("/sinks/drop")
@operations.add(_begins(DropInput))
def drop() -> Response:
    """Start dropping a sink, as towpath sink drop does."""
    wanted = read_body(request, DropInput)
    check_confirmed(is_confirmed=wanted.confirm)
    return answer(drop_sink(_file(), current_runs(), wanted), HTTPStatus.ACCEPTED)


@forms.post("/sinks")
def add_form() -> Response:
    """Start adding a sink."""
    wanted = read_form(request, AddSinkInput, ignored=CSRF_FIELD)
    return redirect_back("console.sinks", add_sink(_file(), current_runs(), wanted))


@forms.post("/sinks/refill")
def refill_form() -> Response:
    """Start reading a sink's rows again."""
    wanted = read_form(request, RefillInput, ignored=CSRF_FIELD)
    return redirect_back("console.sinks", refill_sink(_file(), current_runs(), wanted))


@forms.post("/sinks/rebuild")
def rebuild_form() -> Response:
    """Start rebuilding a search sink's indexes."""
    wanted = read_form(request, RebuildInput, ignored=CSRF_FIELD)
    return redirect_back("console.sinks", rebuild_sink(_file(), current_runs(), wanted))


@forms.post("/sinks/drop")
def drop_form() -> str | Response:
    """Start dropping a sink, once the user has confirmed."""
    wanted = read_form(request, DropInput, ignored=CSRF_FIELD)
    if not wanted.confirm:
        question = drop_question(planned_drop(_file(), wanted))
        return ask_first(
            # str.capitalize() would change the names of routes to lower case.
            question[0].upper() + question[1:],
            "The sink's state and its topics are deleted; its driver keeps running.",
        )
    return redirect_back("console.sinks", drop_sink(_file(), current_runs(), wanted))
