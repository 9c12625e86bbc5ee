"""
The base of all sections, and the shape of the file as data: keys, sections and types.

Unknown keys are mistakes, and values are immutable. The shape is derived from the
model, so messages, overrides and the reference cover exactly the keys that are read.
"""

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SerializationInfo,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from towpath.schemas.table_name import TableName

# A slot name that Postgres accepts; the same rule applies to publications.
IDENTIFIER = r"^[a-z_][a-z0-9_]{0,62}$"
NAME = r"^[a-z0-9][a-z0-9_-]*$"
PREFIX = r"^[A-Za-z0-9._-]+$"
OPTIONAL_NAME = r"^([a-z0-9][a-z0-9_-]*)?$"
SIGNAL_TOPIC = r"^$|^(?:\{prefix\})?[A-Za-z0-9._-]{1,249}$"

# Each pattern in words, for the message about a mistake.
PATTERN_WORDS = {
    IDENTIFIER: (
        "must be a lower-case identifier: up to 63 letters, digits and underscores, "
        "not beginning with a digit"
    ),
    NAME: (
        "must be lower-case letters, digits, dashes and underscores, beginning with a "
        "letter or a digit"
    ),
    OPTIONAL_NAME: (
        "must be lower-case letters, digits, dashes and underscores, beginning with a "
        "letter or a digit, or empty"
    ),
    PREFIX: "must be letters, digits, dots, dashes and underscores",
    SIGNAL_TOPIC: (
        "must be letters, digits, dots, dashes and underscores, optionally "
        "after {prefix}, or empty"
    ),
}

_PART: Final = r'(?:"(?:[^"]|"")+"|[^".\s][^.\s]*)'
_TABLE: Final = re.compile(rf"{_PART}\.{_PART}")


def table_of_text(text: str) -> TableName:
    """
    Parse a table's name as people write it.

    Raises:
        ValueError: The text is not a table's name.
    """
    if _TABLE.fullmatch(text) is None:
        message = f"must be schema.table, not {text!r}"
        if "." in text.strip("."):
            message += ': quote a part that contains a dot or a space: "a.b".c'
        raise ValueError(message)
    return TableName.parse(text)


# The validation context of values that were validated before and stored: names of
# tables are in their canonical form, in which spaces are not quoted.
STORED: Final = "stored"
# The serialization context of a file that people edit: parts are quoted where needed.
WRITTEN: Final = "written"


def _table(text: str, info: ValidationInfo) -> str:
    if info.context == STORED:
        return TableName.parse(text).text
    return table_of_text(text).text


def _optional_table(text: str, info: ValidationInfo) -> str:
    return _table(text, info) if text else ""


def _written(text: str, info: SerializationInfo) -> str:
    return TableName.parse(text).entry if info.context == WRITTEN and text else text


# A table's name in the file, as its canonical text.
TableText = Annotated[str, AfterValidator(_table), PlainSerializer(_written)]
OptionalTableText = Annotated[
    str, AfterValidator(_optional_table), PlainSerializer(_written)
]


class Section(BaseModel):
    """The base of all sections."""

    # JSON has no infinity, so documents could not show one.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean(cls, value: object, info: ValidationInfo) -> object:
        """Refuse a boolean as the value of a numeric key: pydantic takes true for 1."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            kinds = {annotation, *typing.get_args(annotation)}
            for kind in (int, float):
                if kind in kinds:
                    raise _no_number(kind)
        return value


def _no_number(kind: type) -> PydanticCustomError:
    return PydanticCustomError(f"{kind.__name__}_type", "must be a number")


def _check_whole(value: object) -> object:
    if isinstance(value, bool):
        raise _no_number(int)
    return value


# Refuses a boolean as a whole number in a table or a list, which a section does not
# check. It is listed after the number's bounds, which otherwise are not in the schema.
NO_BOOLEAN: Final = BeforeValidator(_check_whole)


# The path of a key or a mistake: names of keys, and indices of lists.
KeyPath = tuple[int | str, ...]


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
    """Return the section type in an annotation, bare or in a list, if there is one."""
    candidates = (annotation, *typing.get_args(annotation))
    return next((c for c in candidates if _is_section(c)), None)


def section_at(root: type[BaseModel], place: KeyPath) -> type[BaseModel] | None:
    """Return the section at a path, if there is one."""
    model: type[BaseModel] | None = root
    for step in place:
        if isinstance(step, int):
            continue
        if model is None or step not in model.model_fields:
            return None
        model = section_of(model.model_fields[step].annotation)
    return model


def annotation_at(root: type[BaseModel], place: KeyPath) -> object:
    """Return the type of a key; None if there is no such key."""
    model = section_at(root, place[:-1])
    name = place[-1] if place else None
    if model is None or not isinstance(name, str):
        return None
    field = model.model_fields.get(name)
    return None if field is None else field.annotation


def is_list_of_sections(root: type[BaseModel], place: KeyPath) -> bool:
    """Return whether the sections of a key are written as ``[[key]]``."""
    annotation = annotation_at(root, place)
    is_list = typing.get_origin(annotation) is tuple
    return is_list and section_of(annotation) is not None


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
