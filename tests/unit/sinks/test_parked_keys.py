"""
Parked keys: which changes wait, what releases a key, and the dead-letter commands.
"""

import pytest

from support.copying import replace
from support.dead_letters import Letters, StoppedClock, context_of
from support.parked_shop import FILL, KEY, ROUTES, TOPIC, RefusingSink, Shop, change
from towpath.sinks.apply import replay
from towpath.sinks.apply.batch import RecordWriter
from towpath.sinks.apply.refetch_requests import NOT_BY_KEY
from towpath.sinks.apply.replay import CANNOT_ERASE, CANNOT_READ, NO_ROUTE, NOTHING_OPEN
from towpath.sinks.change import Origin, Record
from towpath.sinks.changes.decode import decode
from towpath.sinks.dead_letters import requests
from towpath.sinks.dead_letters.entries import (
    BEHIND,
    LATER,
    DeadLetter,
    DeadLetterRequest,
    ParkedKey,
    Reply,
    Resolution,
    Subject,
    Verb,
    dead_letter_headers,
    entry_of,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters, ParkedKeys
from towpath.sinks.dead_letters.requests import named_subjects, open_summaries
from towpath.sinks.errors import (
    BrokerUnavailableError,
    TargetUnavailableError,
    TooManyParkedError,
)
from towpath.sinks.ports import Batch


@pytest.fixture
def shop():
    """Return a shop whose order 7 is parked after a note that the sink refuses."""
    made = Shop()
    made.write(change(1, "c", note="a"), change(2, "c", order=8, note="b"))
    made.write(change(3, note="bad"))
    return made


def test_later_changes_wait_only_for_their_own_key(shop: Shop):
    """
    A later change is parked, although the sink would accept it.
    """
    result = shop.write(change(4, note="c"), change(5, order=8, note="d"))

    assert (
        (1, 1, 1, 1),
        [(3, "the note is too long"), (4, BEHIND)],
        {"7": "a", "8": "d"},
    ) == (
        (result.rows, result.dead_letters, result.held_back, result.parked),
        shop.letters.reasons(),
        shop.sink.notes,
    )


def test_a_key_remains_parked_across_a_restart(shop: Shop):
    """
    The topic is the source of truth: a new driver reads the parked keys from it.
    """
    shop.begin()
    shop.write(change(4, "d"))

    assert ([3, 4], "a") == (
        [offset for offset, _ in shop.letters.reasons()],
        shop.sink.notes["7"],
    )


def test_a_repeated_batch_writes_no_dead_letter_twice(shop: Shop):
    """
    Positions decide this, even if a restart reads from the first record onward.
    """
    again = (change(1, "c", note="a"), change(3, note="bad"), change(4, note="c"))
    shop.write(*again)
    shop.begin()
    result = shop.write(*again)

    assert (0, [3, 4]) == (
        result.dead_letters,
        [offset for offset, _ in shop.letters.reasons()],
    )


def test_a_row_read_above_all_parked_changes_releases_the_key(shop: Shop):
    """
    The row may come from the sink's own topic; later changes are no longer parked.
    """
    shop.write(change(4, note="c"))
    fill = change(5, "r", topic=FILL, note="as it is")
    first = shop.write(fill)
    second = shop.write(change(6, note="next"))

    assert (0, 0, "next", []) == (
        first.parked,
        second.dead_letters,
        shop.sink.notes["7"],
        open_summaries(OpenDeadLetters().read(shop.letters.entries())),
    )


def test_a_row_reported_as_absent_releases_the_key(shop: Shop):
    """
    A snapshot of listed keys reports a delete for each key that it does not find.
    """
    gone = change(4, "d")
    gone = replace(gone, headers={"position": b"%016x.-" % 40})
    result = shop.write(gone)

    assert (0, None) == (result.parked, shop.sink.notes["7"])


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(change(4, "r", topic=FILL, note="older"), id="not above all"),
        pytest.param(change(5, "r", unchanged=["note"]), id="not whole"),
        pytest.param(change(5, note="streamed"), id="not read"),
        pytest.param(change(5, "r", note="bad"), id="refused itself"),
    ],
)
def test_a_partial_or_older_row_does_not_release_a_parked_key(shop: Shop, read: Record):
    """
    Only a whole current row releases the key.
    """
    shop.write(change(4, note="c"))
    result = shop.write(read)

    assert (1, "a") == (result.parked, shop.sink.notes["7"])


