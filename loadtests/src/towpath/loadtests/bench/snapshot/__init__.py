"""
The benchmark of snapshots beside other systems: a table of a million rows into Kafka.

Every run has its own copy of one database. Every system reads one table of it under two
loads, in every round of each: while 200 transactions a second update it, and on a quiet
server. The topic is then compared with the table and with the changes that the server
itself decodes.

- A rate counts the table's rows from the first append of a READ row to the last; the
  time before (start of a JVM, delivery of a signal) is a separate figure.
- Latency is that of the updates, from the time of the commit record to the append:
  before the snapshot, and while it runs.
- Completeness, final values and stale rows are checked in every run. Stale rows of
  other systems are a figure; those of the relay are a finding, and a finding voids all
  figures.
"""
