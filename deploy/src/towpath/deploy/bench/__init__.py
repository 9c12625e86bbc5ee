"""
``towpath bench`` and ``towpath chaos``: a stack for one run, and nothing left behind.

The load tests define the measurements and the disturbances; here are the stack, the
Java archives that only a comparison needs, and the clean-up.
"""
