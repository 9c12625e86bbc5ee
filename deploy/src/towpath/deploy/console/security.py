"""
The console's access rules, its sessions, and the log of logins and actions.

Without a token the console is read-only. On loopback, reading needs no login, and the
request must name a loopback host, so that a page of another site cannot read the
console through a host name that resolves to this machine (DNS rebinding). On any other
address, everything except health checks, the login page and static files needs the
token: as ``Authorization: Bearer`` in the API, or through a login in the browser.

A browser's session is a cookie that other sites' requests do not carry
(``SameSite=Strict``). Each of its requests that changes something must come from the
console's own pages, according to ``Origin`` and ``Sec-Fetch-Site``, and must repeat the
session's CSRF token.

The audit log has two lines per action: one that is written before the action starts,
and one with the outcome, written before the response. If a crash interrupts an action,
only its first line is in the log.
"""

import hmac
import json
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from flask import (
    Flask,
    Request,
    Response,
    current_app,
    g,
    make_response,
    redirect,
    request,
    url_for,
)
from werkzeug.exceptions import Forbidden

from towpath.deploy.local.ports import is_loopback
from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError, UnavailableError
from towpath.services.plumbing.http import ProblemError, protect_page

COOKIE: Final = "towpath_console"
# The field of a form that repeats the session's CSRF token.
CSRF_FIELD: Final = "csrf_token"
_EXTENSION: Final = "towpath.console.access"
SESSION_S: Final = 12 * 3600.0
_MAX_SESSIONS: Final = 100
# Someone who guesses tokens causes only one line per interval.
_REFUSAL_EVERY_S: Final = 60.0
# The log grows without limit, so only its end is read. The longest line lists the keys
# of one request.
_READ_BYTES: Final = 4 * 1024 * 1024
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN: Final = frozenset({"console.static", "console.login", "console.enter"})


class AuditLogError(UnavailableError):
    """The audit log cannot be written."""

    remedy: ClassVar[str] = (
        "Free disk space, or correct the state folder's permissions."
    )


class LoginNeededError(ProblemError):
    """The request needs the token."""

    status = HTTPStatus.UNAUTHORIZED
    slug = "login-needed"


class ReadOnlyError(ProblemError):
    """The console was started without a token, and changes nothing."""

    status = HTTPStatus.FORBIDDEN
    slug = "read-only"


class ForeignRequestError(ProblemError):
    """The request was not made by a page of the console."""

    status = HTTPStatus.FORBIDDEN
    slug = "foreign-request"


class LoginSession(NamedTuple):
    """
    A browser's login.

    Attributes:
        name: The session's name in the audit log.
        csrf_token: The token that the session's forms repeat.
        ends_at_s: The time at which the session ends.
    """

    name: str
    csrf_token: str
    ends_at_s: float


class OpenedSession(NamedTuple):
    """A new session, and the cookie of its browser."""

    cookie: str
    session: LoginSession


AnyResult = TypeVar("AnyResult")


class RecordedAction(NamedTuple, Generic[AnyResult]):
    """The id of an action in the audit log, and its result."""

    id: str
    result: AnyResult


class AuditLog:
    """The log of logins and actions: JSON lines, each durable before the response."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.Lock()

    def write(self, event: str, fields: Mapping[str, Any]) -> None:
        """
        Append one line, durably.

        Raises:
            AuditLogError: The log cannot be written.
        """
        # ASCII has no other line separators, and no characters that a crash can split.
        at = self._clock.now().isoformat()
        line = json.dumps({"at": at, "event": event, **fields})
        try:
            with self._lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a+b") as file:
                    file.write(_missing_line_break(file) + line.encode() + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            message = f"{self.path}: {error.strerror}"
            raise AuditLogError(message) from error

    def record(
        self,
        event: str,
        fields: Mapping[str, Any],
        act: Callable[[], AnyResult],
        outcome_of: Callable[[AnyResult], str],
    ) -> RecordedAction[AnyResult]:
        """
        Carry out an action, and log it before and after.

        Args:
            event: The action's name.
            fields: The actor, and the objects and options of the action.
            act: Carries out the action.
            outcome_of: Returns the outcome as text.

        Raises:
            AuditLogError: The log cannot be written. If the first line cannot be
                written, nothing was done.
            TowpathError: The action was refused or failed; the log has the reason.
        """
        action = secrets.token_hex(4)
        named = {"action": action, **fields}
        self.write(event, named | {"outcome": "begun"})
        try:
            done = act()
        except TowpathError as error:
            self.write(event, named | {"outcome": f"refused: {error}"})
            raise
        except Exception as error:
            self.write(event, named | {"outcome": f"failed: {type(error).__name__}"})
            raise
        self.write(event, named | {"outcome": outcome_of(done)})
        return RecordedAction(action, done)

    def newest(self, count: int) -> list[dict[str, Any]]:
        """
        Return the newest entries, newest first, without truncated lines.

        Only the last few megabytes of the log are read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _READ_BYTES))
                lines = file.read().rstrip(b"\n").split(b"\n")
        except FileNotFoundError:
            return []
        entries = []
        for line in reversed(lines[-count:]):
            with suppress(ValueError):
                entries.append(json.loads(line))
        return entries


def _missing_line_break(file: IO[bytes]) -> bytes:
    """Return a line break if a crash has truncated the last line, else nothing."""
    if not file.seek(0, os.SEEK_END):
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


