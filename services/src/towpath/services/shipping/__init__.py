"""
Shipping: one shipment for each order that was paid.

It follows the orders' events and answers with its own. Only it knows whether a parcel
is on its way: a cancellation that comes later changes nothing. ``domain`` has the
rules, ``repository`` the tables, and ``app`` the protocol and a function for each
event.
"""
