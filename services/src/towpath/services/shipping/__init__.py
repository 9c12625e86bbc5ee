"""
Shipping: one shipment for each order that was paid, or cancelled after confirmation.

It consumes the orders' events and publishes its own. Only this service knows whether
a parcel is on its way: a cancellation that arrives later changes nothing. ``domain``
has the rules, ``repository`` has the table, and ``app`` has the HTTP API and a function
for each event.
"""
