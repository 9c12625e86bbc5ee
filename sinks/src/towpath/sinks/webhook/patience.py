"""
When a change is given up that a receiver fails at, again and again.

A receiver that is down fails at everything, and nothing of that is given up, however
long it takes. So three things are asked for: so many attempts, over so long a time, and
then a *proof* that the receiver is well: the last request that it took is told again,
which the guard of every receiver makes harmless, and it takes that.

The proof is kept in a file, because the process that finds nothing but the bad change
in its first batch has no other.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import structlog

from towpath.schemas.clock import Clock
from towpath.schemas.failure import TowpathError
from towpath.settings.webhook import WebhookOptions
from towpath.sinks.progress import replace_file
from towpath.sinks.webhook.answer import Outcome, Verdict
from towpath.sinks.webhook.client import Client
from towpath.sinks.webhook.payload import Request

_log = structlog.get_logger("towpath.sinks.webhook")


@dataclass(frozen=True, slots=True)
class _Failing:
    """A change that the receiver failed at."""

    since_s: float
    attempts: int = 0


class Patience:
    """Counts what a receiver fails at, within one batch."""

    def __init__(self, options: WebhookOptions, clock: Clock) -> None:
        self._attempts = options.give_up_attempts
        self._after_s = options.give_up_after_s
        self._clock = clock
        self._failing: dict[str, _Failing] = {}

    @property
    def failing(self) -> frozenset[str]:
        """The changes that failed before."""
        return frozenset(self._failing)

    def forget(self) -> None:
        """Begin with another batch."""
        self._failing.clear()

    def worn_out(self, failed: Iterable[str]) -> list[str]:
        """Count an attempt that failed; return what has been tried for long enough."""
        now_s = self._clock.monotonic_s()
        over = []
        for change_id in failed:
            known = self._failing.get(change_id, _Failing(now_s))
            known = replace(known, attempts=known.attempts + 1)
            self._failing[change_id] = known
            is_long = now_s - known.since_s >= self._after_s
            if is_long and known.attempts >= self._attempts:
                over.append(change_id)
        return over

    def verdicts(
        self, over: Iterable[str], why: Mapping[str, str]
    ) -> dict[str, Verdict]:
        """Give changes up, with the receiver's last words."""
        now_s = self._clock.monotonic_s()
        given_up = {}
        for change_id in over:
            failing = self._failing[change_id]
            reason = (
                f"{why[change_id]}; given up after {failing.attempts} attempts in "
                f"{now_s - failing.since_s:.0f} s, while the receiver takes others"
            )
            given_up[change_id] = Verdict(Outcome.REFUSED, reason)
        _log.warning("changes that a receiver fails at given up", changes=len(given_up))
        return given_up


class Proof:
    """The last request that a receiver took."""

    def __init__(self, file: Path | None) -> None:
        """Describe where it is kept; without a file a restart forgets it."""
        self._file = file
        self._last: Request | None = None
        self._is_kept = True

    def recall(self) -> None:
        """Read what was kept."""
        if self._file is None or self._last is not None:
            return
        try:
            told = orjson.loads(self._file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return
        self._last = Request(told["id"], {}, told["body"].encode())

    def take(self, request: Request | None) -> None:
        """Take note of a request that was taken."""
        if request is not None:
            self._last, self._is_kept = request, False

    def keep(self) -> None:
        """Keep it for the next process."""
        if self._file is None or self._last is None or self._is_kept:
            return
        told = {"id": self._last.id, "body": self._last.body.decode()}
        replace_file(self._file, orjson.dumps(told))
        self._is_kept = True

    def is_given(self, client: Client) -> bool:
        """Tell whether the receiver is well: it takes what it took before."""
        if self._last is None:
            return False
        try:
            return client.post(self._last).outcome in {Outcome.TAKEN, Outcome.KNOWN}
        except TowpathError:
            return False
