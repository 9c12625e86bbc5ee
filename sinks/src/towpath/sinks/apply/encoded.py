"""
Rows that the engine itself writes to a target, after tasks have encoded them.

A task encodes the rows of its slice; the rows stay in the engine. The driver's sink
then decides how they are written, based on a summary of each task's rows, and the
executors write them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from towpath.sinks.ports import Sink


class EncodedSummary(NamedTuple):
    """
    A summary of the rows that a task has encoded for one statement of the engine.

    Attributes:
        statement: Identifies the statement; the sink chooses the name.
        records: The number of changes or events that the rows were folded from.
        span: The smallest and the largest value of the column that limits the search
            for stored rows; ``None`` if the search is not limited.
        hashes: The hash of each row's key, the same in all processes.
        lowest: The lowest position of the rows; empty if there are none.
    """

    statement: str
    records: int
    span: tuple[Any, Any] | None
    hashes: pa.Array
    lowest: str


class SliceRows(NamedTuple):
    """Rows that a task has encoded for one statement, each key once."""

    summary: EncodedSummary
    rows: pa.Table


class RowEncoder(Sink, Protocol):
    """A sink in a task: it writes nothing, because the engine writes the rows."""

    def encoded(self) -> Sequence[SliceRows]:
        """Return the applied rows: at most one ``SliceRows`` for each statement."""


Result = TypeVar("Result")


class EngineRows(Protocol):
    """The encoded rows of a batch; the engine keeps them on its executors."""

    @property
    def summaries(self) -> Sequence[EncodedSummary]:
        """The summaries of all tasks; several may belong to one statement."""

    def register(
        self,
        statement: str,
        name: str,
        schema: pa.Schema,
        keep: Callable[[pa.Table], pa.Table],
    ) -> None:
        """
        Register the rows of a statement as the view ``name`` in all sessions.

        Args:
            statement: The statement.
            name: The view's name.
            schema: The columns of the rows.
            keep: Returns the rows to show; it is called on executors.
        """

    def collect(
        self, statement: str, write: Callable[[pa.Table], Result]
    ) -> Sequence[Result]:
        """
        Call a function with the rows of a statement, on executors; return the results.

        Each row is in exactly one call whose result is returned. The engine may repeat
        a call: its effects occur again, but only one result is returned.

        Raises:
            UnavailableError: An executor does not answer.
        """


@runtime_checkable
class EngineWritten(Protocol):
    """A sink whose engine writes large batches, after tasks have encoded the rows."""

    def make_encoder(self) -> Callable[[], RowEncoder]:
        """
        Return the function with which a task makes an encoder for the next batch.

        Raises:
            UnavailableError: The target cannot be reached now.
        """

    def write_encoded(self, rows: EngineRows) -> None:
        """
        Write encoded rows, one commit per table; ``flush`` returns the counts.

        Raises:
            BatchRefusedError: The target refuses a row; its table is unchanged.
            UnavailableError: The target cannot be reached; a retry loses nothing.
        """
