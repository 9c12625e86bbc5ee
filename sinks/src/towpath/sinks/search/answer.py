"""
What became of each item of a bulk call. Pure.

The call as a whole answers 200 whatever became of its items, so each one is looked at:

- 200, 201: written;
- 409: the index has a newer version; that is success, and counted as stale;
- 404: the alias is gone; 429 and 5xx: try again;
- any other: this document will never do; it is refused with its reason.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple


class Verdict(enum.Enum):
    """What to do about one item."""

    WRITTEN = "written"
    STALE = "stale"
    AGAIN = "again"
    GONE = "gone"
    REFUSED = "refused"


class Outcome(NamedTuple):
    """The verdict on one item, with the index's reason where there is one."""

    verdict: Verdict
    reason: str = ""


# Only these parts of the answer are asked for: it is a tenth of the whole.
FILTER_PATH: Final = "items.*.status,items.*.error.type,items.*.error.reason"

_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500
_ERROR: Final = 400

# From here on the index's reasons quote the document: its id, its values.
_QUOTES: Final = (" in document with id", ". Preview of field's value")


def outcomes(answer: Mapping[str, Any]) -> list[Outcome]:
    """Return one outcome per item, in the order of the call."""
    items: Sequence[Mapping[str, Any]] = answer.get("items", [])
    return [_outcome(next(iter(item.values()))) for item in items]


def _outcome(item: Mapping[str, Any]) -> Outcome:
    status = item["status"]
    if status < _ERROR:
        return Outcome(Verdict.WRITTEN)
    if status == _CONFLICT:
        return Outcome(Verdict.STALE)
    error = item.get("error", {})
    reason = f"{error.get('type', status)}: {_unquoted(error.get('reason', ''))}"
    if status == _NOT_FOUND:
        return Outcome(Verdict.GONE, reason)
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        return Outcome(Verdict.AGAIN, reason)
    return Outcome(Verdict.REFUSED, reason)


def _unquoted(reason: str) -> str:
    """Cut a reason before it quotes the document: it goes to the log."""
    for quote in _QUOTES:
        reason = reason.partition(quote)[0]
    return reason
