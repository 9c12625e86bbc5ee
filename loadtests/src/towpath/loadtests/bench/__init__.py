"""
The relay's benchmark: side by side with others, in one run, on one machine.

Every system drains the same backlog, or follows the same load, through its own copy of
one replication slot. What ought to have arrived is what the server itself decodes from
another copy: contents, commit order and commit times. A run whose records differ from
that in anything has no figures.

Three rules keep the figures honest:

- Whoever measures stays idle while a system works: the backlog is written before, the
  topic is read after, and in between a few times a second somebody looks at end offsets
  and processor times.
- Times are one clock's. A commit is dated by its own commit record, which is written
  before the log is flushed, so that the flush counts; an append by the broker, which
  the topics' ``LogAppendTime`` makes it do.
- Only ratios of one run carry over to another machine.
"""
