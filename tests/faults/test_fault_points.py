"""
A relay that is killed at a named point loses nothing and repeats nothing (I3, I4).

Each test writes a history with every kind of record, and makes the relay kill itself
several times in a row. Then it compares the topics with those of a relay that read the
same log without being killed.
"""

import json

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

EVERYTHING = """
[relay.transactions]
metadata = true
[relay.messages]
publish = true
"""

# Each chain begins with empty topics, which fill up from one kill to the next.
CHAINS = {
    "from the first topic": [
        *[("topic made", 4), ("before first mark", 2), ("first mark+", 1)],
        *[("produced", 1), ("produced+", 40), ("produced", 100)],
        *[("acknowledged", 1), ("acknowledged", 57)],
        *[("deleted+", 1), ("tombstone+", 2), ("tombstone", 1)],
    ],
    "from the first state": [
        *[("before lineage", 1), ("lineage", 1)],
        *[("before settings", 1), ("settings", 1)],
        *[("before marks", 2), ("marks produced", 2), ("marks produced+", 3)],
        *[("marks stored", 1), ("postgres confirmed", 1), ("marks stored", 2)],
        *[("produced+", 60), ("before tails", 1), ("in tails", 5)],
        *[("after tails", 1), ("stream begun", 1), ("produced+", 20)],
    ],
}


IN_TRANSACTIONS = [
    ("produced+", 40),
    ("before commit", 2),
    ("commit", 2),
    ("acknowledged", 30),
    ("marks produced+", 2),
]


@pytest.mark.parametrize("deaths", CHAINS.values(), ids=CHAINS)
def test_kills_at_every_point_lose_and_repeat_nothing(faults, deaths):
    """
    The topics end up equal to those of an uninterrupted run (A96, B1).
    """
    faults.prepare(sections=EVERYTHING)
    faults.writer.write()
    for point, nth in deaths:
        faults.writer.write()
        faults.relay.die(point, nth)
    faults.writer.write()
    faults.relay.start()

    assert faults.finish_and_compare() > 100


def test_kills_during_kafka_transactions_lose_and_repeat_nothing(faults):
    """
    Consumers that read only committed records see each record once (A96, B57).
    """
    faults.prepare(relay='delivery = "transactional"', sections=EVERYTHING)
    for point, nth in IN_TRANSACTIONS:
        faults.writer.write()
        faults.relay.die(point, nth)
    faults.relay.start()

    assert faults.finish_and_compare() > 100


def test_kills_during_a_large_transaction_lose_and_repeat_nothing(faults):
    """
    A transaction of 30,000 rows is published across four kills and a stop.
    """
    faults.prepare(relay="stop_timeout_s = 0.2", sections=EVERYTHING)
    faults.source.execute(
        "insert into shop.line select n, 'z', 1 from generate_series(1, 30000) n"
    )
    for point, nth in [
        ("produced+", 4000),
        ("acknowledged", 2),
        ("produced", 3000),
        ("marks produced", 1),
    ]:
        faults.relay.die(point, nth)
    faults.relay.start()
    faults.until_logged("relay streaming", 1)
    faults.relay.stop()
    faults.relay.start()

    assert faults.finish_and_compare() > 30_000


def test_kills_while_a_signal_is_answered_do_not_prevent_the_snapshot(faults):
    """
    A signal that was read but not answered is read again, and answered once.

    The snapshot ends incomplete: the writer's rows of over a megabyte are dead letters.
    """
    faults.prepare()
    faults.source.execute(
        "insert into shop.line select n, 'old', 1 from generate_series(1, 50) n"
    )
    wanted = {
        "data-collections": ["shop.line"],
        "type": "incremental",
        "relay": faults.relay.prefix,
    }
    faults.source.execute(
        "insert into towpath.signal (id, type, data)"
        " values ('one', 'execute-snapshot', %s)",
        (json.dumps(wanted),),
    )
    for point in ("signal held", "signal answered"):
        faults.relay.die(point)
        faults.writer.write()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())

    def read() -> set[bytes]:
        found = faults.relay.records("shop.line")
        return {m.key() for m in found if "snapshot" in dict(m.headers())}

    keys = {f'{{"id":{n}}}'.encode() for n in range(1, 51)}
    faults.until(lambda: keys <= read(), "the snapshot has read all rows")
    faults.check_order(faults.relay.streamed())

    assert [("incomplete",)] == faults.source.execute(
        "select status from towpath.signal where id = 'one'"
    ).fetchall()
