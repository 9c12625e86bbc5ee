"""
One contract for all sinks: each ends up equal to the fold of its changes.

Authors of other sinks run the same cases; rules that hold for only one of our sinks are
tested in that sink's own tests.
"""

from towpath.testing import ContractSuite


class TestEverySink(ContractSuite):
    """Every case of the contract, against every target of ``TARGETS``."""
