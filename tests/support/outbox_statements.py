"""A stand-in for a connection, which keeps the statements that an outbox executes."""


class Statements(list):
    """The executed statements, with their parameters."""

    __module__ = "psycopg2.extensions"

    class Connection:
        """A connection inside a transaction."""

        __module__ = "psycopg2.extensions"
        autocommit = False

        @staticmethod
        def get_transaction_status():
            """Return libpq's status code for an open transaction."""
            return 2

    connection = Connection()
    # No statement returns rows.
    description = None

    def execute(self, sql, parameters):
        """Keep a statement."""
        self.append((sql, dict(parameters)))
