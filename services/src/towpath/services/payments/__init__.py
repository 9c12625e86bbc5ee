"""
Payments: one payment for each order, authorised, captured and given back.

It follows the orders' events and answers with its own. The provider is an external
system: each call is first recorded as an operation; a worker makes the call and repeats
it under the same idempotency key until it has the answer or gives up an authorisation.
``domain`` has the rules, ``provider`` simulates the provider, ``repository`` has the
tables, ``handlers`` has the worker and a function for each event, and ``app`` has the
protocol and wires the other modules.
"""
