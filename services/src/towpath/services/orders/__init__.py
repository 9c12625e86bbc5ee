"""
Orders: customers register, place orders, pay for them or cancel them.

``domain`` has the rules and uses no library; each function of ``handlers`` executes one
command in one transaction; ``repository`` has the tables, ``api`` the HTTP API, and
``app`` wires them. Every change to an order is recorded as an event with its state.
"""
