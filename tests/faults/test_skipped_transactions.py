"""A transaction that an operator skips remains skipped, even after a crash."""

import pytest

from towpath.relay.commands.state import request_skip
from towpath.settings import load

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_a_skipped_transaction_is_not_published_after_a_kill(faults):
    """
    The relay is killed after the skip is written, but before anything is confirmed.
    """
    faults.prepare()
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    faults.relay.kill()
    faults.source.execute("insert into shop.line values (1, 'bad', 0), (2, 'bad', 0)")
    faults.writer.write()
    faults.witness.start()
    faults.await_confirmed(faults.witness, faults.end())
    found = faults.witness.streamed("shop.line")
    bad = next(r for r in found if b'"bad"' in (r.value or b""))
    request_skip(load(faults.relay.config, {}), int(bad.position.split(".")[0], 16))
    faults.relay.die("skipped+")
    faults.relay.start()
    faults.await_confirmed(faults.relay, faults.end())
    rows = faults.relay.streamed("shop.line")
    forms = [dict(r.headers)["form"] for r in faults.relay.streamed("dead.relay")]

    assert [] == [r for r in rows if b'"bad"' in (r.value or b"")]
    assert 2 == forms.count(b"skipped")
