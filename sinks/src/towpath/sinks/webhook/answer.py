"""
What a receiver's answer means. Pure.

=============  =========================================================================
2xx            taken
409            known already, or something newer is: as good as taken
428            a partial change without its row: its key is read anew
408 425 429    later; as long as Retry-After says
5xx            later, if it has Retry-After; without it, not now
3xx 401 403    webhooks as such are not taken: the address or the secret is not as it
410            must be, or nobody wants them any more; nothing is set aside
other 4xx      this change will never be taken
=============  =========================================================================
"""

import enum
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from towpath.sinks.errors import (
    TargetBusyError,
    TargetUnavailableError,
    WebhookRefusedError,
)

# A receiver that names no time is asked again after this.
_PAUSE_S: Final = 1.0
# Nobody gets a sink to stand still for longer by one header.
_LONGEST_PAUSE_S: Final = 300.0
_REASON_CHARACTERS: Final = 200

_KNOWN: Final = 409
_ABSENT: Final = 428
_BUSY: Final = frozenset({408, 425, 429})
_UNWANTED: Final = frozenset({401, 403, 410})


class Outcome(enum.Enum):
    """What a receiver did with a change."""

    TAKEN = "taken"
    KNOWN = "known"
    ABSENT = "absent"
    REFUSED = "refused"
    LATER = "later"


class Verdict(NamedTuple):
    """An outcome, with the receiver's own words."""

    outcome: Outcome
    reason: str = ""


def judge(status: int, headers: Mapping[str, str], text: str, now: datetime) -> Verdict:
    """
    Read an answer.

    Raises:
        TargetBusyError: The receiver asks for a pause.
        TargetUnavailableError: The receiver has a failure of its own.
        WebhookRefusedError: It takes no webhooks, whatever they say.
    """
    reason = f"the receiver answers {status}"
    if words := " ".join(text.split())[:_REASON_CHARACTERS]:
        reason += f": {words}"
    if 200 <= status < 300:  # noqa: PLR2004 - 2xx
        return Verdict(Outcome.TAKEN)
    if status in _UNWANTED or 300 <= status < 400:  # noqa: PLR2004 - 3xx
        raise WebhookRefusedError(reason)
    pause_s = _retry_after_s(headers.get("retry-after", ""), now)
    if status in _BUSY or (pause_s is not None and status >= 500):  # noqa: PLR2004 - 5xx
        given_s = _PAUSE_S if pause_s is None else pause_s
        raise TargetBusyError(reason, retry_after_s=given_s)
    if not 400 <= status < 500:  # noqa: PLR2004 - 4xx
        raise TargetUnavailableError(reason)
    return Verdict(_OUTCOMES.get(status, Outcome.REFUSED), reason)


_OUTCOMES: Final = {_KNOWN: Outcome.KNOWN, _ABSENT: Outcome.ABSENT}


def _retry_after_s(text: str, now: datetime) -> float | None:
    """Read Retry-After: seconds, or a date; nothing if it is neither."""
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_PAUSE_S)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    aware = until if until.tzinfo else until.replace(tzinfo=UTC)
    return min(max((aware - now).total_seconds(), 0.0), _LONGEST_PAUSE_S)
