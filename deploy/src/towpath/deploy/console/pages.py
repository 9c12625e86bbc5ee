"""
The pages of the console, rendered on the server.

======================  ==============================================================
page                    shows
======================  ==============================================================
GET /                   the topology, with rates and lags, and problems
GET /source             tables, snapshots, and a plot of the log that the slot retains
GET /sinks              each sink: lag, last batch by stage, counters, batch times
GET /verify             the newest verification: progress, differences by key
GET /dead-letters       open dead letters by key, with reasons and payloads
GET /messages           records of a topic, by key, offset or time
GET /trace              one aggregate or row, from its commit to every sink
GET /doctor             the findings of the doctor with their remedies
GET /kill               in a demo: its parts, and the recovery after each kill
GET /login, POST        the login with the console's token
POST /logout            ends the session
======================  ==============================================================

The forms that start actions are in ``action_routes``, ``run_routes`` and ``kills``.

The live part of a page is fetched again every few seconds; without scripts, a page is
not updated. Pages load nothing from other hosts.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from flask import (
    Blueprint,
    Flask,
    Response,
    current_app,
    g,
    make_response,
    redirect,
    render_template,
    request,
    url_for,
)
from werkzeug.exceptions import HTTPException

from towpath.deploy.console import (
    SAMPLE_EVERY_S,
    STALE_AFTER_S,
    PlatformState,
    action_routes,
    api,
    kills,
    messages,
    run_routes,
    runs,
)
from towpath.deploy.console.action_routes import DONE
from towpath.deploy.console.api import DeadLettersQuery, MessagesQuery, TraceQuery
from towpath.deploy.console.long_actions import (
    SINK_CHANGE,
    VERIFICATION,
    missing_folder_reason,
)
from towpath.deploy.console.security import (
    COOKIE,
    SESSION_S,
    Access,
    AuditLog,
    install_access,
)
from towpath.deploy.console.topology import (
    lag_text,
    seconds_text,
    size_text,
    tall,
    topology_of,
    wide,
)
from towpath.deploy.doctor import examine
from towpath.deploy.local.part import StateFolder
from towpath.deploy.snapshots.requests import RunningChange
from towpath.deploy.snapshots.signals import INCOMPLETE
from towpath.deploy.snapshots.view import time_text
from towpath.deploy.status import is_late
from towpath.deploy.trace.journey import Journey, state_of, waiting_for
from towpath.relay.commands.dead_letters import listed, read_parked_events
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import HaltError, TowpathError, UsageError, with_remedy
from towpath.services.plumbing.http import ProblemError, problem, read_query
from towpath.services.plumbing.openapi import install_openapi
from towpath.services.plumbing.server import LIFECYCLE, BackgroundTask
from towpath.services.plumbing.service import app_without_database

EXTENSION: Final = "towpath.console.pages"
_STAGES: Final = ("decode", "apply", "flush", "batch")
_MS: Final = 1000.0
# After a form is submitted, the page searches this many of the newest entries of the
# audit log for the outcome.
_RECENT: Final = 100
_KILLS_EVERY_S: Final = 0.5
_REFUSALS_EVERY_S: Final = 5.0

blueprint = Blueprint(
    "console", __name__, template_folder="templates", static_folder="static"
)
blueprint.register_blueprint(action_routes.forms)
blueprint.register_blueprint(run_routes.forms)
blueprint.register_blueprint(kills.forms)


class PageContext(NamedTuple):
    """The parts that pages need; stored in the application as ``EXTENSION``."""

    state: PlatformState
    access: Access


class DeadLettersPageQuery(DeadLettersQuery):
    """The page's query; ``done`` is the id of the action that a form has started."""

    done: str = ""


class StageTime(NamedTuple):
    """
    The time of one stage of a sink's last batch.

    ``share`` is its percentage of the longest stage.
    """

    name: str
    text: str
    share: int


def create_app(
    state: PlatformState, access: Access, demo: StateFolder | None = None
) -> Flask:
    """
    Create the console; no connection is opened before the first request or sample.

    Args:
        state: Reads the platform.
        access: Decides who may see the console and who may act.
        demo: The state folder of a demo, whose parts may be killed.
    """
    killable = None if demo is None else kills.Kills(demo, state, SystemClock())
    app = app_without_database("towpath-console", lambda: None)
    app.extensions[api.EXTENSION] = state
    app.extensions[EXTENSION] = PageContext(state, access)
    app.extensions[runs.EXTENSION] = runs.Runs(access.audit, SystemClock())
    app.extensions[kills.EXTENSION] = killable
    install_access(app, access)
    app.register_error_handler(UsageError, _on_usage)
    app.register_error_handler(HaltError, _on_halt)
    app.register_blueprint(api.blueprint)
    app.register_blueprint(blueprint)
    app.jinja_env.filters |= {
        "size": size_text,
        "seconds": seconds_text,
        "json": json.dumps,
        "time_left": time_text,
    }
    install_openapi(app, "Console", api.operations, pages=[blueprint.name])
    lifecycle, refused = app.extensions[LIFECYCLE], access.refused_logins
    tasks = lifecycle.tasks
    tasks.append(BackgroundTask("sampler", SAMPLE_EVERY_S, state.refresh))
    tasks.append(BackgroundTask("refused logins", _REFUSALS_EVERY_S, refused.log_due))
    lifecycle.close_callbacks.append(refused.flush)
    if killable is not None:
        watch = BackgroundTask("kills", _KILLS_EVERY_S, killable.observe)
        tasks.append(watch)
    return app


