"""
The benchmark of sinks: what a reader waits for, and how fast a backlog is applied.

``catch_up`` is played here: the relay puts a table into Kafka while no sink runs, then
each sink alone reads it from its beginning into an empty target. Beside it, in the same
run, stands what nobody who writes that target could do without: the client's own bulk
load, one MERGE, plain pipelined writes. ``checkout`` is played where the shop is, upon
the demo's own parts; its figures and both cases' results are here.

- A rate counts the table's rows from the start of the first batch, as the engine dates
  it, to the moment when the last one is durable, as the sink dates it.
- What stands beside gets its rows ready made: only the target's work is timed, and so
  little of the client's that the comparison flatters the other side.
- Every sink is compared with the source afterwards, by ``towpath verify``, every key
  and column. One difference anywhere leaves no figures at all.
"""
