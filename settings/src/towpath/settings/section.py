"""The base of all sections: unknown keys are mistakes, values are immutable."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict

from towpath.schemas.table_name import TableName

# A slot name that Postgres accepts; the same rule serves publications.
IDENTIFIER = r"^[a-z_][a-z0-9_]{0,62}$"
NAME = r"^[a-z0-9][a-z0-9_-]*$"
PREFIX = r"^[A-Za-z0-9._-]+$"
SIGNAL_TOPIC = r"^$|^(?:\{prefix\})?[A-Za-z0-9._-]{1,249}$"

# Each pattern in words, for the message about a mistake.
PATTERN_WORDS = {
    IDENTIFIER: "must be a lower-case identifier: letters, digits and underscores",
    NAME: "must be lower-case letters, digits, dashes and underscores",
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


def _table(text: str) -> str:
    return table_of_text(text).text


def _optional_table(text: str) -> str:
    return _table(text) if text else ""


# A table's name in the file, as its canonical text.
TableText = Annotated[str, AfterValidator(_table)]
OptionalTableText = Annotated[str, AfterValidator(_optional_table)]


class Section(BaseModel):
    """The base of all sections."""

    model_config = ConfigDict(extra="forbid", frozen=True)