def test_a_floor_above_all_parked_changes_releases_the_key(shop: Shop):
    """
    No row remains below the floor, and there is nothing to replay.
    """
    headers = {"position": b"%016x.0000000000" % 80}
    truncated = Record(Origin(TOPIC, 0, 9), None, b'{"op": "t"}', headers)

    assert (0, {}) == (shop.write(truncated).parked, shop.sink.notes)


def test_a_replay_is_in_order_and_releases_the_key(shop: Shop):
    """
    The partial change is merged with the one before it, which was refused.
    """
    shop.write(change(5, status="paid", unchanged=["note"]), change(4, note="c"))
    shop.sink.is_repaired = True
    answer = shop.ask(Verb.REPLAY)
    after = shop.write(change(6, order=7, status="sent", unchanged=["note"]))

    assert ("replayed", "c", (0, 0)) == (
        answer.how,
        shop.sink.notes["7"],
        (after.dead_letters, after.parked),
    )


def test_a_replay_does_not_overwrite_newer_rows(shop: Shop):
    """
    A replay goes through the same guard as any batch.
    """
    shop.sink.is_repaired = True
    newer = decode([change(100, "r", note="newer")], ROUTES).changes
    shop.sink.apply(Batch(0, tuple(newer)))
    answer = shop.ask(Verb.REPLAY)

    assert (True, "newer") == (isinstance(answer, Resolution), shop.sink.notes["7"])


def test_a_replay_that_is_refused_again_changes_nothing(shop: Shop):
    """
    The answer gives the reason, and the dead letters remain open.
    """
    answer = shop.ask(Verb.REPLAY)

    assert (Reply, "the note is too long", 1, 1) == (
        type(answer),
        answer.text,
        len(shop.parked),
        len(OpenDeadLetters().read(shop.letters.entries()).of(KEY)),
    )


def test_the_row_of_a_discarded_dead_letter_is_refetched():
    """
    The key is released; its records do not become dead letters again.
    """
    shop = Shop(accepts_repairs=True)
    shop.write(change(3, note="bad"))
    answer = shop.ask(Verb.DISCARD)
    again = shop.write(change(3, note="bad"))
    shop.begin()
    result = shop.write(change(4, note="c"))

    assert (True, [("orders", (7,))], (0, 1), ("c", 0)) == (
        answer.how.startswith("discarded"),
        shop.repairs.keys,
        (again.dead_letters, again.stale),
        (shop.sink.notes["7"], result.parked),
    )


def test_a_request_that_fails_does_not_stop_the_others(shop: Shop):
    """
    The failed request is processed last in the next turn.
    """
    shop.sink.is_repaired = True
    shop.write(replace(change(4, order=8), value=b"cut"))
    shop.sink.unavailable = "7"
    other = Subject(TOPIC, b'{"order_id":8}')
    shop.letters.request(
        DeadLetterRequest("one", Verb.REPLAY, KEY),
        DeadLetterRequest("two", Verb.DISCARD, other),
    )
    for _ in range(2):
        with pytest.raises(TargetUnavailableError):
            shop.requests.process()
    replies = OpenDeadLetters(frozenset()).read(shop.letters.entries()).replies
    shop.sink.unavailable = None
    shop.requests.process()

    assert ({"two"}, 0) == (set(replies), len(shop.parked))


def test_dead_letters_of_many_requests_are_read_in_turns(shop: Shop, monkeypatch):
    """
    A turn holds its dead letters in memory together; a single key may exceed the limit.
    """
    shop.sink.is_repaired = True
    keys = [b'{"order_id":%d}' % order for order in (7, 8, 9)]
    for number, order in enumerate((7, 7, 7, 8, 9), 4):
        shop.write(replace(change(number, order=order), value=b"cut"))
    monkeypatch.setattr(replay, "MAX_DEAD_LETTERS", 2)
    shop.letters.request(
        *(
            DeadLetterRequest(f"{key}", Verb.DISCARD, Subject(TOPIC, key))
            for key in keys
        )
    )
    left = []
    for _ in range(2):
        shop.requests.process()
        left.append(len(shop.parked))
    replies = OpenDeadLetters(frozenset()).read(shop.letters.entries()).replies

    assert [2, 0] == left
    assert ["discarded"] * 3 == [one.how for one in replies.values()]


def _unanswered(*_):
    message = "the signal topic does not answer"
    raise BrokerUnavailableError(message)


