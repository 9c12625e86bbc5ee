"""
The names of an outbox's partitions.
"""

from datetime import date

import pytest

from towpath.schemas.failure import UsageError
from towpath.schemas.source_tables import outbox

DAY = date(2026, 11, 29)


def test_a_partition_has_the_name_of_its_day():
    """
    A table name of 54 bytes leaves enough bytes for the day.
    """
    table = outbox(f"shop.{'o' * 54}", is_partitioned=True)

    assert f"{'o' * 54}_20261129" == table.partition(DAY).table


@pytest.mark.parametrize("name", ["o" * 55, "\u00f6" * 28])
def test_an_outbox_whose_partitions_would_lose_their_day_is_refused(name):
    """
    Postgres truncates a name after 63 bytes, so all days would share one partition.
    """
    table = outbox(f"shop.{name}", is_partitioned=True)
    with pytest.raises(UsageError, match="63 bytes"):
        list(table.partition_statements(DAY))
