"""
``towpath chaos``: a stack of its own, chaos upon it, nothing left behind.

What happens, and how it is judged, is the load tests' affair; here are the stack and
the clean-up.
"""
