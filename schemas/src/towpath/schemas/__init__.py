"""
The published language, shared by relay, sinks and services.

It contains positions, topic and header names, the envelope, event schemas, failures and
the names of metrics, and the clients of the schema registry, OpenTelemetry and
OpenLineage.
"""
