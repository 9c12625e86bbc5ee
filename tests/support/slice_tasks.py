"""Batches on executors without an engine: tasks in any order, repeated, or failing."""

from functools import partial
from typing import NamedTuple

import pyarrow as pa

from support.kafka_rows import batch_of


class ListedTasks:
    """
    The tasks of a batch: one for each partition of a topic.

    With an ``rng``, tasks run in random order, and some of them twice: only the
    second result counts, as in the engine. The first attempts are kept in
    ``abandoned``, so that a test can also run them later.
    """

    def __init__(self, table, rng=None):
        self._table = table
        self._rng = rng
        self.abandoned = []

    def run(self, function, schema):
        """Run the tasks; return their results, like a data frame of the engine."""
        assert schema == "result binary"
        partitions = self._partitions()
        if self._rng is not None:
            self._rng.shuffle(partitions)
        results = []
        for partition in partitions:
            if self._rng is not None and self._rng.random() < 0.3:
                list(function(partial(iter, partition)))
                self.abandoned.append(
                    lambda part=partition: list(function(partial(iter, part)))
                )
            results += function(partial(iter, partition))
        return Results(results)

    def _partitions(self):
        """Return the slices of each partition."""
        topics = self._table.column("topic").to_pylist()
        numbers = self._table.column("partition").to_pylist()
        partitions = list(zip(topics, numbers, strict=True))
        tables = (
            self._table.filter(pa.array([one == partition for one in partitions]))
            for partition in sorted(set(partitions))
        )
        return [
            [table.slice(begin, 2) for begin in range(0, len(table), 2)]
            for table in tables
        ]


class Results(NamedTuple):
    """The results of tasks."""

    batches: list

    def toArrow(self):  # noqa: N802 - the engine's
        """Return the results as a table."""
        schema = pa.schema([("result", pa.binary())])
        return pa.Table.from_batches(self.batches, schema)


def batch_rows(table, tasks, slice_=3):
    """Return a table of records as a batch for the driver and for executors."""

    def read():
        for begin in range(0, len(table), slice_):
            yield table.slice(begin, slice_)

    return batch_of(read, len(table), tasks)
