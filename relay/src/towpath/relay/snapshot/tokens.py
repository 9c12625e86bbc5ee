"""
Numbers of requests, and the watermarks' contents.

A watermark is known by its content alone. Each process writes its own run into it, so
that one which a dead process left in the log, streamed again, is nobody's.
"""

import itertools
import json
from typing import Final

WATERMARK_PREFIX: Final = "towpath.watermark"


class Tokens:
    """The numbers of one run of the relay."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._numbers = itertools.count(1)

    def next_id(self) -> int:
        """Return a number that no request of this run has had."""
        return next(self._numbers)

    def watermark(self, request_id: int, mark: str) -> str:
        """Return the content of a request's ``start``, ``low`` or ``high`` mark."""
        content = {"run": self._run_id, "request": request_id, "mark": mark}
        return json.dumps(content, separators=(",", ":"))
