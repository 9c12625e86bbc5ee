"""
Benchmarks snapshots against other systems: a table of a million rows into Kafka.

Every run has its own copy of one database. In every round, every system reads one table
under each of two loads: while 200 transactions per second update the table, and on a
quiet server. The topic is then compared with the table and with the changes that the
server itself decodes.

- A rate counts the table's rows from the first append of a READ row to the last; the
  time before that (start of a JVM, delivery of a signal) is a separate figure.
- Latency is that of the updates, from the time of the commit record to the append:
  before the snapshot, and while it runs.
- Completeness, final values and stale rows are checked in every run. Stale rows of
  other systems are a figure; those of the relay are a finding, and a finding voids all
  figures.
"""