def test_a_key_that_is_to_be_discarded_is_not_retried(monkeypatch):
    """
    The first attempt to discard it fails; the record is not written before the second.
    """
    now_s = [0.0]
    monkeypatch.setattr(StoppedClock, "monotonic_s", lambda _: now_s[0])
    shop = Shop(accepts_repairs=True)
    shop.sink.reason = f"{LATER}the receiver is busy"
    shop.write(change(1, "c", note="a"))
    shop.write(change(3, note="bad"))
    shop.requests.process()
    now_s[0] = 10_000.0
    shop.sink.is_repaired = True
    shop.letters.request(DeadLetterRequest("one", Verb.DISCARD, KEY))
    with monkeypatch.context() as broken:
        broken.setattr(shop.repairs, "request_keys", _unanswered)
        with pytest.raises(BrokerUnavailableError):
            shop.requests.process()
    parked = len(shop.parked)
    shop.requests.process()

    assert ({"7": "a"}, 1, 0) == (shop.sink.notes, parked, len(shop.parked))


@pytest.mark.parametrize("headers", [None, {}], ids=["with a position", "without one"])
def test_the_row_of_an_unreadable_record_is_refetched(headers):
    """
    Its key identifies the row.
    """
    shop = Shop(accepts_repairs=True)
    cut = replace(change(3), value=b'{"op": "u", "aft')
    shop.write(cut if headers is None else replace(cut, headers=headers))
    lone = None if headers is None else (0, 3)
    answer = shop.ask(Verb.DISCARD, replace(KEY, at=lone))

    assert ("discarded; its row was requested", [("orders", (7,))], 0) == (
        answer.how,
        shop.repairs.keys,
        len(shop.parked),
    )


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}], ids=["array", "composite"])
def test_the_route_of_a_discarded_key_that_no_signal_can_list_is_requested(value):
    """
    A batch does the same, because the text of such a key is not the key of any row.
    """
    shop = Shop(accepts_repairs=True)
    record = change(3, order=value, note="bad")
    shop.write(record)
    answer = shop.ask(Verb.DISCARD, Subject(TOPIC, record.key))

    assert ("discarded; its row was requested", [], [("orders", NOT_BY_KEY)]) == (
        *(answer.how, shop.repairs.keys),
        shop.repairs.routes,
    )


def test_a_record_without_a_readable_key_is_discarded_alone():
    """
    Its row is unknown, so none is requested.
    """
    shop = Shop(accepts_repairs=True)
    shop.write(replace(change(3), key=b"{cut"))
    answer = shop.ask(Verb.DISCARD, Subject(TOPIC, b"{cut"))

    assert ("discarded", []) == (answer.how, shop.repairs.keys)


def test_a_command_waits_for_a_stopped_sink(shop: Shop):
    """
    It remains in the topic, and is carried out once, at the next start.
    """
    shop.sink.is_repaired = True
    shop.letters.request(DeadLetterRequest("one", Verb.REPLAY, KEY))
    shop.begin()
    shop.requests.process()
    count = len(shop.letters.records)
    shop.begin()
    shop.requests.process()

    assert ("bad", count) == (shop.sink.notes["7"], len(shop.letters.records))


def test_a_command_survives_an_unavailable_broker(shop: Shop):
    """
    A command that cannot be answered is carried out again.
    """
    shop.sink.is_repaired = True
    shop.letters.request(DeadLetterRequest("one", Verb.REPLAY, KEY))
    shop.letters.fail = True
    with pytest.raises(BrokerUnavailableError):
        shop.requests.process()
    shop.letters.fail = False
    shop.requests.process()

    assert 0 == len(shop.parked)


@pytest.mark.parametrize(
    ("accepts_repairs", "is_read_again", "requested", "erased", "expected"),
    [
        (True, True, [("orders", ("7",))], [("orders", ("7",))], "erased"),
        (False, True, [], [], CANNOT_READ),
        (False, False, [], [("orders", ("7",))], "erased"),
    ],
)
def test_keys_are_erased_only_after_their_rows_were_requested(
    accepts_repairs, is_read_again, requested, erased, expected
):
    """
    A crash in between leaves no row missing; parked dead letters remain.
    """
    shop = Shop(accepts_repairs=accepts_repairs)
    seen = []

    def erase(route, keys):
        assert requested == shop.repairs.keys
        seen.append((route, keys))

    shop.sink.erase = erase
    shop.write(change(3, note="bad"))
    request = DeadLetterRequest(
        "e", Verb.ERASE, Subject(TOPIC, None), "orders", ("7",), is_read_again
    )
    answer = shop.carry_out(request)
    text = answer.how if isinstance(answer, Resolution) else answer.text

    assert (requested, erased, expected, 1) == (
        shop.repairs.keys,
        seen,
        text,
        len(shop.parked),
    )


