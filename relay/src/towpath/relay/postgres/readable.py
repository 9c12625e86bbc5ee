"""What can be read: tables of a publication, and the declared views of aggregates."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from towpath.relay.postgres import tables
from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.views import describe_view
from towpath.relay.snapshot.shape import TableShape
from towpath.settings.outbox import AggregateView


class Readable(NamedTuple):
    """
    What collections are looked for in.

    Attributes:
        publication: The publication that streams the tables' changes.
        views: The declared views, by collection: ``outbox.<aggregate_type>``.
    """

    publication: str
    views: Mapping[str, AggregateView]

    def describe(
        self, connection: Connection, collection: str, order_by: Sequence[str] = ()
    ) -> TableShape:
        """
        Return a collection's shape.

        Raises:
            TableRefusedError: There is none, or it cannot be read.
        """
        view = self.views.get(collection)
        if view is None:
            return tables.describe(connection, collection, self.publication, order_by)
        if order_by:
            reason = "it is read by its aggregate ids, and by no surrogate key"
            raise tables.TableRefusedError(reason)
        return describe_view(connection, view)

    def locate(
        self, connection: Connection, collection: str, order_by: Sequence[str]
    ) -> TableShape:
        """
        Return what a lock takes: of a table, its shape without columns and key.

        Raises:
            TableRefusedError: There is none, or it cannot be read.
        """
        if collection in self.views:
            return self.describe(connection, collection, order_by)
        return tables.locate(connection, collection, self.publication)

    def describe_all(
        self,
        connection: Connection,
        collections: Sequence[str],
        order_by: Sequence[str],
    ) -> Mapping[str, TableShape | tables.TableRefusedError]:
        """Return the shapes of tables, asked for together; views are left out."""
        wanted = [each for each in collections if each not in self.views]
        return tables.describe_all(connection, wanted, self.publication, order_by)

    def describe_again(self, connection: Connection, planned: TableShape) -> TableShape:
        """
        Return the shape of now of what was planned, under a lock.

        Raises:
            TableRefusedError: It cannot be read any more, or not by the same keys.
        """
        name, order_by = planned.collection, tables.order_names(planned)
        shape = self.describe(connection, name, order_by)
        if not shape.has_same_key(planned):
            reason = "its primary key changed, or it is another table by now"
            raise tables.TableRefusedError(reason)
        return shape
