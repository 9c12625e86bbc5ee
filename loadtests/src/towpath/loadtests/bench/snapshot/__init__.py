"""
The benchmark of snapshots: a table of a million rows into Kafka, beside others.

Every system has its own copy of one database, and reads one table of it twice: while
200 transactions a second update it, and on a quiet server. What the topic holds
afterwards is compared with the table and with what the server itself decodes.

- A rate counts the table's rows from the first append of a row that was read to the
  last; what goes before (a JVM's start, a signal's way) is told apart.
- Latency is that of the updates, from the commit record's time to the append: before
  the snapshot begins, and while it runs.
- Completeness, final values and stale rows are checked in every run. What others get
  wrong in freshness is told as a figure; what ours does is a finding, and a finding
  leaves no figures at all.
"""
