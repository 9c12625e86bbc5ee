"""Batches on executors without an engine: tasks in any order, repeated, or failing."""

import pyarrow as pa

from towpath.sinks.engine.query import BatchRows


class Frame:
    """
    A batch on executors: a task for each partition, as Kafka's source makes them.

    With a ``chance``, tasks run in any order, and some of them twice: only the second
    result counts, as the engine has it for a repeated task. The first attempts stay in
    ``abandoned``, so that a test can run them later, too.
    """

    def __init__(self, table, chance=None):
        self._table = table
        self._chance = chance
        self.abandoned = []

    def mapInArrow(self, function, schema):  # noqa: N802 - the engine's
        """Run the tasks."""
        assert schema == "result binary"
        partitions = self._partitions()
        if self._chance is not None:
            self._chance.shuffle(partitions)
        self._results = []
        for partition in partitions:
            if self._chance is not None and self._chance.random() < 0.3:
                list(function(iter(partition)))
                self.abandoned.append(lambda part=partition: list(function(iter(part))))
            self._results += function(iter(partition))
        return self

    def toArrow(self):  # noqa: N802 - the engine's
        """Return the tasks' results."""
        return pa.Table.from_batches(
            self._results, pa.schema([("result", pa.binary())])
        )

    def select(self, *columns):
        """Return these columns, which are all."""
        assert columns == tuple(self._table.column_names)
        return self

    def _partitions(self):
        """Return the record batches of each partition of a topic."""
        topics = self._table.column("topic").to_pylist()
        numbers = self._table.column("partition").to_pylist()
        places = list(zip(topics, numbers, strict=True))
        return [
            self._table.filter(pa.array([p == place for p in places])).to_batches(
                max_chunksize=2
            )
            for place in sorted(set(places))
        ]


def batch_rows(table, frame, slice_=3):
    """Return a table of records as a batch, in the driver and on executors."""

    def read():
        for begin in range(0, len(table), slice_):
            yield table.slice(begin, slice_)

    return BatchRows(frame, read, len(table))
