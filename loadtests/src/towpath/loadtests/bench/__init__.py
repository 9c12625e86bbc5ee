"""
Benchmarks the relay against other systems, in one run on one machine.

Every system drains the same backlog through its own copy of one replication slot, or
follows a load of the same rate through its own slot. The expected records are
those that the server itself decodes from another slot: contents, commit order and
commit times. A difference in any run voids all figures, with one exception: after a
kill, losses and repeats of other systems are figures themselves.

Three rules keep the figures honest:

- The benchmark itself is almost idle while a system works: a backlog is written
  beforehand, the topic is read afterwards, and in between it only samples end offsets,
  the slot and CPU times, a few times a second (40 times for ``pg_recvlogical``,
  and up to 200 times before a kill).
- All times come from one clock. The time of a commit is that of its commit record,
  which is written before the log is flushed, so latencies include the flush. The time
  of an append is the broker's, because the topics use ``LogAppendTime``.
- Only ratios within one run carry over to another machine.
"""
