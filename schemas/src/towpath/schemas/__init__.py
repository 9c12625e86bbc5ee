"""
The published language, shared by relay, sinks and services.

It contains positions, topic and header names, the envelope, event schemas, failures and
the names of metrics. Only ``SystemClock`` waits, and only event schemas are read from
disk.
"""
