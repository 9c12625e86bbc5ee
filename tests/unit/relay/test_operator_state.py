"""The state commands: an unreachable source, and the commits that may be skipped."""

from collections.abc import Callable

import orjson
import pytest

from towpath.relay.commands import state
from towpath.relay.errors import SourceRefusedError, StateRefusedError
from towpath.relay.kafka.state import StateTopic
from towpath.relay.recovery.lineage import Lineage, lineages_document
from towpath.relay.recovery.marks import Confirmed
from towpath.schemas.position import READ_ORDINAL, format_lsn, format_position
from towpath.settings import Kafka, Settings, Source

SETTINGS = Settings(
    version=1,
    source=(Source(dsn="postgresql://x/shop"),),
    kafka=Kafka(bootstrap_servers="x"),
)
CONFIRMED_LSN = 0x5000


CONFIRMED = Confirmed(CONFIRMED_LSN, CONFIRMED_LSN, CONFIRMED_LSN, 1, True, "")
FIRST = Lineage(1, "77", 1, 0, "towpath", start_lsn=0x1000)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes the state; the source does not respond."""

    def make(confirmed: Confirmed | None, *lineages: Lineage) -> None:
        values = {"lineage": orjson.dumps(lineages_document(lineages))}
        if confirmed is not None:
            values["confirmed"] = orjson.dumps(confirmed._asdict())
        monkeypatch.setattr(state, "newest_values", lambda _: values)

    monkeypatch.setattr(state, "slot_facts", lambda _: (None, "down"))
    return make


def test_a_commit_at_the_confirmed_lsn_can_be_skipped(store):
    """
    The LSN is the end of the last confirmed commit, where the next one may begin.
    """
    store(CONFIRMED, FIRST)

    assert CONFIRMED_LSN == state.resolve_skip(SETTINGS, format_lsn(CONFIRMED_LSN))


def test_the_first_commit_of_a_lineage_can_be_skipped(store):
    """
    There is no checkpoint yet, or only one of an earlier lineage, with higher LSNs.
    """
    restored = Lineage(2, "78", 1, 0x10000, "towpath", start_lsn=0x2000)
    found = []
    for state_topic in ((None, FIRST), (CONFIRMED, FIRST, restored)):
        store(*state_topic)
        found.append(state.resolve_skip(SETTINGS, format_lsn(0x3000)))

    assert [0x3000, 0x3000] == found


@pytest.mark.parametrize("lsn", [CONFIRMED_LSN - 8, 0x800])
def test_a_confirmed_commit_cannot_be_skipped(store, lsn: int):
    """
    A commit below the confirmed LSN is never streamed again.
    """
    store(CONFIRMED, FIRST)

    with pytest.raises(StateRefusedError, match="is confirmed already"):
        state.resolve_skip(SETTINGS, format_lsn(lsn))


def test_a_commit_before_the_lineage_cannot_be_skipped(store):
    """
    Before the first checkpoint, everything before the lineage's start is confirmed.
    """
    store(None, FIRST)

    with pytest.raises(StateRefusedError, match="is confirmed already"):
        state.resolve_skip(SETTINGS, format_lsn(0x800))


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (format_position(0x9000, 0), "is a position of an earlier lineage"),
        (format_position(0x19000, READ_ORDINAL), "belongs to no transaction"),
    ],
)
def test_a_position_without_a_transaction_to_skip_is_refused(store, position, reason):
    """
    No transaction of the lineage has this position, so a skip would wait forever.
    """
    store(CONFIRMED, FIRST, Lineage(2, "78", 1, 0x10000, "towpath", start_lsn=0x2000))

    for command in (state.resolve_skip, state.cancel_skip):
        with pytest.raises(StateRefusedError, match=reason):
            command(SETTINGS, position)


def test_a_login_refused_by_the_source_is_reported_as_the_reason(
    monkeypatch: pytest.MonkeyPatch,
):
    """
    Kafka's state is shown even while the database is missing because of a restore.
    """
    reason = 'connecting: database "shop" does not exist'

    def refuse(_: str) -> None:
        raise SourceRefusedError(reason)

    monkeypatch.setattr(state, "connect", refuse)

    assert (None, reason) == state.slot_facts(SETTINGS)


class ForeignRecord:
    """A record that a foreign program wrote to the state topic."""

    def key(self) -> bytes:
        return b"\xff"

    def value(self) -> bytes:
        return b"{}"


class Reader:
    """Reads a state topic with one foreign record."""

    def read_to_ends(self, *_topic) -> list[ForeignRecord]:
        return [ForeignRecord()]


def test_a_record_key_that_is_not_utf_8_does_not_prevent_a_start():
    """
    The commands that show the state ignore such a record, too.
    """
    assert StateTopic(SETTINGS.kafka, "shop").read(Reader()).is_empty
