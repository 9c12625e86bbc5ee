"""
Chaos for snapshots: everything that a source may do while its tables are read.

Sessions write at random, another alters the tables, another asks for snapshots, and
somebody kills: the relay, and the server's processes that serve it. In between, commits
wait for a standby that is not there, so that the log tells of them before any query
sees them. A reader follows the topics all the time and judges each record as it comes;
in the end of each round what it has must be what the tables hold.

One seed decides what each actor does, and in which order; how their steps fall
together is the machine's affair.
"""
