"""``[spark]``: the engine that runs the sinks, here or on a cluster."""

import enum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from towpath.settings.section import Section

_OF_THE_ENGINE: Final = "spark."

# What would change what sinks write, or who writes it. A second copy of a task may go
# on after the batch it belongs to, and write below a floor that was carried out since.
_OWN: Final = frozenset(
    {"spark.app.name", "spark.sql.session.timeZone", "spark.speculation"}
)


class WriteFrom(enum.StrEnum):
    """
    Where a sink's target is written from.

    ``driver``: the driver's process. ``executors``: batches that are large enough, from
    all of the cluster at once.
    """

    DRIVER = "driver"
    EXECUTORS = "executors"


def _check_setting(name: str) -> str:
    if not name.startswith(_OF_THE_ENGINE):
        message = f"{name!r} is no setting of Spark's: they begin with {_OF_THE_ENGINE}"
        raise ValueError(message)
    if name == "spark.master":
        message = "'spark.master' has a key of its own: spark.master, beside settings"
        raise ValueError(message)
    if name in _OWN:
        message = f"{name!r} is set by the driver itself: leave it out"
        raise ValueError(message)
    return name


SparkSetting = Annotated[str, AfterValidator(_check_setting)]


class Spark(Section):
    """
    ``[spark]``.

    ``master`` says where the engine runs; ``settings`` are further ones by Spark's
    names, above those that a driver sets itself. What ``spark-submit`` was told stands
    above both.
    """

    master: str = Field(default="local[2]", min_length=1)
    settings: dict[SparkSetting, str] = Field(default_factory=dict)
