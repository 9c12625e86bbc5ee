"""
Payments: one payment for each order, authorized, captured, voided or refunded.

It consumes the orders' events and publishes its own. The provider is an external
system: each call is first recorded as an operation. A worker makes the call and repeats
it under the same idempotency key until the provider answers; only an authorization is
ever given up. ``domain`` has the rules, ``provider`` simulates the provider,
``repository`` has the tables, ``handlers`` has the worker and a function for each
event, and ``app`` has the HTTP API and wires the other modules.
"""
