"""The dead letters that a request names, and the outcome that is reported."""

import pytest

from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError
from towpath.sinks.change import Origin, Record
from towpath.sinks.dead_letters.entries import DeadLetter, Reply, Resolution, Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.dead_letters.requests import chosen_subjects, request_outcomes

TOPIC = "towpath.shop.orders"


def letter(order, offset):
    """Return a dead letter that parks an order."""
    position = {"position": b"%016x.0000000000" % offset}
    key = b'{"id":%d}' % order
    record = Record(Origin(TOPIC, 0, offset), key, b"x", position)
    return DeadLetter(record, "not JSON", "orders", is_parking=True)


@pytest.fixture
def open_dead_letters():
    """Provide the open dead letters of two orders: two of order 7, one of order 8."""
    return OpenDeadLetters().read([letter(7, 8), letter(8, 16), letter(7, 24)])


class AnsweringTopic:
    """A dead-letter topic whose sink resolves order 7, refuses 8 and ignores others."""

    def __init__(self):
        self.requested = []

    def request(self, requests):
        """Keep the requests."""
        self.requested += requests

    def since(self):
        """Return the answers."""
        answers = {b'{"id":7}': self._resolved, b'{"id":8}': self._refused}
        return [
            answers[one.subject.key](one)
            for one in self.requested
            if one.subject.key in answers
        ]

    def _resolved(self, one):
        return Resolution(one.subject, "f", "replayed", one.id)

    def _refused(self, one):
        return Reply(one.id, "not JSON", one.subject)


def test_several_keys_name_their_subjects_once(open_dead_letters):
    """
    A key may be given as JSON or as its values; without keys, all are chosen.
    """
    twice = chosen_subjects(open_dead_letters, "cache", ["8", "7", '{"id":7}'])
    every = chosen_subjects(open_dead_letters, "cache", None)

    assert [b'{"id":8}', b'{"id":7}'] == [subject.key for subject in twice]
    assert set(twice) == set(every)


@pytest.mark.parametrize("keys", [["7", "9"], ["9"]])
def test_an_unknown_key_is_refused_before_anything_is_requested(
    open_dead_letters, keys
):
    """
    The message names the command that lists the known keys.
    """
    with pytest.raises(UsageError, match="the key 9 has no dead letters") as refused:
        chosen_subjects(open_dead_letters, "cache", keys)

    assert "towpath dead-letters list --sink cache" in str(refused.value)


def test_a_sink_without_dead_letters_has_nothing_to_replay():
    """
    Even a request for all dead letters is refused.
    """
    with pytest.raises(UsageError, match="the sink has no dead letters"):
        chosen_subjects(OpenDeadLetters(), "cache", None)


def test_each_key_has_its_own_outcome(open_dead_letters):
    """
    One key is done, one remains a dead letter, and one waits for the sink.
    """
    open_dead_letters.read([letter(9, 32)])
    subjects = chosen_subjects(open_dead_letters, "cache", None)
    topic = AnsweringTopic()
    lines = request_outcomes(
        topic, open_dead_letters, subjects, Verb.REPLAY, SystemClock(), 0.0
    )

    assert {
        ('{"id":7}', 2, "done", "replayed"),
        ('{"id":8}', 1, "refused", "remains a dead letter: not JSON"),
        (
            *('{"id":9}', 1, "open"),
            "the sink has not answered yet; the request stays open",
        ),
    } == {(one["key"], one["letters"], one["state"], one["outcome"]) for one in lines}
