"""
A relay that is killed and restarted with a different configuration repeats nothing.

Records that Kafka already has must be recognized under the settings that produced them.
Once the relay has passed them all, the new settings take effect at a transaction
boundary.
"""

from collections import Counter

import pytest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

METADATA = """
[relay.transactions]
metadata = true
"""
OTHER_ROWS = """
[relay.rows]
skipped_operations = ["t"]
key_columns = {"shop.bare" = ["id"]}
"""


def count_records(records) -> Counter[tuple[str, str]]:
    """Count records by position and by topic, under the topic's original name."""
    return Counter(
        (record.topic.removeprefix("new."), record.position)
        for record in records
        if record.topic != "transaction"
        and b'"op":"t"' not in (record.value or b"")
        # Once this table has key columns, its deletes have tombstones.
        and (record.topic != "shop.bare" or record.value is not None)
    )


def differing(found: Counter, expected: Counter) -> tuple[list, list]:
    """Return the lost records and the surplus ones."""
    return sorted(expected - found), sorted(found - expected)


def test_a_configuration_changed_after_a_kill_repeats_nothing(faults):
    """
    Topic template, key columns, skipped operations and metadata change after the kills.
    """
    faults.prepare(sections=METADATA)
    for point, nth in [
        ("postgres confirmed", 1),
        ("marks stored", 2),
        ("produced+", 70),
    ]:
        faults.writer.write(2)
        faults.relay.die(point, nth)
    template = f'topic = "{faults.relay.prefix}.new.{{aggregate_type}}"'
    faults.relay.configure(sections=OTHER_ROWS, outbox=template)
    faults.relay.prepare()
    faults.writer.write(3)
    faults.relay.die("produced+", 30)
    faults.writer.write(3)
    faults.relay.start()
    lsn = faults.end()
    faults.await_confirmed(faults.relay, lsn)
    # From here on, the new settings apply.
    faults.writer.write()
    lsn = faults.end()
    faults.witness.start()
    faults.await_confirmed(faults.relay, lsn)
    faults.await_confirmed(faults.witness, lsn)
    ours, theirs = faults.relay.streamed(), faults.witness.streamed()
    keyed = [r for r in ours if r.topic == "shop.bare" and r.key is not None]

    assert (([], []), {1}, True, True) == (
        differing(count_records(ours), count_records(theirs)),
        set(count_records(ours).values()),
        any(record.topic.startswith("new.") for record in ours),
        bool(keyed),
    )


def test_tables_added_after_a_kill_are_published_once(faults):
    """
    A newly captured table does not shift the positions of earlier changes.
    """
    faults.source.execute("create table shop.late (id int primary key)")
    faults.prepare()
    faults.writer.write(2)
    faults.relay.die("produced+", 60)
    faults.relay.configure(tables=("shop.line", "shop.bare", "shop.late"))
    faults.relay.prepare()
    faults.source.execute("insert into shop.late values (1), (2)")
    faults.relay.start()
    lsn = faults.end()
    faults.await_confirmed(faults.relay, lsn)
    faults.source.execute("insert into shop.late values (3)")
    lsn = faults.end()
    faults.witness.start()
    faults.await_confirmed(faults.relay, lsn)
    faults.await_confirmed(faults.witness, lsn)
    ours, theirs = faults.relay.streamed(), faults.witness.streamed()
    late = [record.key for record in ours if record.topic == "shop.late"]

    assert (([], []), True) == (
        differing(
            count_records(record for record in ours if record.topic != "shop.late"),
            count_records(record for record in theirs if record.topic != "shop.late"),
        ),
        b'{"id":3}' in late and len(late) == len(set(late)),
    )


def test_changing_the_delivery_mode_after_a_kill_loses_and_repeats_nothing(faults):
    """
    Records of an open transaction never count as published, in either delivery mode.
    """
    transactional = 'delivery = "transactional"'
    faults.prepare(relay=transactional)
    faults.writer.write(2)
    faults.relay.die("postgres confirmed", 1)
    faults.writer.write(2)
    faults.relay.die("produced+", 40)
    faults.relay.configure()
    faults.writer.write()
    faults.relay.die("produced+", 40)
    faults.relay.configure(relay=transactional)
    faults.writer.write()
    faults.relay.start()

    assert faults.finish_and_compare() > 100


def test_a_new_publication_is_used_once_the_log_contains_it(faults):
    """
    After a kill, the relay uses the old publication until the log contains the new one.
    """
    faults.prepare()
    faults.writer.write(2)
    faults.relay.die("produced+", 60)
    faults.writer.write()
    other = 'publication = "other"\noutbox_publication = "other_outbox"'
    faults.relay.configure(source=other)
    faults.relay.prepare()
    faults.writer.write()
    faults.relay.start()

    assert faults.finish_and_compare() > 100


def test_a_new_publication_after_a_clean_stop_loses_nothing(faults):
    """
    Changes made before the new publication existed are not skipped.
    """
    faults.prepare()
    faults.writer.write()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    faults.relay.stop()
    faults.writer.write(2)
    other = 'publication = "other"\noutbox_publication = "other_outbox"'
    faults.relay.configure(source=other)
    faults.relay.prepare()
    faults.writer.write()
    faults.relay.start()

    assert faults.finish_and_compare() > 100


def test_a_publication_newer_than_the_log_is_refused(faults):
    """
    Changes made without a publication would be skipped, so the relay halts.
    """
    faults.prepare()
    faults.writer.write()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    faults.relay.stop()
    faults.writer.write()
    for name in ("towpath", "towpath_outbox"):
        faults.source.execute(f"drop publication {name}")
    faults.writer.write()
    faults.relay.prepare()
    faults.writer.write()
    code = faults.relay.start().wait(30)
    reason = faults.relay.logged("relay halted")[-1]["reason"]

    assert (3, True) == (code, "publication is newer than the log" in reason)
