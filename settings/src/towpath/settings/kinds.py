"""
Which kinds of sink there are: those that come with the platform, and installed ones.

Another package adds a kind by an entry point of the group ``towpath.sinks``, whose name
is the kind. Here only names are read: nothing of the package is imported.
"""

import enum
from importlib.metadata import entry_points
from typing import Annotated, Final

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

KINDS_GROUP: Final = "towpath.sinks"


class SinkKind(enum.StrEnum):
    """The kinds that come with the platform."""

    CACHE = "cache"
    SEARCH = "search"
    WAREHOUSE = "warehouse"
    WEBHOOK = "webhook"


_BUILT_IN: Final = frozenset(SinkKind)


def installed_kinds() -> tuple[str, ...]:
    """List the kinds that other packages add."""
    found = {point.name for point in entry_points(group=KINDS_GROUP)}
    return tuple(sorted(found - _BUILT_IN))


def is_built_in(kind: str) -> bool:
    """Tell whether a kind comes with the platform."""
    return kind in _BUILT_IN


def _known(kind: str) -> str:
    """Refuse a kind that nobody offers, and name those that there are."""
    if is_built_in(kind):
        return SinkKind(kind)
    installed = installed_kinds()
    if kind in installed:
        return kind
    kinds = ", ".join(f"'{one}'" for one in (*SinkKind, *installed))
    # As for any choice of words, so that it is told in the same way.
    choice = "enum"
    raise PydanticCustomError(choice, "Input should be {expected}", {"expected": kinds})


KindName = Annotated[str, AfterValidator(_known)]
