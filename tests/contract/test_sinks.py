"""One contract for all sinks: each ends equal to the fold of its changes.

Authors of other sinks run the same cases; the rules of only one of ours are beside its
own tests.
"""

from towpath.testing import ContractSuite


class TestEverySink(ContractSuite):
    """Every case of the contract, against every target of ``TARGETS``."""
