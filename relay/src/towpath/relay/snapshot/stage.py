"""How far the reading of a table is."""

import enum
from typing import Final


class Stage(enum.Enum):
    """How far the scan is."""

    MARKING = "marking"
    WAITING = "waiting"
    PLANNING = "planning"
    READING = "reading"
    COMPLETING = "completing"
    FAILING = "failing"
    ENDED = "ended"


# While a frozen scan is here the stream must not go on.
HOLDING: Final = frozenset({Stage.WAITING, Stage.PLANNING, Stage.READING})
