"""
Errors of waiting for a sink to apply a commit.

::

    TowpathError
    ├── UnavailableError
    │   └── NotAppliedError          the sink has not applied the commit in time
    └── UsageError
        └── UnknownLsnError          the LSN is outside of the followed history
"""

from typing import ClassVar

from towpath.schemas.failure import UnavailableError, UsageError


class NotAppliedError(UnavailableError):
    """A sink has not applied a commit in the given time."""

    remedy = "Wait longer, or find out what lags: towpath status."
    exit_code: ClassVar[int] = 1


class UnknownLsnError(UsageError):
    """An LSN is outside of the history of the log that the relay follows."""

    remedy = (
        "Take the LSN from the response to the write, after the write was committed."
    )