def test_a_withdrawn_command_erases_nothing(shop: Shop):
    """
    A sink that starts later finds the sender's own answer, which withdraws the command.
    """
    shop.sink.erase = lambda _route, _keys: pytest.fail("erased")
    subject = Subject(TOPIC, None)
    shop.letters.request(DeadLetterRequest("e", Verb.ERASE, subject, "orders", ("7",)))
    shop.letters.reply(Reply("e", "withdrawn", subject))
    shop.begin()
    shop.requests.process()

    assert [Reply("e", "withdrawn", subject)] == [
        entry for entry in shop.letters.entries() if isinstance(entry, Reply)
    ]


def test_a_sink_without_erase_refuses_the_command(shop: Shop):
    """
    A command for a route that the sink does not have is refused too.
    """
    request = DeadLetterRequest("e", Verb.ERASE, Subject(TOPIC, None), "orders", ("7",))
    answer = shop.carry_out(request)
    stray = shop.carry_out(replace(request, id="f", route="gone"))

    assert (CANNOT_ERASE, NO_ROUTE) == (answer.text, stray.text)


def test_a_command_without_dead_letters_is_answered(shop: Shop):
    """
    A different command may have resolved them first.
    """
    answer = shop.ask(Verb.REPLAY, Subject(TOPIC, b'{"order_id":99}'))

    assert NOTHING_OPEN == answer.text


def test_a_single_dead_letter_is_replayed_by_its_record(shop: Shop):
    """
    A record without a position parks nothing, but is identified by its offset.
    """
    lone = replace(change(9, "c", order=9, note="x"), headers={})
    shop.write(lone)
    subject = Subject(TOPIC, b'{"order_id":9}', (0, 9))
    refused = shop.ask(Verb.REPLAY, subject)
    given_up = shop.ask(Verb.DISCARD, subject)

    assert (True, "discarded", 1) == (
        "position" in refused.text,
        given_up.how,
        len(OpenDeadLetters().read(shop.letters.entries()).dead_letters),
    )


def test_a_dead_letter_restores_the_original_record():
    """
    The record's own headers may even have the same names as ours.
    """
    headers = {"position": b"x", "reason": b"its own", "topic": b"mine", "parked": b""}
    letter = DeadLetter(
        Record(Origin("a.b", 2, 3), None, b"v", headers), "why", "route", False
    )

    assert letter == entry_of(None, b"v", dead_letter_headers(letter))


def test_too_many_parked_keys_are_refused_before_they_are_written():
    """
    The process halts before it writes dead letters that it could not remember.
    """
    parked = ParkedKeys(max_keys=1)
    letters = Letters()
    context = context_of(letters, parked=parked)
    sink = RefusingSink()
    writer = RecordWriter(ROUTES, sink, context)
    batch = [change(1, order=1, note="bad"), change(2, order=2, note="bad")]
    with pytest.raises(TooManyParkedError):
        writer.write_records([*batch, change(3, order=3)], 0)

    assert [] == letters.records


def test_resolutions_of_other_keys_are_not_kept_in_memory():
    """
    The topic keeps everything: it has a resolution for each key ever parked.
    """
    subjects = [Subject(TOPIC, b"%d" % number) for number in range(3)]
    resolutions = [
        Resolution(one, "a", "replayed", one.key.decode()) for one in subjects
    ]
    open_dead_letters = OpenDeadLetters(frozenset(subjects[:1])).read(resolutions)

    assert subjects[:1] == list(open_dead_letters._resolved)
    assert {"0", "1", "2"} == open_dead_letters.replies.keys()


def test_a_check_does_not_iterate_over_all_parked_keys():
    """
    A start checks after each entry of the topic.

    With an iteration each time, 40,000 keys took over a minute.
    """

    class Waiting(dict):
        """Allows lookups, but no iteration."""

        def __iter__(self):
            raise AssertionError

        keys = __iter__

    parked = ParkedKeys()
    parked._waiting = Waiting()
    records = (change(3), change(4, order=8))
    letters = [DeadLetter(record, "bad", "orders", True) for record in records]
    parked.restore(letters[:1])
    parked.check(letters)

    assert 1 == len(parked)


def test_the_lowest_parked_position_is_the_lowest_of_all_keys(shop: Shop):
    """
    It bounds the tombstones that may be purged, however many keys are parked.
    """
    shop.write(change(2, order=1, note="bad"), change(3, order=2, note="bad"))

    assert f"{16:016x}.0000000000" == shop.parked.lowest()


def test_a_resolution_below_a_parked_change_keeps_the_key_parked(shop: Shop):
    """
    Only a resolution of the last parked change releases the key.
    """
    shop.write(change(2, note="bad"), change(3, note="c"))
    parked = ParkedKey(TOPIC, b'{"order_id":7}')
    is_parked = []
    for number in (2, 3):
        position = f"{8 * number:016x}.0000000000"
        shop.parked.resolve(Resolution(KEY, position, "replayed"))
        is_parked.append(not {parked}.isdisjoint(shop.parked.keys()))

    assert [True, False] == is_parked


