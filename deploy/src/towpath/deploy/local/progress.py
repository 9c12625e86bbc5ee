"""
Whether a part that does not serve yet is getting there.

After a crash a part reads what it wrote: a broker its segments, a database its log.
That takes as long as there is much of it, so no fixed time fits. What can be seen from
outside is that its log grows and that it reads.
"""

import contextlib
from typing import Final

from towpath.deploy.local import process
from towpath.deploy.local.folders import StateFolder
from towpath.deploy.local.part import Part
from towpath.schemas.clock import Deadline, Patience, SystemClock

# A part that shows nothing for this long hangs.
_STUCK_AFTER_S: Final = 10.0
# Less is what answering probes reads, and idle housekeeping.
_COUNTED_BYTES: Final = 1024 * 1024


class Recovery:
    """The time that a part has for its recovery, from the start of its process."""

    def __init__(self, part: Part, state: StateFolder) -> None:
        clock = SystemClock()
        self._log = state.log(part.name)
        self._file = state.process_file(part.name)
        self._found = process.find(self._file)
        age_s = 0.0
        if self._found is not None:
            age_s = clock.now().timestamp() - self._found.create_time()
        self._deadline = Deadline(clock, part.recovers_within_s - age_s)
        self._patience = Patience(clock, _STUCK_AFTER_S)

    def goes_on(self) -> bool:
        """Tell whether the part has made progress lately, within its time."""
        if self._found is None or self._deadline.passed():
            return False
        if process.find(self._file) != self._found:
            return False
        # Bytes of log, and mebibytes read: what grows while it recovers.
        done = process.read_bytes(self._found) // _COUNTED_BYTES
        with contextlib.suppress(OSError):
            done += self._log.stat().st_size
        return not self._patience.is_over(-done)
