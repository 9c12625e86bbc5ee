"""
The local stack: Postgres, Kafka, schema registry, OpenSearch and Redis.

Every part is an ordinary process below one state folder: on free ports of the loopback
address, with a log file, a process file, a probe that contacts the part itself, and a
stop with a deadline. No containers, no system packages.
"""
