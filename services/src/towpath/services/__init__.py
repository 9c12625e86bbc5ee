"""
A small shop: services that write one database each and record their events in it.

No service imports another, and none speaks to Kafka: what a service has to say is a row
in its outbox. ``plumbing`` is what they share; ``registry`` makes their event schemas
known at start.
"""
