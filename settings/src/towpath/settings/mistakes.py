"""
Messages about mistakes: the key, the expected value, and the nearest valid name.

A key is named as in the file (``relay.delivery``), or by the variable that set the
value. A section that the file lacks is reported with the variable that refers to it.
The wording is ours, not the validating library's.
"""

import datetime as dt
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import ErrorDetails

from towpath.settings.environment import variable_for
from towpath.settings.model import Settings
from towpath.settings.secrets import masked
from towpath.settings.section import PATTERN_WORDS, KeyPath, keys, section_at

# Below this similarity a name is not suggested.
_MIN_SIMILARITY: Final = 0.6
# In a name of two letters, one letter may be wrong.
_MIN_SHORT_SIMILARITY: Final = 0.5
_SHORT_LETTERS: Final = 3
_KEY_STEP: Final = "[key]"

_EXPECTED: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "string": "text in quotes",
    "bool": "true or false",
    "tuple": 'a list, such as ["a", "b"]',
    "dict": "a table of keys and values",
    "model": "a section with keys",
    "path": "the name of a file or folder",
}
_BOUNDS: Final[Mapping[str, tuple[str, str]]] = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "at most {}"),
    "string_too_short": ("min_length", "at least {} character"),
    "too_short": ("min_length", "a list of {} or more elements"),
    "too_long": ("max_length", "a list of {} or fewer elements"),
}
_TOO_SHORT_TABLE: Final = "a table of {} or more keys"


def describe_all(
    details: Sequence[ErrorDetails],
    variables: Mapping[KeyPath, str],
    sections: Mapping[KeyPath, str],
) -> list[str]:
    """
    Describe each mistake once.

    A list with wrong elements is not also reported as too short.

    Args:
        details: The mistakes.
        variables: The variables that override keys, by the keys' paths.
        sections: The variables that refer to sections that the file lacks, by path.
    """
    places = [detail["loc"] for detail in details]
    return [
        _describe(detail, variables, sections)
        for detail in details
        if detail["type"] != "too_short" or not _has_below(detail["loc"], places)
    ]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the most similar known word; return an empty string if none is close."""
    cutoff = _MIN_SHORT_SIMILARITY if len(word) <= _SHORT_LETTERS else _MIN_SIMILARITY
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def _has_below(place: KeyPath, places: Iterable[KeyPath]) -> bool:
    return any(p[: len(place)] == place != p for p in places)


def _describe(
    detail: ErrorDetails,
    variables: Mapping[KeyPath, str],
    sections: Mapping[KeyPath, str],
) -> str:
    place = tuple(step for step in detail["loc"] if step != _KEY_STEP)
    variable = _variable(place, variables)
    name = variable or ".".join(str(step) for step in place) or "file"
    if variable is None and place in sections:
        name = f"{sections[place]}: {name}"
    if detail["type"] == "extra_forbidden":
        return f"{name}: unknown key{_nearest(place, is_variable=bool(variable))}"
    return f"{name}: {_reason(detail)}"


def _variable(place: KeyPath, variables: Mapping[KeyPath, str]) -> str | None:
    """Find the variable that set this value or the table around it."""
    for length in range(len(place), 0, -1):
        found = variables.get(place[:length])
        if found is not None:
            rest = place[length:]
            return found + "".join(f"[{step}]" for step in rest)
    return None


def _reason(detail: ErrorDetails) -> str:
    kind, value = detail["type"], detail["input"]
    shown = _shown(value, ".".join(map(str, detail["loc"])))
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "missing":
        return "missing"
    if kind == "string_pattern_mismatch":
        return f"{PATTERN_WORDS[context['pattern']]}, not {shown}"
    if kind in {"enum", "literal_error"}:
        return _none_of(value, context["expected"])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        words = _TOO_SHORT_TABLE if isinstance(value, dict) else words
        return f"must be {words.format(_number(context[name]))}{_given(value)}"
    expected = _EXPECTED.get(kind.partition("_")[0])
    if expected is not None:
        return f"expected {expected}, not {shown}"
    return detail["msg"].removeprefix("Value error, ")


def _none_of(value: object, expected: str) -> str:
    words = expected.replace(" or ", ", ")
    if "," not in words:
        return f"must be {words}, not {_shown(value)}"
    if not isinstance(value, str):
        return f"{_shown(value)} is not one of {words}"
    known = [word.strip("'") for word in words.split(", ")]
    return f"{value!r} is not one of {words}{did_you_mean(value, known)}"


def _number(bound: object) -> object:
    is_whole = isinstance(bound, float) and bound.is_integer()
    return int(bound) if is_whole else bound  # type: ignore[call-overload]  # a float


def _given(value: object) -> str:
    is_plain = isinstance(value, int | float | str) and value != ""
    return f", not {value}" if is_plain else ""


def _shown(value: object, name: str = "") -> str:
    """
    Show a plain value without its secrets; show only the type of anything else.

    Args:
        value: The value.
        name: Its key, prefixed with its sections.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | str):
        shown = masked(str(value), name)
        return repr(value if shown == str(value) else shown)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return "a list" if isinstance(value, list) else "a table"


def _nearest(place: KeyPath, *, is_variable: bool) -> str:
    """Suggest the nearest key of the section, or a section that has the key."""
    word, above = str(place[-1]), place[:-1]
    section = section_at(Settings, above)
    known = [] if section is None else list(section.model_fields)
    names = tuple(str(step) for step in above if not isinstance(step, int))
    if not difflib.get_close_matches(word, known, n=1, cutoff=_MIN_SIMILARITY):
        elsewhere = [key for key in keys(Settings) if key.path[-1] == word]
        if elsewhere:
            path = elsewhere[0].path
            return f"; did you mean {_path_text(path, is_variable=is_variable)!r}?"
    near = difflib.get_close_matches(word, known, n=1, cutoff=_MIN_SIMILARITY)
    if near:
        meant = variable_for((*names, near[0])) if is_variable else near[0]
        return f"; did you mean {meant!r}?"
    where = f"[{'.'.join(names)}]" if names else "the file"
    return f"; {where} has the keys {', '.join(sorted(known))}" if known else ""


def _path_text(path: tuple[str, ...], *, is_variable: bool) -> str:
    return variable_for(path) if is_variable else ".".join(path)
