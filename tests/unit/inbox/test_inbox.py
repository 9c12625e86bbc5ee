"""The statements of an inbox, without a database."""

import pytest

from support.inbox_place import event
from towpath.inbox import Inbox
from towpath.schemas.failure import UsageError

INBOX = Inbox("c")


def lock_of(steps):
    """Return the parameters of the lock with which steps begin."""
    statement = next(steps)
    assert "pg_advisory_xact_lock" in "".join(statement.parts)
    return statement.values


def key_stored(one):
    """Return the key that is stored when an event is parked."""
    steps = INBOX.park(one, "unreadable")
    next(steps)
    steps.send([])
    inserted = steps.send([("1",)])
    return next(v for name, v in inserted.values.items() if name.startswith("key_"))


@pytest.mark.parametrize("key", ["a", "", "\0\0\0\7", "\udcff\1"])
def test_a_replay_takes_the_lock_of_the_events_that_arrive(key):
    """
    Keys that Postgres cannot store are stored in another form, which is replayed.
    """
    arriving = event(id="1", key=key)
    parked = event(id="2", key=key_stored(arriving))

    assert lock_of(INBOX.park_behind(arriving)) == lock_of(INBOX.leave(parked))


def test_events_without_a_key_take_locks_of_their_own():
    """
    They have no order among themselves.
    """
    first, second = event(id="1", key=None), event(id="2", key=None)

    assert lock_of(INBOX.leave(first)) != lock_of(INBOX.leave(second))


def test_a_consumer_without_a_name_is_refused():
    """
    As a Kafka group, the empty name would end the process.
    """
    with pytest.raises(UsageError, match="must not be empty"):
        Inbox("")
