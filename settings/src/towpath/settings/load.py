"""
Read ``towpath.toml``, lay the environment over it, and tell every mistake at once.

``TOWPATH_<SECTION>__<KEY>`` overrides a key; the one source needs no index
(``TOWPATH_SOURCE__DSN``), a sink is named (``TOWPATH_SINK__CACHE__URL``). A variable
that ends in ``_FILE`` names a file that holds the value. ``TOWPATH_CONFIG`` and
``TOWPATH_STATE`` belong to the command line and are left alone.
"""

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from towpath.schemas.failure import ConfigurationError
from towpath.settings.model import Settings
from towpath.settings.section import PATTERN_WORDS

_PREFIX: Final = "TOWPATH_"
_SEPARATOR: Final = "__"
_FILE_SUFFIX: Final = "_FILE"


def load(path: Path, environ: Mapping[str, str]) -> Settings:
    """
    Read and check the configuration.

    A relative ``state_folder`` or warehouse ``folder`` is taken from the file's folder.

    Raises:
        ConfigurationError: The file is missing or has mistakes; all are listed.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise ConfigurationError([f"{path}: {reason}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError([f"{path}: not TOML: {error}"]) from error
    mistakes = _lay_over(document, environ)
    _anchor(document, path.resolve().parent)
    try:
        settings = Settings.model_validate(document)
    except ValidationError as error:
        mistakes += _tell_all(error.errors())
        raise ConfigurationError(mistakes) from error
    if mistakes:
        raise ConfigurationError(mistakes)
    return settings


def _anchor(document: dict[str, Any], folder: Path) -> None:
    state = document.get("state_folder", ".towpath")
    if isinstance(state, str):
        document["state_folder"] = str(folder / state)
    sinks = document.get("sink")
    for sink in sinks if isinstance(sinks, list) else []:
        if isinstance(sink, dict) and isinstance(sink.get("folder"), str):
            sink["folder"] = str(folder / sink["folder"])


def _lay_over(document: dict[str, Any], environ: Mapping[str, str]) -> list[str]:
    mistakes = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_PREFIX) or _SEPARATOR not in variable:
            continue
        path = variable.removeprefix(_PREFIX).lower().split(_SEPARATOR)
        value = text
        if variable.endswith(_FILE_SUFFIX):
            path[-1] = path[-1].removesuffix(_FILE_SUFFIX.lower())
            try:
                value = Path(text).read_text(encoding="utf-8").rstrip("\n")
            except OSError as error:
                mistakes.append(f"{variable}: {text}: {error.strerror}")
                continue
        if not _put(document, path, value):
            mistakes.append(f"{variable}: there is no such section in the file")
    return mistakes


def _put(document: dict[str, Any], path: list[str], value: str) -> bool:
    place: Any = document
    steps = list(path)
    while len(steps) > 1:
        step = steps.pop(0)
        place = place.setdefault(step, {})
        if isinstance(place, list):
            place = _element(place, steps)
        if not isinstance(place, dict):
            return False
    place[steps[0]] = value
    return True


def _element(tables: list[Any], steps: list[str]) -> object:
    named = [t for t in tables if isinstance(t, dict) and t.get("name") == steps[0]]
    if named:
        steps.pop(0)
        return named[0]
    return tables[0] if len(tables) == 1 else None


def _tell_all(details: list[ErrorDetails]) -> list[str]:
    """Tell each mistake once: a list is not short when its elements are wrong."""
    places = [detail["loc"] for detail in details]
    return [
        _tell(detail)
        for detail in details
        if detail["type"] != "too_short"
        or not any(p[: len(detail["loc"])] == detail["loc"] != p for p in places)
    ]


def _tell(detail: ErrorDetails) -> str:
    place = ".".join(str(step) for step in detail["loc"]) or "file"
    if detail["type"] == "extra_forbidden":
        return f"{place}: unknown key{_nearest(detail['loc'])}"
    if detail["type"] == "missing":
        return f"{place}: missing"
    if detail["type"] == "string_pattern_mismatch":
        return f"{place}: {PATTERN_WORDS[detail['ctx']['pattern']]}"
    return f"{place}: {detail['msg'].removeprefix('Value error, ')}"


def _nearest(loc: tuple[int | str, ...]) -> str:
    model: object = Settings
    for step in loc[:-1]:
        if isinstance(step, str):
            model = _inner(model, step)
    known = list(model.model_fields) if _is_model(model) else []
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.0)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_model(candidate: object) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)


def _inner(model: object, field: str) -> object:
    """Follow a field to the section it holds, through tuples and unions."""
    if not _is_model(model) or field not in model.model_fields:
        return None
    annotation: object = model.model_fields[field].annotation
    candidates = [annotation, *typing.get_args(annotation)]
    if isinstance(annotation, types.UnionType):
        candidates = list(typing.get_args(annotation))
    return next((c for c in candidates if _is_model(c)), None)
