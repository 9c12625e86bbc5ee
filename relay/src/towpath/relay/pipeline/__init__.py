"""
The loop and its desks: what moves the stream into Kafka, knowing no driver.

``loop`` turns; ``follower`` takes the stream's messages; ``outlet`` lets records out;
``shapes`` tells sinks the tables' shapes; ``snapshots`` serves the snapshot driver;
``attempts`` begins anew after failures that pass. Edges come in through ``ports``.
"""