def test_a_dead_letter_below_the_lowest_parked_position_lowers_it(shop: Shop):
    """
    An older change that arrives again and is refused is not lost.
    """
    shop.write(change(4, note="c"))
    shop.write(change(2, note="bad"))
    open_ = OpenDeadLetters().read(shop.letters.entries()).of(KEY)

    assert ([2, 3, 4], f"{16:016x}.0000000000") == (
        [letter.record.origin.offset for letter in open_],
        shop.parked.waiting(ParkedKey(TOPIC, b'{"order_id":7}')).lowest,
    )


@pytest.mark.parametrize("text", ['{"order_id":7}', "7"])
def test_a_parked_key_is_found_by_its_text_and_by_its_values(shop: Shop, text: str):
    """
    A key may be given as it is written in records, or as its values.
    """
    shop.write(change(4, note="c"))
    (line,) = open_summaries(OpenDeadLetters().read(shop.letters.entries()), text)

    assert (2, "the note is too long", "orders", True) == (
        line["letters"],
        line["reason"],
        line["route"],
        line["is_parked"],
    )


class UnsureLetters(Letters):
    """A topic whose next resolution is written although the write seems to fail."""

    is_unsure = True

    def resolve(self, resolutions):
        """Write; the first call fails afterwards."""
        super().resolve(resolutions)
        if self.is_unsure:
            self.is_unsure = False
            message = "no answer in time"
            raise BrokerUnavailableError(message)


@pytest.mark.parametrize("reason", ["the note is too long", f"{LATER}busy"])
def test_a_resolution_that_seemed_to_fail_releases_its_key(monkeypatch, reason: str):
    """
    The next turn finds it in the topic, whether a request or a retry wrote it.
    """
    now_s = [0.0]
    monkeypatch.setattr(StoppedClock, "monotonic_s", lambda _: now_s[0])
    shop = Shop()
    shop.letters = UnsureLetters()
    shop.sink.reason = reason
    shop.begin()
    shop.write(change(4, note="bad"))
    shop.requests.process()
    shop.sink.is_repaired = True
    if not reason.startswith(LATER):
        shop.letters.request(DeadLetterRequest("one", Verb.REPLAY, KEY))
    now_s[0] = 100.0
    with pytest.raises(BrokerUnavailableError):
        shop.requests.process()
    shop.requests.process()
    result = shop.write(change(5, note="c"))

    assert (0, 0, "c") == (result.parked, result.dead_letters, shop.sink.notes["7"])


@pytest.mark.parametrize("text", ["7:true", 't {"id":7,"is_eu":true}'])
def test_a_key_is_named_as_records_write_its_values(text: str):
    """
    A boolean is written as in records, not as in Python.
    """
    subject = Subject("t", b'{"id":7,"is_eu":true}')
    open_dead_letters = OpenDeadLetters(dead_letters={subject: {}})

    assert [subject] == named_subjects(open_dead_letters, text)


def test_a_commands_sender_gets_the_answer(shop: Shop):
    """
    If the sink is not running, the sender learns that there was no answer.
    """

    class Topic:
        """The topic as the sender sees it; the sink runs in between."""

        is_running = True

        def request(self, commands):
            """Take commands; the sink answers immediately, if it is running."""
            self.before = len(shop.letters.records)
            shop.letters.request(*commands)
            if self.is_running:
                shop.requests.process()

        def since(self):
            """Return the later entries."""
            return [entry_of(*record) for record in shop.letters.records[self.before :]]

    shop.sink.is_repaired = True
    topic = Topic()
    done = requests.request_each(topic, [KEY], Verb.REPLAY, StoppedClock(), 0.0)
    topic.is_running = False
    waiting = requests.request_each(topic, [KEY], Verb.REPLAY, StoppedClock(), 0.0)

    assert ("replayed", None) == (done[KEY].how, waiting[KEY])


def test_dead_letters_that_were_not_durable_are_written_by_the_retry(shop: Shop):
    """
    The same writer retries the batch, and must not count them as written.
    """
    batch = (change(4, note="c"), change(5, order=9, note="bad"))
    shop.letters.fail = True
    with pytest.raises(BrokerUnavailableError):
        shop.write(*batch)
    shop.letters.fail = False
    shop.write(*batch)

    assert [3, 4, 5] == [offset for offset, _ in shop.letters.reasons()]
