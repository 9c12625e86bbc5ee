"""
``towpath bench`` and ``towpath chaos``: a stack for one run, and its cleanup.

The load tests define the measurements and the faults; this package provides the stack,
and the Java archives that only comparisons need.
"""
