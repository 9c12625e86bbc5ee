"""
The whole contract, to be subclassed: each case runs against the fixture ``target``.

::

    class TestMySink(ContractSuite):
        ...
"""

from towpath.testing.delivery import DeliveryCases
from towpath.testing.floors import FloorCases
from towpath.testing.guard import GuardCases
from towpath.testing.partial import PartialCases
from towpath.testing.values import ValueCases


class ContractSuite(ValueCases, GuardCases, PartialCases, FloorCases, DeliveryCases):
    """One contract for all sinks: each ends equal to the fold of its changes."""
