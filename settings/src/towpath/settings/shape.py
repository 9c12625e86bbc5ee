"""
The shape of the file as data: its keys, their sections and their types.

All of it is derived from the model, so messages, overrides and the reference know
exactly the keys that are read.
"""

import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

# The path of a key or a mistake: names of keys, and indices of lists.
Place = tuple[int | str, ...]


class Key(NamedTuple):
    """
    One key of the file.

    Attributes:
        path: Its sections and its name; list indices are left out.
        field: Its type and default.
    """

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def name(self) -> str:
        """The key with its sections, joined by dots."""
        return ".".join(self.path)


def keys(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield every key that holds a value rather than a section."""
    for name, field in model.model_fields.items():
        inner = section_of(field.annotation)
        if inner is None:
            yield Key((*above, name), field)
        else:
            yield from keys(inner, (*above, name))


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section type of an annotation, bare or in a list, if it is one."""
    candidates = (annotation, *typing.get_args(annotation))
    return next((c for c in candidates if _is_section(c)), None)


def section_at(root: type[BaseModel], place: Place) -> type[BaseModel] | None:
    """Return the section at a place, if there is one."""
    model: type[BaseModel] | None = root
    for step in place:
        if isinstance(step, int):
            continue
        if model is None or step not in model.model_fields:
            return None
        model = section_of(model.model_fields[step].annotation)
    return model


def annotation_at(root: type[BaseModel], place: Place) -> object:
    """Return the type of a key; None if there is no such key."""
    model = section_at(root, place[:-1])
    name = place[-1] if place else None
    if model is None or not isinstance(name, str):
        return None
    field = model.model_fields.get(name)
    return None if field is None else field.annotation


def arranged(document: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Return a document with its keys in the order of the reference."""
    ordered: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if name not in document:
            continue
        inner, value = section_of(field.annotation), document[name]
        if inner is not None and isinstance(value, Mapping):
            ordered[name] = arranged(value, inner)
        elif inner is not None and isinstance(value, list):
            ordered[name] = [arranged(each, inner) for each in value]
        else:
            ordered[name] = value
    return ordered


def is_structured(annotation: object) -> bool:
    """Return whether a key takes a list, a table or a section, not a plain value."""
    origin = typing.get_origin(annotation)
    return origin in _STRUCTURED or _is_section(annotation)


_STRUCTURED: Final = frozenset({tuple, list, dict})


def _is_section(candidate: object) -> typing.TypeGuard[type[BaseModel]]:
    return isinstance(candidate, type) and issubclass(candidate, BaseModel)
