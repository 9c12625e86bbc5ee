"""
What the engine tells of each trigger: how long its steps took.

PySpark's own listener fetches every field of an event by a call of its own into the
engine, some sixty in all: with several triggers a second that takes more than writing
small batches does. Here the engine is asked once, for the event as JSON.
"""

# The engine calls these by their Java names.

from functools import cached_property
from typing import Any, Final

import orjson
from pyspark import SparkContext

from towpath.sinks.metrics import SinkMetrics

# What a trigger without a batch has no time of.
_BATCH_STEP: Final = "addBatch"


class EngineListener:
    """Takes the times of triggers; ``spark.streams.addListener`` adds it."""

    class Java:
        """What py4j has to know."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    def __init__(self, metrics: SinkMetrics) -> None:
        self._metrics = metrics

    @cached_property
    def _jlistener(self) -> Any:  # noqa: ANN401 - py4j's
        """The engine's side of it, where PySpark looks for it."""
        return SparkContext._jvm.PythonStreamingQueryListenerWrapper(self)  # type: ignore[union-attr]  # noqa: SLF001 - as PySpark's own

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Take the times of a trigger's steps."""
        progress = orjson.loads(event.progress().json())
        steps_ms = progress["durationMs"]
        if progress["name"] in self._metrics.sinks and _BATCH_STEP in steps_ms:
            took_ms = {step: float(took) for step, took in steps_ms.items()}
            self._metrics.engine(progress["name"], took_ms)

    def onQueryStarted(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Nothing to do: the supervisor tells of it."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Nothing to do: nothing took any time."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: ANN401 - py4j's
        """Nothing to do: the supervisor tells of it."""
