"""A relay whose role may not read other roles' sessions."""

import json
import threading
from contextlib import closing

import psycopg
import pytest

from support.rig import Rig
from support.waiting import CLOCK
from towpath.cli.app import run
from towpath.relay.errors import SlotHeldError
from towpath.relay.postgres.slot import SlotOwnership

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


@pytest.fixture
def rig(stack, database: str, unique: str, tmp_path):
    """Provide a prepared source, and a role that has only a relay's rights."""
    stack.up("postgres", "kafka")
    source = Rig(database, stack.kafka, unique, tmp_path)
    source.configure(source.outbox)
    source.init()
    for statement in (
        f"create role {unique} login replication",
        f"grant usage on schema towpath to {unique}",
        f"grant all on all tables in schema towpath to {unique}",
    ):
        source.execute(statement)
    yield source
    source.close()
    source.connection = psycopg.connect(database, autocommit=True)
    source.execute(f"drop owned by {unique}")
    source.execute(f"drop role {unique}")
    source.connection.close()


def dsn_of(rig: Rig) -> str:
    """Return the address of the database for the role."""
    return psycopg.conninfo.make_conninfo(rig.dsn, user=rig.prefix)


def test_a_slot_held_by_another_role_is_described(rig: Rig):
    """
    The error names the holder's role, and the right to read its session.
    """
    user = rig.one("select current_user")
    with (
        closing(SlotOwnership(rig.dsn, rig.prefix)) as first,
        closing(SlotOwnership(dsn_of(rig), rig.prefix)) as second,
    ):
        first.acquire(CLOCK, threading.Event(), 5, lambda: False)
        named = f"towpath-relay, role {user}.*pg_read_all_stats"
        with pytest.raises(SlotHeldError, match=named):
            second.acquire(CLOCK, threading.Event(), 0.6, lambda: False)


def test_a_standby_with_its_own_role_waits_and_takes_over(rig: Rig, capsys):
    """
    The standby waits for another role's relay, then streams with its own rights.

    The doctor works as this role, too, while another role's transaction is open.
    """
    first = rig.start()
    rig.wait_for(lambda: bool(rig.logged("relay streaming")))
    text = rig.config.read_text().replace(rig.dsn, dsn_of(rig))
    rig.config.write_text(text)
    with psycopg.connect(rig.dsn) as writer:
        writer.execute("select pg_current_xact_id()")
        code = run(["doctor", "--json", "--config", str(rig.config)])
        found = json.loads(capsys.readouterr().out)
    rig.start()
    rig.wait_for(lambda: bool(rig.logged("slot held by another process: waiting")))
    rig.stop(first)
    rig.wait_for(lambda: len(rig.logged("relay streaming")) == 2)
    rig.execute(
        "insert into towpath.outbox (id, aggregate_type, aggregate_id, type, payload)"
        " values (gen_random_uuid(), 'order', '1', 'placed', '{}')"
    )

    assert code in {1, 4}
    assert not [row for row in found if row["level"] != "warning"]
    assert 1 == len(rig.read("event.order", at_least=1))
    assert [] == rig.logged("session failed: retrying")