def _on_usage(error: UsageError) -> Response:
    detail = with_remedy(str(error), error.remedy)
    return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "refused", detail)


def _on_halt(error: HaltError) -> Response:
    detail = with_remedy(str(error), error.remedy)
    return problem(HTTPStatus.CONFLICT, "halted", detail)


@blueprint.context_processor
def _frame() -> dict[str, Any]:
    """Return the values that each page's frame needs."""
    context = _context()
    session = g.get("session")
    return {
        "is_demo": current_app.extensions[kills.EXTENSION] is not None,
        "is_read_only": context.access.is_read_only,
        "session": session,
        "may_act": session is not None and not context.access.is_read_only,
        "outcome": _outcome(context.access.audit, request.args.get(DONE)),
    }


def _outcome(audit: AuditLog, action: str | None) -> Mapping[str, Any] | None:
    """Return the last line of an action in the audit log, if the action is recent."""
    recent = audit.newest(_RECENT) if action else ()
    return next((line for line in recent if line.get("action") == action), None)


@blueprint.errorhandler(TowpathError)
def _on_failure(error: TowpathError) -> tuple[str, int]:
    """Show a failure as a page, with its remedy."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    if isinstance(error, ProblemError):
        status = error.status
    elif isinstance(error, UsageError):
        status = HTTPStatus.UNPROCESSABLE_ENTITY
    elif isinstance(error, HaltError):
        status = HTTPStatus.CONFLICT
    # The text of a ProblemError already has the remedy.
    remedy = "" if isinstance(error, ProblemError) else error.remedy
    return _problem(status, str(error), remedy)


@blueprint.errorhandler(HTTPException)
def _on_http(error: HTTPException) -> tuple[str, int]:
    """Show an HTTP error as a page."""
    return _problem(HTTPStatus(error.code or 500), error.description or "", "")


def _problem(status: HTTPStatus, text: str, remedy: str) -> tuple[str, int]:
    is_form = request.method == "POST"
    path = request.full_path
    if request.endpoint == "console.logout":
        # Every page has the logout form, and no page has the path to which it is sent.
        path = url_for("console.topology")
    elif is_form:
        # The first segment of any other form's path is the path of its page.
        path = f"/{request.path.split('/')[1]}"
    page = _page(
        "problem.html",
        title=status.phrase,
        text=text,
        remedy=remedy,
        path=path,
        is_form=is_form,
    )
    return page, status.value


@blueprint.get("/")
def topology() -> str:
    """Show the topology."""
    state = _context().state
    found = topology_of(state.reading.document, state.samples)
    return _live("topology.html", drawings=[wide(found), tall(found)])


@blueprint.get("/source")
def source() -> str:
    """Show the slot, the log, the tables and the snapshots."""
    reading = _context().state.reading
    return _live(
        "source.html",
        snapshots=reading.snapshots,
        snapshot_error=reading.error,
        changes_of=partial(changes_of, reading.snapshots),
        sink_names=[sink["sink"] for sink in reading.document["sinks"]],
    )


def changes_of(
    snapshots: Sequence[Mapping[str, Any]], snapshot_id: str
) -> Sequence[RunningChange]:
    """Return the possible changes to a snapshot, given the states of its tables."""
    states = {row["state"] for row in snapshots if row["snapshot_id"] == snapshot_id}
    found: list[RunningChange] = []
    if states & {"queued", "running"}:
        found.append("pause")
    if states & {"paused", "stopped", "failed", INCOMPLETE}:
        found.append("resume")
    if states & {"queued", "running", "paused"}:
        found.append("stop")
    return found


@blueprint.get("/sinks")
def sinks() -> str:
    """Show every sink."""
    reading = _context().state.reading
    found = [
        sink
        | {
            "histograms": [h for h in reading.histograms if h.sink == sink["sink"]],
            "lag_text": lag_text(sink),
            "is_late": is_late(sink),
            "stages": stage_times(sink["last_stages_ms"], sink["last_batch_ms"]),
        }
        for sink in reading.document["sinks"]
    ]
    run = run_routes.current_runs().newest(SINK_CHANGE)
    missing = _missing_folders() if g.get("session") else {}
    return _live("sinks.html", sinks=found, run=run, missing=missing)


def _missing_folders() -> dict[str, str]:
    """Return, by sink ("" for a new one), why it cannot be changed; empty if it can."""
    settings = _context().state.settings
    names = [sink.name for sink in settings.sink]
    found = {name: missing_folder_reason(settings, name) for name in names}
    return found | {"": missing_folder_reason(settings)}


def stage_times(stages_ms: Mapping[str, int], batch_ms: int) -> Sequence[StageTime]:
    """Return a batch's stages in order, each as a percentage of the longest."""
    known = dict(stages_ms)
    if batch_ms:
        known.setdefault("batch", batch_ms)
    longest = max(known.values(), default=0) or 1
    ordered = sorted(
        known, key=lambda n: (_STAGES.index(n) if n in _STAGES else len(_STAGES), n)
    )
    return [
        StageTime(
            name,
            seconds_text(known[name] / _MS),
            max(1, round(100 * known[name] / longest)),
        )
        for name in ordered
    ]


