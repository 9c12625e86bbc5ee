"""
Orders: customers register, place orders, pay for them or cancel them.

``domain`` holds the rules and knows no library; ``handlers`` carry out one command each
in one transaction; ``repository`` knows the tables, ``api`` the protocol, and ``app``
puts them together. Every change of an order is recorded as an event with its state.
"""
