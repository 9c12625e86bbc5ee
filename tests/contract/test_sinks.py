"""
One contract for all sinks: each ends equal to the fold of its changes.

The cases are those that authors of other sinks run, too; what only one of ours must
keep is beside its own tests.
"""

from towpath.testing import ContractSuite


class TestEverySink(ContractSuite):
    """Every case of the contract, against every target of ``TARGETS``."""
