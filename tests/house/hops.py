"""
Hops: the calls between functions of the source in one piece of work.

Comprehensions and lambdas belong to the function that contains them: Python versions
differ in whether they are calls.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Final, NamedTuple

SOURCE: Final = "/src/towpath/"


class Call(NamedTuple):
    """
    One call.

    Attributes:
        depth: The number of enclosing calls in the source.
        module: The file's path, starting with the member's name.
        function: The qualified name.
    """

    depth: int
    module: str
    function: str


class Hops(NamedTuple):
    """
    The length of a path.

    Attributes:
        modules: The number of distinct modules.
        calls: The number of calls.
        switches: The number of calls followed by a call in a different module.
    """

    modules: int
    calls: int
    switches: int


@contextmanager
def traced() -> Iterator[list[Call]]:
    """Collect this thread's calls to functions of the source during the block."""
    calls: list[Call] = []
    depth = 0

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal depth
        code = frame.f_code
        _, found, module = code.co_filename.partition(SOURCE)
        if not found or code.co_name.startswith("<"):
            return
        if event == "call":
            calls.append(Call(depth, module, code.co_qualname))
            depth += 1
        elif event == "return":
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def hops_of(calls: Sequence[Call]) -> Hops:
    """Measure a path."""
    modules = [call.module for call in calls]
    switches = sum(one != other for one, other in pairwise(modules))
    return Hops(len(set(modules)), len(modules), switches)


def within(calls: Sequence[Call], module: str) -> list[Call]:
    """Return the calls into a module, and all calls made within them."""
    found = []
    outer: int | None = None
    for call in calls:
        if outer is not None and call.depth <= outer:
            outer = None
        if outer is None and call.module == module:
            outer = call.depth
        if outer is not None:
            found.append(call)
    return found


def drawing(calls: Sequence[Call]) -> str:
    """Return a path as text, one indented line per call."""
    return "\n".join(f"{'  ' * c.depth}{c.module}:{c.function}" for c in calls)
