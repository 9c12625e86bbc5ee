"""The statements of an inbox, without a database."""

import pytest

from support.inbox_place import event
from towpath.inbox import Inbox
from towpath.schemas.failure import UsageError

INBOX = Inbox("c")


def lock_of(steps):
    """Return the parameters of the lock, which the first step takes."""
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
def test_a_replay_takes_the_same_lock_as_arriving_events(key):
    """
    Keys that Postgres cannot store are replayed in a different, storable form.
    """
    arriving = event(id="1", key=key)
    parked = event(id="2", key=key_stored(arriving))

    assert lock_of(INBOX.park_behind(arriving)) == lock_of(INBOX.leave(parked))


def test_events_without_a_key_take_separate_locks():
    """
    They are not ordered among themselves.
    """
    first, second = event(id="1", key=None), event(id="2", key=None)

    assert lock_of(INBOX.leave(first)) != lock_of(INBOX.leave(second))


def test_a_consumer_without_a_name_is_refused():
    """
    As the name of a Kafka group, an empty name would abort the process.
    """
    with pytest.raises(UsageError, match="must not be empty"):
        Inbox("")
