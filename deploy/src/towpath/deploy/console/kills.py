"""
The Kill page of a demo: its parts, the kills, and the recovery after each kill.

Only a demo passes its state folder to its console: the demo owns the processes, and its
supervisor restarts them. The console of any other platform kills nothing.

============================  ========================================================
route                         response or action
============================  ========================================================
GET /kill                     the parts, and each kill with the recovery after it
GET /api/kills                the same as a document
POST /kill, POST /api/kills   kills a part, as kill -9 does
============================  ========================================================
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import psutil
from flask import Blueprint, Response, abort, current_app, request
from pydantic import Field

from towpath.deploy.console import PlatformState
from towpath.deploy.console.action_routes import REFUSALS, answer, redirect_back
from towpath.deploy.console.actions import Action, ActionResult
from towpath.deploy.console.api import blueprint as api
from towpath.deploy.console.api import operations
from towpath.deploy.console.security import CSRF_FIELD
from towpath.deploy.console.topology import topology_of
from towpath.deploy.local.part import StateFolder
from towpath.deploy.local.process import find
from towpath.schemas.clock import Clock
from towpath.services.plumbing.http import (
    ConflictError,
    Input,
    InvalidInputError,
    json_response,
    read_body,
    read_form,
)
from towpath.services.plumbing.openapi import Document, Operation

EXTENSION: Final = "towpath.console.kills"
# Without the console there is no page, and the demo itself stops the load.
_SPARED: Final = frozenset({"console", "load"})
# The number of kills that are kept, newest first.
_KEPT: Final = 20

forms = Blueprint("kills", __name__)


class PartProcess(NamedTuple):
    """A part of the demo; ``pid`` is None while it is not running."""

    name: str
    pid: int | None


class Kill(NamedTuple):
    """
    A kill and the recovery that followed it.

    Attributes:
        part: The killed part.
        pid: The id of the process that was killed.
        killed_at: The time of the kill.
        started_at: The start time of the part's next process; None if there is none
            yet.
        normal_at: The time of the first reading after the restart that shows no bad
            part; None if there is none yet.
    """

    part: str
    pid: int
    killed_at: datetime
    started_at: datetime | None = None
    normal_at: datetime | None = None

    def seconds_to(self, then: datetime | None) -> float | None:
        """Return the seconds from the kill to a time."""
        if then is None:
            return None
        return round(max(0.0, (then - self.killed_at).total_seconds()), 1)

    def document(self) -> dict[str, Any]:
        """Return the kill as a document."""
        return {
            "part": self.part,
            "pid": self.pid,
            "killed_at": self.killed_at.isoformat(),
            "started_after_s": self.seconds_to(self.started_at),
            "normal_after_s": self.seconds_to(self.normal_at),
        }


class Kills:
    """The parts and the newest kills of a demo; thread-safe."""

    def __init__(self, folder: StateFolder, state: PlatformState, clock: Clock) -> None:
        """
        Create the list without kills; the folder is not read yet.

        Args:
            folder: The demo's state folder, with a process file of each part.
            state: The newest reading of the platform.
            clock: Provides the time of a kill.
        """
        self._folder = folder
        self._state = state
        self._clock = clock
        self._newest: list[Kill] = []
        self._lock = threading.Lock()

    def parts(self) -> Sequence[PartProcess]:
        """Return the parts that may be killed, sorted by name."""
        names = (name for name in self._folder.parts() if name not in _SPARED)
        return [PartProcess(name, self._pid(name)) for name in names]

    def kill(self, name: str) -> ActionResult:
        """
        Kill a part's process, as ``kill -9`` does.

        Raises:
            InvalidInputError: There is no such part.
            ConflictError: The part is not running.
        """
        if name not in [part.name for part in self.parts()]:
            message = f"The demo has no part {name!r} that may be killed."
            raise InvalidInputError(message)
        process = find(self._folder.process_file(name))
        message = f"{name} is not running: wait until it has been restarted."
        if process is None:
            raise ConflictError(message)
        try:
            process.kill()
        except psutil.NoSuchProcess as error:
            raise ConflictError(message) from error
        kill = Kill(name, process.pid, self._clock.now())
        with self._lock:
            self._newest = [kill, *self._newest][:_KEPT]
        return ActionResult(
            f"killed {name}, process {process.pid}", {"kill": kill.document()}
        )

    def observe(self) -> None:
        """Record the recoveries that the newest reading of the platform shows."""
        reading = self._state.reading
        found = topology_of(reading.document, self._state.samples)
        is_normal = not any(part.state == "bad" for part in found.parts)
        with self._lock:
            self._newest = [
                self._with_recovery(kill, reading.at if is_normal else None)
                for kill in self._newest
            ]

    def newest(self) -> Sequence[Kill]:
        """Return the kills, newest first."""
        with self._lock:
            return list(self._newest)

    def _with_recovery(self, kill: Kill, normal_at: datetime | None) -> Kill:
        if kill.started_at is None:
            process = find(self._folder.process_file(kill.part))
            if process is not None and process.pid != kill.pid:
                # The process may end before its start time is read.
                with suppress(psutil.NoSuchProcess):
                    began = datetime.fromtimestamp(process.create_time(), UTC)
                    kill = kill._replace(started_at=began)
        if (
            kill.normal_at is None
            and normal_at is not None
            and kill.started_at is not None
            and normal_at > max(kill.started_at, kill.killed_at)
        ):
            kill = kill._replace(normal_at=normal_at)
        return kill

    def _pid(self, name: str) -> int | None:
        process = find(self._folder.process_file(name))
        return None if process is None else process.pid


class KillInput(Input):
    """The part to kill."""

    part: str = Field(min_length=1, max_length=64)


class KillablePartDocument(Document):
    """A part of the demo; ``pid`` is null while it is not running."""

    name: str
    pid: int | None


class KillDocument(Document):
    """A kill, with the seconds until its part restarted and until no part was bad."""

    part: str
    pid: int
    killed_at: str
    started_after_s: float | None
    normal_after_s: float | None


class KillsDocument(Document):
    """The parts of the demo, and the kills, newest first."""

    parts: list[KillablePartDocument]
    kills: list[KillDocument]


class KilledDocument(Document):
    """The kill, and the action's id in the audit log."""

    kill: KillDocument
    action: str


def current_kills() -> Kills:
    """Return the kills of the current application; respond with 404 outside a demo."""
    found: Kills | None = current_app.extensions[EXTENSION]
    if found is None:
        abort(HTTPStatus.NOT_FOUND)
    return found


@api.get("/kills")
@operations.add(Operation(response=KillsDocument, needs_database=False))
def read_kills() -> Response:
    """Return a demo's parts, and each kill with the recovery after it."""
    kills = current_kills()
    document = {
        "parts": [part._asdict() for part in kills.parts()],
        "kills": [kill.document() for kill in kills.newest()],
    }
    return json_response(HTTPStatus.OK, document)


@api.post("/kills")
@operations.add(Operation(response=KilledDocument, body=KillInput, problems=REFUSALS))
def kill() -> Response:
    """Kill a part of a demo."""
    return answer(_killing(current_kills(), read_body(request, KillInput)))


@forms.post("/kill")
def kill_form() -> Response:
    """Kill a part of a demo, and return to the page."""
    wanted = read_form(request, KillInput, ignored=CSRF_FIELD)
    return redirect_back("console.kill", _killing(current_kills(), wanted))


def _killing(kills: Kills, wanted: KillInput) -> Action:
    part = wanted.part
    return Action("kill", {"part": part}, lambda: kills.kill(part))
