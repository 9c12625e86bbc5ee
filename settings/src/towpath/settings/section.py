"""What every section shares: unknown keys are mistakes, values do not change."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# A slot name as Postgres takes it; the same rule serves publications.
IDENTIFIER = r"^[a-z_][a-z0-9_]{0,62}$"
NAME = r"^[a-z0-9][a-z0-9_-]*$"
TABLE = r"^[^.\s]+\.[^.\s]+$"
PREFIX = r"^[A-Za-z0-9._-]+$"
OPTIONAL_TABLE = r"^$|^[^.\s]+\.[^.\s]+$"
SIGNAL_TOPIC = r"^$|^(?:\{prefix\})?[A-Za-z0-9._-]{1,249}$"

# What each pattern asks for, in words, for the message about a mistake.
PATTERN_WORDS = {
    IDENTIFIER: "must be a lower-case identifier: letters, digits and underscores",
    NAME: "must be lower-case letters, digits, dashes and underscores",
    TABLE: "must be schema.table",
    PREFIX: "must be letters, digits, dots, dashes and underscores",
    OPTIONAL_TABLE: "must be schema.table, or empty",
    SIGNAL_TOPIC: (
        "must be letters, digits, dots, dashes and underscores, perhaps after "
        "{prefix}, or empty"
    ),
}

TableName = Annotated[str, Field(pattern=TABLE)]


class Section(BaseModel):
    """The base of all sections."""

    model_config = ConfigDict(extra="forbid", frozen=True)
