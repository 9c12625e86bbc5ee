"""The orders service's unit of work: one transaction and what can be reached in it."""

from functools import cached_property

from towpath.services.orders.repository import CustomerRepository, OrderRepository
from towpath.services.plumbing.unit_of_work import UnitOfWork


class OrdersUnit(UnitOfWork):
    """One transaction over customers and orders."""

    @cached_property
    def customers(self) -> CustomerRepository:
        """The customers in this transaction."""
        return CustomerRepository(self.session)

    @cached_property
    def orders(self) -> OrderRepository:
        """The orders in this transaction."""
        return OrderRepository(self.session)
