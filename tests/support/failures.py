"""Every failure that a module of any member declares."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from towpath.schemas.failure import TowpathError

_ROOT = Path(__file__).parents[2]


def failures() -> list[type[TowpathError]]:
    """Import every module that declares a failure and list the failures."""
    for path in sorted(_ROOT.glob("*/src/towpath/**/*.py")):
        if re.search(r"(?m)^class \w+Error\(", path.read_text(encoding="utf-8")):
            parts = path.relative_to(_ROOT).with_suffix("").parts[2:]
            importlib.import_module(".".join(parts))
    return list(_below(TowpathError))


def _below(cls: type[TowpathError]) -> Iterator[type[TowpathError]]:
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)
