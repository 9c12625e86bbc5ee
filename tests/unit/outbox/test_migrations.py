"""The operations of migrations, without a database."""

import pytest

from towpath.outbox.alembic import SourceTableOperation
from towpath.schemas.failure import UsageError


class Operations:
    """Records operations instead of Alembic, which would execute them."""

    def __init__(self):
        self.invoked = []

    def invoke(self, operation):
        """Record an operation."""
        self.invoked.append(operation)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"agregate_id": "order_id"}, "columns has unknown keys: agregate_id; the kn"),
        ({"id": "", "headers": ""}, "columns omits id, which the relay requires"),
    ],
)
@pytest.mark.parametrize("name", ["create_outbox", "check_outbox"])
def test_columns_that_the_relay_cannot_use_are_refused(name, columns, reason):
    """
    A mistyped key would leave the default name; without an id no row is an event.
    """
    operations = Operations()
    with pytest.raises(UsageError, match=reason):
        getattr(SourceTableOperation, name)(operations, columns=columns)

    assert [] == operations.invoked


def test_a_column_may_be_renamed_or_omitted():
    """
    The others keep their names.
    """
    operations = Operations()
    columns = {"aggregate_id": "order_id", "traceparent": ""}
    SourceTableOperation.check_outbox(operations, columns=columns)
    [operation] = operations.invoked
    [statement] = operation.statements

    assert "'order_id'" in statement
    assert "'headers'" in statement
    assert "traceparent" not in statement
