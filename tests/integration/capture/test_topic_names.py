"""Tables whose names map to one topic are refused before any row is lost."""

import pytest

from towpath.relay.__main__ import init
from towpath.relay.encode.outbox_columns import RESERVED_TOPIC
from towpath.relay.errors import NotPreparedError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

COLLIDING = ['s."a$b"', "s.a_b", 's."c.d"', '"s.c".d', 't."u v"', "t.u_v", "dead.relay"]


def create(followed, *tables: str) -> None:
    """Create tables with the same columns."""
    for table in tables:
        followed.execute(f"create table {table} (id int primary key, v int)")


def test_init_and_start_report_all_collisions_together(followed):
    """
    `relay init` refuses, and so does a start with a manually created publication.
    """
    followed.execute('create schema t; create schema dead; create schema "s.c"')
    create(followed, *COLLIDING, "s.plain")
    followed.tables = [r"(s|t|dead|s\.c)\..*"]
    followed.write()
    with pytest.raises(NotPreparedError) as refused:
        init(followed.config, dry_run=False)
    followed.tables = ["s.plain"]
    followed.prepare()
    tables = ", ".join(COLLIDING)
    followed.execute(f"alter publication towpath add table {tables}")
    followed.tables = [r"(s|t|dead|s\.c)\..*"]
    followed.write()
    followed.start()
    code = followed.ended()
    reason = followed.logged("relay halted")[-1]["reason"]

    prefix = followed.prefix
    expected = (
        f"the tables s.a$b and s.a_b share one topic: {prefix}.s.a_b",
        f'the tables s."c.d" and "s.c".d share one topic: {prefix}.s.c.d',
        f"the tables t.u v and t.u_v share one topic: {prefix}.t.u_v",
        f"the topic of the table dead.relay, {prefix}.dead.relay, is the topic of dead",
    )
    assert [] == [text for text in expected if text not in str(refused.value)]
    assert [] == [text for text in expected if text not in reason]
    assert 3 == code
    assert "s.plain" not in reason


def test_a_table_whose_topic_is_taken_is_not_captured(followed):
    """
    The rows of the first table do not change while the relay runs, or after a restart.
    """
    followed.tables = [r"s\..*"]
    followed.prepare()
    create(followed, "s.a_b")
    followed.start()
    followed.wait_for_log("table captured")
    followed.execute("insert into s.a_b values (1, 1)")
    create(followed, 's."a$b"')
    followed.execute('insert into s."a$b" values (1, 2), (2, 2)')
    refused = followed.wait_for_log("table not captured")
    followed.confirm()
    followed.stop()
    followed.start()
    followed.execute('update s."a$b" set v = 3')
    followed.execute('delete from s."a$b" where id = 1')
    followed.confirm()
    rows = followed.fold("s.a_b")
    followed.stop()
    followed.execute("alter publication towpath drop table s.a_b")
    followed.execute('alter publication towpath add table s."a$b"')
    followed.tables = ["s.a$b"]
    followed.write()
    followed.start()
    code = followed.ended()
    reason = followed.logged("relay halted")[-1]["reason"]

    assert ("s.a$b", {1: {"id": 1, "v": 1}}) == (refused["table"], rows)
    assert "the tables s.a$b and s.a_b share one topic" in refused["reason"]
    assert "has the rows of s.a_b" in reason
    assert 3 == code


def test_an_event_for_the_topic_of_a_table_is_a_dead_letter(followed):
    """
    Readers would mistake it for a row; later events and rows are still published.
    """
    followed.tables = ["s.line"]
    followed.more = f'[relay.outbox]\ntopic = "{followed.prefix}.{{aggregate_type}}"\n'
    create(followed, "s.line")
    followed.prepare()
    followed.start()
    followed.execute("insert into s.line values (1, 1)")
    for kind in ("s.line", "event.order"):
        followed.execute(
            "insert into towpath.outbox"
            " (id, aggregate_type, aggregate_id, type, payload)"
            " values (gen_random_uuid(), %s, '7', 'Made', '{}')",
            kind,
        )
    followed.confirm()
    dead_letters = followed.records("dead.relay")
    reasons = [dict(each.headers())["reason"].decode() for each in dead_letters]

    assert {1: {"id": 1, "v": 1}} == followed.fold("s.line")
    assert [b"{}"] == [record.value() for record in followed.records("event.order")]
    assert [RESERVED_TOPIC] == reasons
