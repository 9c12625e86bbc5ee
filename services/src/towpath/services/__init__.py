"""
A small shop: services that each write to one database and record their events in it.

No service imports another, and none writes to Kafka: an event is a row in the outbox.
The services share ``plumbing``; ``registry`` registers their event schemas at start.
"""
