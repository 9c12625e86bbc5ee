"""
``towpath bench``: a stack of its own, the benchmark upon it, nothing left behind.

What is measured, and how, is the load tests' affair; here are the stack, the Java
archives that only a comparison needs, and the clean-up.
"""
