"""
The published language: what relay, sinks and services agree on.

Positions, record names and headers, the envelope, event schemas, failures and the
names of metrics. Nothing here waits, opens or reads anything but its own schema files.
"""
