"""
Inventory: products with their stock, and a reservation for each order.

It consumes the orders' events and publishes its own: stock is reserved when an order
is placed, and released, sold or taken back as the order proceeds. ``domain`` has the
rules, ``repository`` the tables, ``handlers`` a function for each command and event,
``api`` the HTTP API, and ``app`` wires them.
"""
