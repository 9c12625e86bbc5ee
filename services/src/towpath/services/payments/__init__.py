"""
Payments: one payment for each order, authorised, captured and given back.

It follows the orders' events and answers with its own. The provider is a system
elsewhere: each call of it is an operation that is written down first, made by a worker,
and repeated under the same idempotency key until its answer is known. ``domain`` has
the rules, ``provider`` simulates the provider, ``repository`` has the tables,
``handlers`` a function for each event and the worker, and ``app`` the protocol; it
wires the others.
"""
