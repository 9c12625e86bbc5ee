"""The state commands: a source that refuses them, and what may be skipped."""

import orjson
import pytest

from towpath.relay.commands import state
from towpath.relay.errors import SourceRefusedError, StateRefusedError
from towpath.relay.recovery.lineage import Lineage, lineages_document
from towpath.relay.recovery.marks import Confirmed
from towpath.schemas.position import format_lsn
from towpath.settings import Kafka, Settings, Source

CONFIRMED_LSN = 0x5000


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a state that is confirmed up to an LSN, and a source without an answer."""
    confirmed = Confirmed(CONFIRMED_LSN, CONFIRMED_LSN, CONFIRMED_LSN, 1, True, "")
    documents = {
        "lineage": lineages_document(
            [Lineage(1, "77", 1, 0, "towpath", start_lsn=0x1000)]
        ),
        "confirmed": confirmed._asdict(),
    }
    values = {name: orjson.dumps(each) for name, each in documents.items()}
    monkeypatch.setattr(state, "newest_values", lambda _: values)
    monkeypatch.setattr(state, "slot_facts", lambda _: (None, "away"))


@pytest.mark.usefixtures("stored")
def test_a_commit_at_the_confirmed_lsn_can_be_skipped():
    """
    The LSN is the end of the last confirmed commit, where the next may begin.
    """
    settings = Settings.model_construct()

    assert CONFIRMED_LSN == state.resolve_skip(settings, format_lsn(CONFIRMED_LSN))


@pytest.mark.usefixtures("stored")
def test_a_confirmed_commit_cannot_be_skipped():
    """
    A commit below the confirmed LSN is never streamed again.
    """
    with pytest.raises(StateRefusedError, match="is confirmed already"):
        state.resolve_skip(Settings.model_construct(), format_lsn(CONFIRMED_LSN - 8))


def test_a_source_that_refuses_the_login_is_a_reason(monkeypatch: pytest.MonkeyPatch):
    """
    The state in Kafka is shown while the database is restored and does not exist.
    """
    reason = 'connecting: database "shop" does not exist'

    def refuse(_: str) -> None:
        raise SourceRefusedError(reason)

    monkeypatch.setattr(state, "connect", refuse)
    settings = Settings(
        version=1,
        source=(Source(dsn="postgresql://x/shop"),),
        kafka=Kafka(bootstrap_servers="x"),
    )

    assert (None, reason) == state.slot_facts(settings)
