"""
What became of each item of a bulk call. Pure.

The call as a whole answers 200 whatever became of its items, so each one is looked at:

- 200, 201: written;
- 409: the index has a newer version; that is success, and counted as stale;
- 404: the alias is gone; 429 and 5xx: try again;
- whatever its status, a block or a closed index says nothing of the document: wait;
- 401, 403: the sink may not write here at all;
- any other: this document will never do; it is refused with its reason.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from towpath.sinks.errors import TargetUnavailableError
from towpath.sinks.search.client import BLOCKS


class Verdict(enum.Enum):
    """What to do about one item."""

    WRITTEN = "written"
    STALE = "stale"
    AGAIN = "again"
    GONE = "gone"
    BLOCKED = "blocked"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"


class Outcome(NamedTuple):
    """The verdict on one item, with the index's reason where there is one."""

    verdict: Verdict
    reason: str = ""


_WRITTEN: Final = Outcome(Verdict.WRITTEN)

_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_ERROR: Final = 400
_RIGHTS: Final = frozenset({401, 403})

# From here on the index's reasons quote the document: its id, its values.
_QUOTES: Final = (" in document with id", ". Preview of field's value")


def outcomes(answer: Mapping[str, Any], count: int) -> list[Outcome]:
    """
    Return one outcome per item, in the order of the call.

    Args:
        answer: The index's answer.
        count: How many items the call had.

    Raises:
        TargetUnavailableError: The answer tells of fewer, or more: write all again.
    """
    items: Sequence[Mapping[str, Any]] = answer.get("items", [])
    if len(items) != count:
        message = f"the search index told of {len(items)} of {count} documents"
        raise TargetUnavailableError(message)
    if answer.get("errors") is False:
        return [_WRITTEN] * count
    return [_outcome(next(iter(item.values()))) for item in items]


def _outcome(item: Mapping[str, Any]) -> Outcome:
    status = item["status"]
    if status < _ERROR:
        return _WRITTEN
    if status == _CONFLICT:
        return Outcome(Verdict.STALE)
    error = item.get("error", {})
    kind = error.get("type", str(status))
    reason = f"{kind}: {_unquoted(error.get('reason', ''))}"
    return Outcome(_failure(status, kind), reason)


def _failure(status: int, kind: str) -> Verdict:
    if kind in BLOCKS:
        return Verdict.BLOCKED
    if status == _NOT_FOUND:
        return Verdict.GONE
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        return Verdict.AGAIN
    return Verdict.FORBIDDEN if status in _RIGHTS else Verdict.REFUSED


def _unquoted(reason: str) -> str:
    """Cut a reason before it quotes the document: it goes to the log."""
    for quote in _QUOTES:
        reason = reason.partition(quote)[0]
    return reason
