"""
Chaos for snapshots: random disturbances of a source while its tables are read.

Several sessions write at random, one alters the tables, one requests snapshots, and a
killer ends the relay or its server processes. Some commits wait for a standby
that does not exist, so they are in the log before any query sees them. A reader
consumes the topics continuously and checks each record. At the end of each round, its
rows must equal those of the tables.

One seed decides the random choices of each step of each actor. How steps of different
actors interleave, and so which of them the server refuses, depends on the machine.
"""
