"""The recovery at a start, before the ends of the topics are trusted."""

from types import SimpleNamespace

import orjson
import pytest

from support.copying import replace
from towpath.relay import recover
from towpath.relay.errors import StateLostError
from towpath.relay.kafka.recovery import Tails
from towpath.relay.recovery.marks import Confirmed
from towpath.relay.recovery.state import (
    CONFIRMED_KEY,
    State,
    changed_settings,
    parse_state,
    publishing_settings,
    with_stored,
)
from towpath.settings import DeliveryMode, Kafka, Relay, Settings, Source

UNCLEAN = Confirmed(8, 8, 8, 0, is_clean=False, at="")
CLEAN = replace(UNCLEAN, is_clean=True)
IDEMPOTENT, TRANSACTIONAL = DeliveryMode.IDEMPOTENT, DeliveryMode.TRANSACTIONAL


def recovery_steps(
    monkeypatch, state: State, delivery: DeliveryMode, replicas: int = 1
) -> list[str]:
    """Run the recovery over fakes, and return its steps in order."""
    done: list[str] = []
    counts = {"t": 3} if replicas > 1 else {}
    monkeypatch.setattr(recover, "write_barriers", lambda *_: done.append("barriers"))
    monkeypatch.setattr(recover, "fence", lambda *_: done.append("fence"))
    monkeypatch.setattr(recover, "read_parked", lambda *_: ())

    class Topic:
        def read(self, _reader: object) -> State:
            return state

        def write(self, key: str, document: dict[str, object]) -> None:
            done.append(f"{key}: {document.get('mode', document.get('is_clean'))}")

    def read_tails(*_: object, is_transactional: bool) -> Tails:
        done.append("committed" if is_transactional else "everything")
        return Tails({}, 0)

    monkeypatch.setattr(recover, "read_tails", read_tails)
    settings = SimpleNamespace(
        relay=SimpleNamespace(delivery=delivery, max_parked_keys=1),
        topics=SimpleNamespace(replication_factor=replicas),
        database=SimpleNamespace(prefix="p", slot="s"),
        kafka=None,
    )
    context = SimpleNamespace(settings=settings)
    producer = SimpleNamespace(begin=lambda: done.append("begin"))
    reader = SimpleNamespace(replicated=lambda _topics: counts)
    recover.recover(context, reader, Topic(), producer)
    return done


@pytest.mark.parametrize(
    ("confirmed", "replicas", "expected"),
    [
        (UNCLEAN, 2, ["barriers"]),
        (None, 2, ["barriers"]),
        (CLEAN, 2, ["confirmed: False"]),
        (UNCLEAN, 1, []),
        (CLEAN, 1, []),
    ],
)
def test_barriers_are_written_after_an_unclean_stop(
    monkeypatch, confirmed: Confirmed | None, replicas: int, expected: list[str]
):
    """
    After a clean stop, the checkpoint is marked as used before new records are written.
    """
    state = State(confirmed=confirmed, delivery=IDEMPOTENT)

    assert ["begin", *expected, "everything"] == recovery_steps(
        monkeypatch, state, IDEMPOTENT, replicas
    )


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (None, IDEMPOTENT, ["begin", "barriers", "everything", "delivery: idempotent"]),
        (TRANSACTIONAL, TRANSACTIONAL, ["begin", "committed"]),
        (
            TRANSACTIONAL,
            IDEMPOTENT,
            ["fence", "begin", "committed", "delivery: idempotent"],
        ),
        (
            IDEMPOTENT,
            TRANSACTIONAL,
            ["begin", "barriers", "committed", "delivery: transactional"],
        ),
    ],
)
def test_only_committed_transactional_records_are_recovered(
    monkeypatch, before: str | None, now: DeliveryMode, expected: list[str]
):
    """
    An open transaction is aborted, and its records never count as published.
    """
    state = State(confirmed=UNCLEAN, delivery=before)

    assert expected == recovery_steps(monkeypatch, state, now, replicas=2)


@pytest.mark.parametrize(
    "name", ['public."my table"', 'public."a.b c"', "public.plain"]
)
def test_stored_settings_keep_the_names_of_tables(name: str):
    """
    They are stored as canonical texts, in which a space is not quoted.
    """
    relay = {
        "outbox": {"table": name, "view": [{"aggregate_type": "x", "view": name}]},
        "snapshot": {"signal_table": name},
        "rows": {"key_columns": {name: ["id"]}},
    }
    settings = Settings(
        version=1,
        source=(Source(dsn="postgresql://x/y", tables=(name,)),),
        kafka=Kafka(bootstrap_servers="x"),
        relay=Relay.model_validate(relay),
    )
    other = settings.model_copy(
        update={"source": (Source(dsn="postgresql://x/y", publication="new"),)}
    )
    stored = orjson.loads(orjson.dumps(publishing_settings(settings)))

    assert ("source.publication", "source.tables") == changed_settings(other, stored)
    assert settings == with_stored(other, stored)


@pytest.mark.parametrize(
    "stored",
    [
        {"relay": {}},
        {"source": {}},
        {"source": None, "relay": {}},
        {"source": {}, "relay": []},
        {"source": {}, "relay": {"former": {"name": 1}}},
        {"source": {}, "relay": {"preset": "unknown"}},
    ],
)
def test_stored_settings_of_a_different_form_are_a_lost_state(stored: object):
    """
    An edited or foreign document ends the start with a remedy, not a traceback.
    """
    settings = Settings(
        version=1,
        source=(Source(dsn="postgresql://x/y"),),
        kafka=Kafka(bootstrap_servers="x"),
    )

    with pytest.raises(StateLostError, match="the stored settings cannot be read"):
        with_stored(settings, stored)


def test_a_checkpoint_of_a_later_release_can_be_read():
    """
    A relay can thus take over from a later release that stores more fields.
    """
    stored = orjson.dumps(CLEAN._asdict() | {"added_later": 1})

    assert CLEAN == parse_state({CONFIRMED_KEY: stored}).confirmed


@pytest.mark.parametrize("stored", [b"[]", b'{"lsn": 8}'])
def test_a_checkpoint_of_a_different_form_is_a_lost_state(stored: bytes):
    """
    The operator gets the remedy, not a traceback.
    """
    with pytest.raises(StateLostError, match="the state topic holds an invalid value"):
        parse_state({CONFIRMED_KEY: stored})
