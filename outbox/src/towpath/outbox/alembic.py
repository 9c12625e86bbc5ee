"""
Operations for Alembic migrations: create, upgrade and check tables; drop the outbox.

Import this module in a revision, and ``op`` has the operations::

    from alembic import op

    import towpath.outbox.alembic  # noqa: F401 - registers the operations


    def upgrade():
        op.create_outbox(writers=["blog"])
        op.create_signal_table(operators=["blog_admin"], relays=["towpath_relay"])
        op.create_heartbeat_table(relays=["towpath_relay"])
        op.check_outbox()


    def downgrade():
        op.drop_outbox()

The operations that create or check are safe to repeat: a table of an earlier release
gets the columns that it lacks. ``towpath relay init`` runs the same SQL. It also
creates the publications and, unless the relay's first start does so, the slot.
``alembic upgrade --sql`` prints all statements, including the checks.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta
from types import MappingProxyType
from typing import Final, Literal

from alembic.operations import MigrateOperation, Operations

from towpath.outbox.outbox import TABLE, require_known_columns
from towpath.schemas import source_tables
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import UsageError
from towpath.schemas.source_tables import SourceTable

# An application's privileges on the outbox, by the ``way`` of its outbox.
_WRITER_PRIVILEGES: Final = MappingProxyType(
    {"keep": "insert", "delete": "insert, select, delete"}
)
# A cleaner locks the rows that it deletes.
_CLEANER_PRIVILEGES: Final = "select, update, delete"
_OPERATOR_PRIVILEGES: Final = "select, insert"
_RELAY_PRIVILEGES: Final = "select, insert, update, delete"
# ``[relay.outbox.columns]`` cannot omit these either.
_REQUIRED: Final = ("id", "aggregate_type", "aggregate_id", "payload")


@Operations.register_operation("create_outbox")
@Operations.register_operation("check_outbox")
@Operations.register_operation("drop_outbox")
@Operations.register_operation("create_signal_table")
@Operations.register_operation("check_signal_table")
@Operations.register_operation("create_heartbeat_table")
@Operations.register_operation("check_heartbeat_table")
@dataclass(frozen=True)
class SourceTableOperation(MigrateOperation):
    """
    An operation on a source table; ``op`` offers its class methods.

    Attributes:
        statements: The SQL of the operation.
    """

    statements: tuple[str, ...]

    @classmethod
    def create_outbox(  # noqa: PLR0913 - keyword options
        cls,
        operations: Operations,
        *,
        table: str = TABLE,
        columns: Mapping[str, str] | None = None,
        is_partitioned: bool = False,
        days_ahead: int = source_tables.DAYS_AHEAD,
        writers: Iterable[str] = (),
        way: Literal["keep", "delete"] = "keep",
        cleaners: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        """
        Create the outbox unless it already exists.

        Args:
            operations: Alembic's operations.
            table: The outbox's name, as in ``[relay.outbox] table``.
            columns: Column names that differ from the default ones, as in
                ``[relay.outbox.columns]``; an empty name omits the column.
            is_partitioned: Create daily partitions; ``towpath outbox clean`` adds later
                ones and drops old ones. An existing table is not converted.
            days_ahead: The number of daily partitions to create beyond today's.
            writers: Roles of applications, which get the privileges to write.
            way: How the applications write: rows that are kept, or rows that are
                deleted in the same transaction.
            cleaners: Roles that run ``towpath outbox clean`` on an outbox without
                partitions; only the owner drops partitions.
            clock: Gives today's date.

        Raises:
            UsageError: ``way`` is neither ``keep`` nor ``delete``, a key of
                ``columns`` is unknown, a required column is omitted, or the name of a
                partition is too long.
        """
        if way not in _WRITER_PRIVILEGES:
            message = f"way must be keep or delete, not {way!r}"
            raise UsageError(message)
        described = _described(table, columns or {}, is_partitioned=is_partitioned)
        created = _creation(described)
        if is_partitioned:
            today = (clock or SystemClock()).now().astimezone(UTC).date()
            for days in range(days_ahead + 1):
                created += described.partition_statements(today + timedelta(days=days))
        granted = [
            *source_tables.grant_statements(
                described, _WRITER_PRIVILEGES[way], writers
            ),
            *source_tables.grant_statements(described, _CLEANER_PRIVILEGES, cleaners),
        ]
        operations.invoke(cls((*created, *granted)))

    @classmethod
    def check_outbox(
        cls,
        operations: Operations,
        *,
        table: str = TABLE,
        columns: Mapping[str, str] | None = None,
        is_partitioned: bool = False,
    ) -> None:
        """
        Fail unless the outbox has the columns and types of this release.

        Raises:
            UsageError: A key of ``columns`` is unknown, or a required column is
                omitted.
        """
        described = _described(table, columns or {}, is_partitioned=is_partitioned)
        operations.invoke(cls((described.check_statement(),)))

    @classmethod
    def drop_outbox(cls, operations: Operations, *, table: str = TABLE) -> None:
        """Drop the outbox with its events, published or not."""
        operations.invoke(cls((source_tables.outbox(table).drop_statement(),)))

    @classmethod
    def create_signal_table(
        cls,
        operations: Operations,
        *,
        operators: Iterable[str] = (),
        relays: Iterable[str] = (),
    ) -> None:
        """
        Create the signal table, or add the columns that an older table lacks.

        Args:
            operations: Alembic's operations.
            operators: Roles that request snapshots.
            relays: Roles of relays.
        """
        described = source_tables.signal()
        granted = [
            *source_tables.grant_statements(described, _OPERATOR_PRIVILEGES, operators),
            *source_tables.grant_statements(described, _RELAY_PRIVILEGES, relays),
        ]
        operations.invoke(cls((*_creation(described), *granted)))

    @classmethod
    def check_signal_table(cls, operations: Operations) -> None:
        """Fail unless the signal table has the columns and types of this release."""
        operations.invoke(cls((source_tables.signal().check_statement(),)))

    @classmethod
    def create_heartbeat_table(
        cls, operations: Operations, *, relays: Iterable[str] = ()
    ) -> None:
        """Create the heartbeat table; ``relays`` are roles that write to it."""
        described = source_tables.heartbeat()
        granted = source_tables.grant_statements(described, _RELAY_PRIVILEGES, relays)
        operations.invoke(cls((*_creation(described), *granted)))

    @classmethod
    def check_heartbeat_table(cls, operations: Operations) -> None:
        """Fail unless the heartbeat table has the columns and types of this release."""
        operations.invoke(cls((source_tables.heartbeat().check_statement(),)))


@Operations.implementation_for(SourceTableOperation)
def run_operation(operations: Operations, operation: SourceTableOperation) -> None:
    """Run, or print, the statements of an operation."""
    for statement in operation.statements:
        # A colon would mark a parameter in SQLAlchemy's ``text``.
        operations.execute(statement.replace(":", r"\:"))


def _described(
    table: str, columns: Mapping[str, str], *, is_partitioned: bool
) -> SourceTable:
    """
    Describe the outbox that a migration names.

    Raises:
        UsageError: A key of ``columns`` is unknown, or a required column is omitted.
    """
    require_known_columns(columns)
    if omitted := [part for part in _REQUIRED if not columns.get(part, part)]:
        message = f"columns omits {', '.join(omitted)}, which the relay requires"
        raise UsageError(message)
    return source_tables.outbox(table, columns, is_partitioned=is_partitioned)


def _creation(described: SourceTable) -> list[str]:
    return [
        source_tables.schema_statement(described.name.schema),
        described.create_statement(),
        *described.upgrade_statements(),
    ]
