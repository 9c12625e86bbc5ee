"""
The benchmark of sinks: the lag that readers see, and the rate of a catch-up.

The cases ``catch_up`` and ``cluster`` run here. The relay publishes a table to Kafka
while no sink runs, then each sink alone reads it from its beginning into an empty
target. In ``catch_up``, a baseline then writes the same rows without a sink: the
client's own bulk load, one MERGE, plain pipelined writes. The deploy package runs the
case ``checkout`` with the demo's own parts; the results of all three cases are here.

- In ``catch_up``, ``rows_per_s`` counts the table's rows from the start of the first
  batch, by the engine's clock, to the moment when the last batch is durable, by the
  sink's clock.
- Baselines get prepared rows: the measured time includes little of the client's work,
  so the comparison favors the baseline.
- ``towpath verify`` compares each sink, except ``null``, with the source: every key
  and column. A single difference voids all figures.
"""