@blueprint.get("/verify")
def verify() -> str:
    """Show the newest verification."""
    return _page(
        "verify.html",
        run=run_routes.current_runs().newest(VERIFICATION),
        sink_names=[sink.name for sink in _context().state.settings.sink],
    )


@blueprint.get("/dead-letters")
def dead_letters() -> str:
    """Show open dead letters of sinks, and parked aggregates of the relay."""
    wanted = read_query(request, DeadLettersPageQuery)
    settings = _context().state.settings
    found = messages.dead_letters_of(settings, wanted.sink or None, wanted.key or None)
    is_all = not (wanted.sink or wanted.key)
    return _page(
        "dead_letters.html",
        letters=found,
        aggregates=listed(read_parked_events(settings)) if is_all else (),
        sink_names=[sink.name for sink in settings.sink],
        wanted=wanted,
    )


@blueprint.get("/messages")
def records() -> str:
    """Show records of a topic."""
    settings = _context().state.settings
    names = messages.topic_names(settings)
    if not request.args.get("topic"):
        return _page("messages.html", topics=names, wanted=None, found=None)
    wanted = read_query(request, MessagesQuery)
    found = messages.find_records(settings, wanted.record_query())
    return _page("messages.html", topics=names, wanted=wanted, found=found)


@blueprint.get("/trace")
def trace() -> str:
    """Show the path of one aggregate or row from the commit to every sink."""
    settings = _context().state.settings
    wanted = read_query(request, TraceQuery)
    tables = settings.capture.names
    if wanted.is_empty:
        return _page(
            "trace.html", journey=None, wanted=wanted, tables=tables, route_states=()
        )
    journey = api.journey_of(settings, wanted)
    return _page(
        "trace.html",
        journey=journey,
        wanted=wanted,
        tables=tables,
        route_states=route_states(journey),
    )


def route_states(journey: Journey) -> list[dict[str, Any]]:
    """Return each route of a journey, its state, and its number of waiting records."""
    return [
        {
            "sink": route.sink,
            "route": route.route,
            "state": str(state_of(route, journey)),
            "behind": len(waiting_for(route, journey)),
            "position": route.stored_position,
            "reasons": [str(each["reason"]) for each in route.dead_letters],
            "at": route.updated_at,
            "error": route.error,
        }
        for route in journey.routes
    ]


@blueprint.get("/doctor")
def doctor() -> str:
    """Show the doctor's findings."""
    if "examined" not in request.args:
        return _page("doctor.html", findings=None)
    found = [
        one.document() for one in examine(_context().state.settings, SystemClock())
    ]
    return _page("doctor.html", findings=found)


@blueprint.get("/kill")
def kill() -> str:
    """Show the parts of a demo, and the recovery after each kill."""
    found = kills.current_kills()
    return _page("kill.html", parts=found.parts(), kills=found.newest())


@blueprint.get("/login")
def login() -> str:
    """Show the login page."""
    return _page("login.html", is_wrong=False)


@blueprint.post("/login")
def enter() -> tuple[str, int] | Response:
    """Log in with the token."""
    access = _context().access
    opened = access.enter(request.form.get("token", "").strip())
    address = request.remote_addr or ""
    if opened is None:
        access.refused_logins.add(address)
        return _page("login.html", is_wrong=True), HTTPStatus.FORBIDDEN.value
    access.refused_logins.flush()
    who = f"session {opened.session.name}"
    access.audit.write("login", {"who": who, "from": address})
    response = make_response(redirect(url_for("console.topology")))
    response.set_cookie(
        *(COOKIE, opened.cookie),
        max_age=int(SESSION_S),
        httponly=True,
        samesite="Strict",
        secure=request.is_secure,
    )
    return response


@blueprint.post("/logout")
def logout() -> Response:
    """End the session."""
    _context().access.leave(request.cookies.get(COOKIE, ""))
    response = make_response(redirect(url_for("console.topology")))
    response.delete_cookie(COOKIE, samesite="Strict")
    return response


def _live(template: str, **values: Any) -> str:  # noqa: ANN401 - values of a template
    """Render a page with the newest reading."""
    state = _context().state
    reading = state.reading
    return _page(
        template,
        document=reading.document,
        read_at=reading.at.astimezone(UTC),
        is_stale=state.age_s > STALE_AFTER_S,
        **values,
    )


def _page(template: str, **values: Any) -> str:  # noqa: ANN401 - values of a template
    return render_template(template, **values)


def _context() -> PageContext:
    context: PageContext = current_app.extensions[EXTENSION]
    return context
