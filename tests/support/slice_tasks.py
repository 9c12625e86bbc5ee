"""Batches on executors without an engine: tasks in any order, repeated, or failing."""

from functools import partial
from typing import NamedTuple

import pyarrow as pa

from support.kafka_rows import batch_of


class ListedTasks:
    """
    The tasks of a batch: one for each partition of a topic.

    With a ``chance``, tasks run in any order, and some of them twice: only the second
    result counts, as the engine has it for a repeated task. The first attempts stay in
    ``abandoned``, so that a test can run them later, too.
    """

    def __init__(self, table, chance=None):
        self._table = table
        self._chance = chance
        self.abandoned = []

    def run(self, function, schema):
        """Run the tasks; return their results, as a frame of the engine does."""
        assert schema == "result binary"
        partitions = self._partitions()
        if self._chance is not None:
            self._chance.shuffle(partitions)
        results = []
        for partition in partitions:
            if self._chance is not None and self._chance.random() < 0.3:
                list(function(partial(iter, partition)))
                self.abandoned.append(
                    lambda part=partition: list(function(partial(iter, part)))
                )
            results += function(partial(iter, partition))
        return Results(results)

    def _partitions(self):
        """Return the slices of each partition of a topic."""
        topics = self._table.column("topic").to_pylist()
        numbers = self._table.column("partition").to_pylist()
        places = list(zip(topics, numbers, strict=True))
        of_places = (
            self._table.filter(pa.array([p == place for p in places]))
            for place in sorted(set(places))
        )
        return [
            [one.slice(begin, 2) for begin in range(0, len(one), 2)]
            for one in of_places
        ]


class Results(NamedTuple):
    """The results of tasks."""

    batches: list

    def toArrow(self):  # noqa: N802 - the engine's
        """Return them as a table."""
        schema = pa.schema([("result", pa.binary())])
        return pa.Table.from_batches(self.batches, schema)


def batch_rows(table, tasks, slice_=3):
    """Return a table of records as a batch, in the driver and on executors."""

    def read():
        for begin in range(0, len(table), slice_):
            yield table.slice(begin, slice_)

    return batch_of(read, len(table), tasks)
