"""A platform without the shop is a mistake of the command, not a traceback."""

from contextlib import contextmanager

import psycopg
import pytest

from towpath.deploy.demo import platform
from towpath.deploy.errors import SourceUnreachableError, StepError


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (psycopg.errors.UndefinedTable("no relation shop.orders"), StepError),
        (psycopg.errors.InsufficientPrivilege("not shop.orders"), StepError),
        (
            psycopg.OperationalError("no server, so no shop.orders"),
            SourceUnreachableError,
        ),
    ],
)
def test_a_shop_that_cannot_be_read_is_reported(failure, expected, monkeypatch):
    """
    ``towpath demo --join`` may name another database.
    """

    @contextmanager
    def failing(_dsn):
        raise failure
        yield

    monkeypatch.setattr(platform, "connected", failing)

    with pytest.raises(expected, match=r"shop\.orders"):
        platform.count_orders("x")
