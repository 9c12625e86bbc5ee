"""
``[[sink.route.transforms]]``: changes to the values of a route's rows, in order.

Each entry has one verb and its options. The checks here need only the file; a sink
checks the columns against the table when it starts.

In a template ``{column}`` stands for the column's text, ``{{`` and ``}}`` for braces. A
condition of ``drop_if`` is a value, a list of values, or a table with one operator.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.fields import FieldInfo

from towpath.settings.section import IDENTIFIER, Section
from towpath.settings.syntax import compiled, parsed_by

# The range of an eight-byte integer column.
_WHOLE_NUMBERS: Final = range(-(2**63), 2**63)
# A shorter hash key could be found by brute force.
_MIN_SALT_CHARACTERS: Final = 16


def _check_constant(value: object) -> object:
    if not _is_constant(value):
        message = "must be text, true, false, or a number that a column can hold"
        raise ValueError(message)
    return value


def _is_constant(value: object) -> bool:
    return isinstance(value, bool | str) or (
        value in _WHOLE_NUMBERS
        if isinstance(value, int)
        else isinstance(value, float) and isfinite(value)
    )


# Text, whole number, number or boolean, as the file writes it.
Constant = Annotated[Any, BeforeValidator(_check_constant)]


def _check_salt(salt: str) -> str:
    if len(salt) < _MIN_SALT_CHARACTERS:
        message = f"must be at least {_MIN_SALT_CHARACTERS} characters, and secret"
        raise ValueError(message)
    return salt


HashSalt = Annotated[str, AfterValidator(_check_salt)]
SaltName = Annotated[str, Field(pattern=IDENTIFIER)]


class TemplateParts(NamedTuple):
    """
    A template, split at its columns.

    Attributes:
        texts: The plain text around the columns, with one more entry than ``columns``.
        columns: The columns; one may occur several times.
    """

    texts: tuple[str, ...]
    columns: tuple[str, ...]


_TEMPLATE: Final = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


def parse_value_template(text: str) -> TemplateParts:
    """
    Parse a template of values.

    Raises:
        ValueError: The template is malformed, or names no column.
    """
    texts, columns, at = [""], [], 0
    for token in _TEMPLATE.finditer(text):
        texts[-1] += text[at : token.start()]
        at = token.end()
        if token[1] is not None:
            columns.append(token[1])
            texts.append("")
        elif token[0] in {"{{", "}}"}:
            texts[-1] += token[0][0]
        else:
            message = f"{text!r} has a single brace: write {{{{ or }}}} for a brace"
            raise ValueError(message)
    texts[-1] += text[at:]
    if not columns:
        message = f"{text!r} names no column: write '{{name}}', or use constant"
        raise ValueError(message)
    return TemplateParts(tuple(texts), tuple(columns))


class ValueType(NamedTuple):
    """A Postgres type that values can be converted to; precision 0 is unlimited."""

    name: str
    precision: int = 0
    scale: int = 0


VALUE_TYPES: Final = (
    *("text", "smallint", "integer", "bigint", "numeric", "double precision"),
    *("boolean", "date", "timestamp with time zone", "uuid"),
)
_DIGITS: Final = re.compile(r"numeric\(\s*([1-9]\d{0,2})\s*,\s*(\d{1,3})\s*\)")


def parse_value_type(text: str) -> ValueType:
    """
    Parse the name of a type.

    Raises:
        ValueError: The text is not a type that values can be converted to.
    """
    digits = _DIGITS.fullmatch(text)
    if digits is not None and int(digits[2]) <= int(digits[1]):
        return ValueType("numeric", int(digits[1]), int(digits[2]))
    if text not in VALUE_TYPES:
        known = ", ".join((*VALUE_TYPES, "numeric(12, 2)"))
        message = f"{text!r} is not a type that values are converted to: {known}"
        raise ValueError(message)
    return ValueType(text)


class Condition(NamedTuple):
    """
    A condition on the value of a column.

    Attributes:
        operator: ``in``, ``not``, ``is_null``, ``below``, ``at_least`` or ``matches``.
        values: Its operands, of one kind: strings, numbers or booleans.
    """

    operator: str
    values: tuple[Any, ...]

    @property
    def kind(self) -> str:
        """The kind of value that it can be true for; empty for ``is_null``."""
        return "" if self.operator == "is_null" else kind_of_value(self.values[0])


def kind_of_value(value: object) -> str:
    """Return the kind of a value in the file: ``text``, ``boolean`` or ``number``."""
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


def parse_condition(value: object) -> Condition:
    """
    Parse a condition of ``drop_if``.

    Raises:
        ValueError: It is not a condition.
    """
    if not isinstance(value, Mapping):
        return Condition("in", _values(value))
    if len(value) != 1 or (operator := next(iter(value))) not in _OPERANDS:
        known = ", ".join(_OPERANDS)
        message = f"must be a value, a list, or a table with one of {known}"
        raise ValueError(message)
    return Condition(operator, _OPERANDS[operator](value[operator]))


def _values(value: object) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    kinds = {kind_of_value(one) for one in values}
    if len(kinds) != 1 or not all(map(_is_constant, values)):
        message = "values must be one or more strings, numbers or booleans, of one kind"
        raise ValueError(message)
    return values


def _number(value: object) -> tuple[Any, ...]:
    if not _is_constant(value) or kind_of_value(value) != "number":
        message = "below and at_least need a number"
        raise ValueError(message)
    return (value,)


def _boolean(value: object) -> tuple[Any, ...]:
    if not isinstance(value, bool):
        message = "is_null must be true or false"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports a ValueError
    return (value,)


def _pattern(value: object) -> tuple[Any, ...]:
    if not isinstance(value, str):
        message = "matches needs a regular expression in quotes"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports a ValueError
    compiled(value)
    return (value,)


_OPERANDS: Final[Mapping[str, Callable[[object], tuple[Any, ...]]]] = {
    "not": _values,
    "is_null": _boolean,
    "below": _number,
    "at_least": _number,
    "matches": _pattern,
}


def _check_condition(value: object) -> object:
    parse_condition(value)
    return value


ConditionValue = Annotated[Any, BeforeValidator(_check_condition)]
ValueTemplate = Annotated[str, parsed_by(parse_value_template, optional=False)]
ValueTypeText = Annotated[str, parsed_by(parse_value_type, optional=False)]

# The options that each verb needs, and those that it also takes.
_NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "rename": ("to",),
    "constant": ("to",),
    "mask": (),
    "hash": ("salt",),
    "cast": ("type",),
    "template": ("to",),
    "drop_if": (),
    "python": (),
}
_OPTIONAL: Final[Mapping[str, Sequence[str]]] = {
    "mask": ("to", "keep_first", "keep_last"),
    "hash": ("to",),
    "cast": ("to",),
    "python": ("reads", "writes"),
}


class Transform(Section):
    """
    ``[[sink.route.transforms]]``: one verb, and its options.

    ``rename`` moves a column to the name ``to``. ``constant`` writes a value into the
    column ``to``, ``template`` a string with the values of other columns. ``mask``
    replaces the text of a column with asterisks except for its first ``keep_first`` and
    last ``keep_last`` characters. ``hash`` replaces a value with its digest
    (HMAC-SHA-256), keyed by the secret ``salt`` in ``sink.hash_salts``. ``cast``
    converts a value to ``type``. ``mask``, ``hash`` and ``cast`` write into the column
    itself, or into ``to``. ``drop_if`` maps columns to conditions: rows for which all
    conditions hold are left out of the sink.

    ``python`` names an entry point of the group ``towpath.transforms``: a function of a
    row. The function sees the columns ``reads``, or all columns, and writes the columns
    ``writes``, of the given types.
    """

    rename: str | None = None
    constant: Constant | None = None
    mask: str | None = None
    hash: str | None = None
    cast: str | None = None
    template: ValueTemplate | None = None
    drop_if: Annotated[dict[str, ConditionValue], Field(min_length=1)] | None = None
    python: str | None = None
    to: str = ""
    keep_first: int = Field(default=0, ge=0)
    keep_last: int = Field(default=0, ge=0)
    salt: str = ""
    type: ValueTypeText | None = None
    reads: tuple[str, ...] = ()
    writes: dict[str, ValueTypeText] = Field(default_factory=dict)

    @property
    def verb(self) -> str:
        """The verb of the entry."""
        return next(name for name in _NEEDED if getattr(self, name) is not None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns that the entry reads; for ``python``, empty means all."""
        if self.python is not None:
            return self.reads
        if self.template is not None:
            return tuple(dict.fromkeys(parse_value_template(self.template).columns))
        if self.drop_if is not None:
            return tuple(self.drop_if)
        column = self.rename or self.mask or self.hash or self.cast
        return () if column is None else (column,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns that the entry writes."""
        if self.drop_if is not None:
            return ()
        return tuple(self.writes) if self.python is not None else (self.output,)

    @property
    def output(self) -> str:
        """The one column that the entry writes; not for ``python`` or ``drop_if``."""
        return self.to or self.inputs[0]

    @model_validator(mode="after")
    def _check(self) -> Self:
        fields = type(self).model_fields
        given = [name for name, field in fields.items() if self._has(name, field)]
        verbs = [name for name in given if name in _NEEDED]
        if len(verbs) != 1:
            listed = ", ".join(_NEEDED)
            found = " and ".join(verbs) or "none"
            message = f"an entry needs exactly one verb of {listed}, not {found}"
            raise ValueError(message)
        (verb,) = verbs
        if verb != "constant" and not getattr(self, verb):
            message = f"{verb} is empty"
            raise ValueError(message)
        for name in _NEEDED[verb]:
            if name not in given:
                message = f"{verb} needs {name}"
                raise ValueError(message)
        known = {verb, *_NEEDED[verb], *_OPTIONAL.get(verb, ())}
        for name in given:
            if name not in known:
                message = f"{name} is not an option of {verb}"
                raise ValueError(message)
        return self

    def _has(self, name: str, field: FieldInfo) -> bool:
        """Return whether a key has a value other than its default."""
        default = field.get_default(call_default_factory=True)
        return bool(getattr(self, name) != default)
