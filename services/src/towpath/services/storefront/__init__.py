"""
The storefront: the pages of the shop, and its read side.

It has no database. Pages read products from inventory and write through orders. Lists
of orders, searches, and the routes ``/search`` and ``/customers/{id}/orders`` are
served from the targets of the sinks: the search index finds orders and products, and
the cache has the orders' rows.

``shop`` calls the services, ``read_side`` reads the targets, ``waits`` waits for a
client's writes, ``saga`` arranges the steps of an order as a timeline, ``api`` and
``pages`` have the routes, and ``__main__`` wires them.
"""
