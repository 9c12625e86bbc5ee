"""
The local stack: Postgres, Kafka, schema registry, OpenSearch and Redis.

Every part is an ordinary process, with its files below one state folder. It has free
ports on the loopback address, a log file, a process file, a probe that contacts the
part itself, and a stop with a deadline. The stack needs no containers and no system
packages.
"""
