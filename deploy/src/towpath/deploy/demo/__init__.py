"""
The demo: a shop's checkouts on their way into a warehouse, a search index and a cache.

``plan`` decides, ``table`` and ``screen`` show, ``measure`` asks, ``steps`` do one
thing each, in the order that ``play`` gives them. Whatever was started is stopped
again, also after Ctrl-C at any moment.
"""
