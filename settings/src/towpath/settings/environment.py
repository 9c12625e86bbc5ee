"""
Environment variables that override keys of the file, at any depth.

``TOWPATH_<SECTION>__<KEY>`` overrides a key (``TOWPATH_RELAY__OUTBOX__TOPIC``). The one
source needs no index (``TOWPATH_SOURCE__DSN``); a sink is found by its name
(``TOWPATH_SINK__CACHE__URL``, dashes become underscores). Plain values are used as they
are; lists and tables are written as TOML or JSON. A variable that ends in ``_FILE``
names a file with the value. In Kafka's client settings underscores replace dots
(``TOWPATH_KAFKA__CLIENT__SASL_PASSWORD``). A name without ``__`` is not an override.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from towpath.settings.model import Settings
from towpath.settings.secrets import masked
from towpath.settings.section import (
    KeyPath,
    annotation_at,
    is_list_of_sections,
    is_structured,
)

_PREFIX: Final = "TOWPATH_"
_SEPARATOR: Final = "__"
_FILE_SUFFIX: Final = "_FILE"
_CLIENT: Final = ["kafka", "client"]


class Overlay(NamedTuple):
    """
    The overrides that were applied.

    Attributes:
        mistakes: The variables that could not be applied, with reasons.
        variables: The variables that override keys, by the keys' paths.
        sections: For each section that the file lacks, by its path: the first variable
            that overrides one of its keys.
    """

    mistakes: list[str]
    variables: dict[KeyPath, str]
    sections: dict[KeyPath, str]


class _RefusedError(Exception):
    """A variable that cannot be applied; the text is the reason."""


def lay_over(document: dict[str, Any], environ: Mapping[str, str]) -> Overlay:
    """Apply every override to the document."""
    overlay = Overlay([], {}, {})
    for variable, text in sorted(environ.items()):
        if not is_override(variable):
            continue
        path = variable.removeprefix(_PREFIX).lower().split(_SEPARATOR)
        try:
            place, created = _put(document, path, variable, text)
        except _RefusedError as refused:
            overlay.mistakes.append(f"{variable}: {refused}")
            continue
        overlay.variables[place] = variable
        for section in created:
            overlay.sections.setdefault(section, variable)
    return overlay


def is_override(variable: str) -> bool:
    """Return whether a variable's name makes it an override."""
    return variable.startswith(_PREFIX) and _SEPARATOR in variable


def variable_for(path: tuple[str, ...]) -> str:
    """Name the variable that overrides a key."""
    return _PREFIX + _SEPARATOR.join(path).upper()


def _put(
    document: dict[str, Any], path: list[str], variable: str, text: str
) -> tuple[KeyPath, list[KeyPath]]:
    """Set a value; return its path, and those of the sections that it created."""
    if variable.endswith(_FILE_SUFFIX) and not _is_key(path):
        path = [*path[:-1], path[-1].removesuffix(_FILE_SUFFIX.lower())]
        text = _read(text)
    if path[:-1] == _CLIENT:
        # A shell variable's name has no dots, and no client setting has an underscore.
        path = [*path[:-1], path[-1].replace("_", ".")]
    created: list[KeyPath] = []
    section, place = _section(document, path, created)
    where = (*place, path[-1])
    section[path[-1]] = _value(where, text)
    return where, created


def _is_key(path: list[str]) -> bool:
    return annotation_at(Settings, tuple(path)) is not None


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        message = f"{name}: {reason}"
        raise _RefusedError(message) from error


def _section(
    document: dict[str, Any], path: list[str], created: list[KeyPath]
) -> tuple[dict[str, Any], KeyPath]:
    """
    Return the table that holds a path's last step, and that table's own path.

    Missing tables are created, and their paths are added to ``created``.
    """
    here: Any = document
    place: list[int | str] = []
    steps = list(path[:-1])
    while steps:
        step = steps.pop(0)
        if step not in here and is_list_of_sections(Settings, (*place, step)):
            names = [one for one in (*place, step) if isinstance(one, str)]
            message = f"there is no [[{'.'.join(names)}]] in the file"
            raise _RefusedError(message)
        place.append(step)
        if step not in here:
            created.append(tuple(place))
        here = here.setdefault(step, {})
        if isinstance(here, list):
            index, is_named = _element(here, steps[0] if steps else "")
            here = here[index]
            place.append(index)
            steps = steps[1:] if is_named else steps
        if not isinstance(here, dict):
            message = "there is no such section in the file"
            raise _RefusedError(message)
    return here, tuple(place)


def _element(tables: list[Any], name: str) -> tuple[int, bool]:
    """Return the index of the named or only table, and whether the name was used."""
    for index, table in enumerate(tables):
        named = table.get("name") if isinstance(table, dict) else None
        if isinstance(named, str) and named.replace("-", "_") == name:
            return index, True
    if len(tables) != 1:
        message = f"there is no {name!r} in the file"
        raise _RefusedError(message)
    return 0, False


def _value(place: KeyPath, text: str) -> object:
    """Parse a list or a table from text; return any other text as it is."""
    if not is_structured(annotation_at(Settings, place)):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = masked(text, ".".join(map(str, place)))
        message = f"expected a list or a table in TOML or JSON, not {shown!r}"
        raise _RefusedError(message) from error
