"""
The storefront: pages to shop on, and the read side of the shop.

It has no database. Pages read products from inventory and write through orders; their
lists, and the routes ``/search`` and ``/customers/{id}/orders``, are served from the
targets of the sinks: the search index finds orders, and the cache has their rows.
``shop`` calls the services, ``read_side`` reads the targets, ``waits`` waits for a
client's writes, ``saga`` arranges the steps of an order as a timeline, ``api`` and
``pages`` have the routes, and ``__main__`` wires them.
"""