class RefusedLogins:
    """Counts the refused logins, and logs them in at most one line per minute."""

    def __init__(self, audit: AuditLog, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._address = ""
        self._due_s = float("-inf")

    def add(self, address: str) -> None:
        """
        Count a refused login; once a minute, log those that have not been logged yet.

        The line has their number, and the address of the last one.

        Raises:
            AuditLogError: The log cannot be written; the count is kept.
        """
        with self._lock:
            self._count += 1
            self._address = address
            self._write_if_due()

    def log_due(self) -> None:
        """
        Log the refused logins that have not been logged yet, at most once a minute.

        Raises:
            AuditLogError: The log cannot be written; the count is kept.
        """
        with self._lock:
            self._write_if_due()

    def flush(self) -> None:
        """
        Log the refused logins that have not been logged yet.

        Raises:
            AuditLogError: The log cannot be written; the count is kept.
        """
        with self._lock:
            self._write()

    def _write_if_due(self) -> None:
        if self._clock.monotonic_s() >= self._due_s:
            self._write()

    def _write(self) -> None:
        if not self._count:
            return
        fields = {"from": self._address, "count": self._count}
        self._audit.write("login refused", fields)
        self._count = 0
        self._due_s = self._clock.monotonic_s() + _REFUSAL_EVERY_S


class Access:
    """The access rules of one console, and its sessions."""

    def __init__(
        self, token: str, audit: AuditLog, clock: Clock, *, is_local: bool
    ) -> None:
        self._token = token
        self._clock = clock
        self._sessions: dict[str, LoginSession] = {}
        self._lock = threading.Lock()
        self.audit = audit
        self.refused_logins = RefusedLogins(audit, clock)
        self.is_local = is_local

    @property
    def is_read_only(self) -> bool:
        """Whether the console has no actions."""
        return not self._token

    def enter(self, token: str) -> OpenedSession | None:
        """Open a session, or return None if the token is wrong."""
        if not self._is_token(token):
            return None
        cookie = secrets.token_urlsafe(32)
        now_s = self._clock.now().timestamp()
        with self._lock:
            live = [(c, s) for c, s in self._sessions.items() if s.ends_at_s > now_s]
            self._sessions = dict(live[-_MAX_SESSIONS + 1 :])
            session = LoginSession(
                secrets.token_hex(4), secrets.token_urlsafe(32), now_s + SESSION_S
            )
            self._sessions[cookie] = session
        return OpenedSession(cookie, session)

    def leave(self, cookie: str) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(cookie, None)

    def session_of(self, incoming: Request) -> LoginSession | None:
        """Return the session of a request, if it has one that has not ended."""
        session = self._sessions.get(incoming.cookies.get(COOKIE, ""))
        is_live = session and session.ends_at_s > self._clock.now().timestamp()
        return session if is_live else None

    def check(self, incoming: Request) -> None:
        """
        Check a request, and store its session for the page.

        Raises:
            ProblemError: The request needs a login, or is not allowed.
        """
        if self.is_local and not is_loopback(_host_name(incoming)):
            message = "Address the console as localhost, or by a loopback address."
            raise ForeignRequestError(message)
        g.session = session = self.session_of(incoming)
        scheme, _, token_text = incoming.headers.get("Authorization", "").partition(" ")
        has_token = scheme.lower() == "bearer" and self._is_token(token_text.strip())
        g.who = "token" if has_token else f"session {session.name}" if session else ""
        if incoming.method not in _SAFE:
            self._check_change(incoming, session, has_token=has_token)
        elif not self.is_local and not g.who and incoming.endpoint not in _OPEN:
            message = "Log in, or send the token as Authorization: Bearer."
            raise LoginNeededError(message)

    def _check_change(
        self, incoming: Request, session: LoginSession | None, *, has_token: bool
    ) -> None:
        if self.is_read_only:
            message = "This console is read-only: start it with --token-file."
            raise ReadOnlyError(message)
        if has_token:
            return
        if _is_foreign(incoming):
            message = "This form was sent from a page of another site."
            raise ForeignRequestError(message)
        if incoming.endpoint == "console.enter":
            return
        if session is None:
            message = "Log in, or send the token as Authorization: Bearer."
            raise LoginNeededError(message)
        token = incoming.headers.get("X-Towpath-Word")
        token = token or incoming.form.get(CSRF_FIELD, "")
        if not hmac.compare_digest(token.encode(), session.csrf_token.encode()):
            message = "The form does not belong to this session: load the page again."
            raise ForeignRequestError(message)

    def _is_token(self, token_text: str) -> bool:
        is_equal = hmac.compare_digest(token_text.encode(), self._token.encode())
        return bool(self._token) and is_equal


def _is_foreign(incoming: Request) -> bool:
    """Return whether a browser names another site as the origin of a request."""
    origin = incoming.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != incoming.host:
        return True
    return incoming.headers.get("Sec-Fetch-Site", "none") not in {"same-origin", "none"}


def _host_name(incoming: Request) -> str:
    host = incoming.host
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def install_access(app: Flask, access: Access) -> None:
    """Check all requests except health checks; add security headers to responses."""
    app.extensions[_EXTENSION] = access
    app.before_request(_check)
    app.after_request(_with_policy)


def current_access() -> Access:
    """Return the access rules of the current application."""
    access: Access = current_app.extensions[_EXTENSION]
    return access


def actor() -> dict[str, Any]:
    """Return the login and the address of the current request, for the audit log."""
    return {"who": g.who, "from": request.remote_addr}


def _check() -> Response | None:
    """Check a request; redirect a page that needs a login to the login page."""
    access = current_access()
    if request.blueprint == "health":
        return None
    try:
        access.check(request)
    except ProblemError as error:
        if "console" not in request.blueprints:
            raise
        if isinstance(error, LoginNeededError) and request.method in _SAFE:
            return make_response(redirect(url_for("console.login")))
        raise Forbidden(description=error.detail) from error
    return None


def _with_policy(response: Response) -> Response:
    return protect_page(response, is_static=request.endpoint == "console.static")
