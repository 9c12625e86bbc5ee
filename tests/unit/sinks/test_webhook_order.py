"""The order of an aggregate's events across failing attempts."""

import pytest

from support.relay_bench import Clock
from towpath.settings.sink import WebhookOptions
from towpath.sinks.change import ALL_PRESENT, Change, EventRow, Origin
from towpath.sinks.errors import (
    BatchRefusedError,
    StateNotWrittenError,
    TargetBusyError,
    TargetUnavailableError,
)
from towpath.sinks.ports import Batch
from towpath.sinks.targets.webhook import sink as webhook
from towpath.sinks.targets.webhook.client import ReceiverOutcome, ReceiverVerdict
from towpath.sinks.targets.webhook.write import FailingKeys

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - for tests
ORIGIN = Origin("t", 0, 0)
ROW = Change(
    *("orders", (7,), ("order_id",), "0000000000000009.0000000000"),
    *({"order_id": 7}, ALL_PRESENT, False, ORIGIN),
)


class Receiver:
    """A client whose receiver refuses one event and, at first, fails on rows."""

    is_failing = True

    def __init__(self):
        self.sent = []

    def post(self, request):
        """Answer one request."""
        self.sent += [
            getattr(change, "id", "row") for change in request.changes.values()
        ]
        if ROW in request.changes.values() and self.is_failing:
            message = "the receiver returned 500"
            raise TargetUnavailableError(message)
        if any(getattr(one, "id", "") == "e1" for one in request.changes.values()):
            return ReceiverVerdict(ReceiverOutcome.REFUSED, "the receiver returned 422")
        return ReceiverVerdict(ReceiverOutcome.ACCEPTED)

    def close(self):
        """Do nothing."""


def event(number: int) -> EventRow:
    """Make an event of one aggregate."""
    return EventRow(
        *("events", f"e{number}", "order", "a", "OrderPlaced", "{}", "{}"),
        *(f"{number:016x}.0000000000", "2026", Origin("e", 0, number)),
    )


def test_no_event_overtakes_a_refused_one_when_the_batch_is_retried(monkeypatch):
    """
    The attempt that saw the refusal failed, because the receiver failed for a row.
    """
    receiver = Receiver()
    monkeypatch.setattr(webhook, "WebhookClient", lambda *_: receiver)
    options = WebhookOptions(secrets=(SECRET,), changes_per_request=1)
    sink = webhook.WebhookSink("http://unused", options, Clock())
    batch = Batch(1, changes=(ROW,), events=(event(1), event(2)))
    with pytest.raises(TargetUnavailableError):
        sink.apply(batch)
    receiver.is_failing = False
    with pytest.raises(BatchRefusedError):
        sink.apply(batch)
    sink.close()

    assert ["e1", "row", "row"] == sorted(receiver.sent)


def test_a_batch_is_counted_once_if_its_probe_cannot_be_saved(monkeypatch, tmp_path):
    """
    The batch is applied again with the known verdicts, so nothing is sent twice.
    """
    receiver = Receiver()
    receiver.is_failing = False
    monkeypatch.setattr(webhook, "WebhookClient", lambda *_: receiver)
    options = WebhookOptions(secrets=(SECRET,))
    folder = tmp_path / "folder"
    folder.touch()
    sink = webhook.WebhookSink("http://unused", options, Clock(), folder / "probe")
    batch = Batch(1, changes=(ROW,))
    sink.apply(batch)
    with pytest.raises(StateNotWrittenError):
        sink.flush()
    folder.unlink()
    folder.mkdir()
    sink.apply(batch)
    checkpoint = sink.flush()
    sink.close()

    assert (1, ["row"]) == (checkpoint.applied, receiver.sent)


@pytest.mark.parametrize(("pause_s", "min_s"), [(0.0, 0.2), (7.0, 7.0)])
def test_a_key_waits_even_if_the_receiver_requests_no_pause(pause_s, min_s):
    """
    Otherwise a Retry-After of 0 or in the past would repeat requests at full speed.
    """
    failing = FailingKeys(WebhookOptions(secrets=(SECRET,)), Clock())
    failing.failed(("orders", "7"), TargetBusyError("busy", retry_after_s=pause_s))

    assert failing.wait_s(("orders", "7")) >= min_s
