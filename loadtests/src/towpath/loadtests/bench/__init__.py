"""
The relay's benchmark beside other systems, in one run on one machine.

Every system drains the same backlog, or follows the same load, through its own copy of
one replication slot. The expected records are those that the server itself decodes from
another copy: contents, commit order and commit times. A run with any difference has no
figures.

Three rules keep the figures honest:

- The benchmark itself stays idle while a system works: the backlog is written before,
  the topic is read after, and in between it only samples end offsets and processor
  times a few times a second.
- All times are from one clock. A commit has the time of its commit record, which is
  written before the log is flushed, so the flush counts. An append has the broker's
  time, by the topics' ``LogAppendTime``.
- Only ratios within one run carry over to another machine.
"""
