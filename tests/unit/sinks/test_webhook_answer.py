"""The meaning of a receiver's response, status by status."""

from datetime import UTC, datetime

import pytest

from towpath.sinks.errors import (
    TargetBusyError,
    TargetUnavailableError,
    WebhookRefusedError,
)
from towpath.sinks.targets.webhook.client import ReceiverOutcome, verdict_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, ReceiverOutcome.ACCEPTED) for status in (200, 201, 202, 204, 299)),
        (409, ReceiverOutcome.KNOWN),
        (428, ReceiverOutcome.ABSENT),
        *(
            (status, ReceiverOutcome.REFUSED)
            for status in (400, 404, 413, 418, 422, 499)
        ),
    ],
)
def test_a_final_response_decides_the_change(status: int, outcome: ReceiverOutcome):
    """
    The change is accepted or known, lacks its row, or is permanently refused.
    """
    assert verdict_of(status, {}, "", NOW).outcome is outcome


@pytest.mark.parametrize("status", [301, 302, 307, 308, 401, 403, 410])
def test_a_response_that_refuses_all_webhooks_halts(status: int):
    """
    A wrong secret, a moved address or a 410 halts the sink without dead letters.
    """
    with pytest.raises(WebhookRefusedError, match=str(status)):
        verdict_of(status, {"location": "http://elsewhere"}, "", NOW)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 599, 600, 199])
def test_a_failure_of_the_receiver_is_retried(status: int):
    """
    A temporary failure loses nothing; a 503 without Retry-After requests no pause.
    """
    with pytest.raises(TargetUnavailableError):
        verdict_of(status, {}, "", NOW)


@pytest.mark.parametrize(
    ("status", "expected", "pause_s"),
    [
        (429, "7", 7.0),
        (503, "7", 7.0),
        (500, "7", 7.0),
        (429, "", 1.0),
        (408, "soon", 1.0),
        (425, "-3", 1.0),
        (429, "99999999", 300.0),
        (429, "Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        (429, "Wed, 31 Dec 2025 00:00:30 GMT", 0.0),
        (429, "Mon, 01 Jan 99999999999 00:00:00 GMT", 1.0),
    ],
)
def test_a_pause_is_as_long_as_retry_after_requests(status, expected, pause_s):
    """
    Retry-After is honored in both of its forms, up to five minutes.
    """
    headers = {"retry-after": expected} if expected else {}
    with pytest.raises(TargetBusyError) as caught:
        verdict_of(status, headers, "", NOW)

    assert caught.value.retry_after_s == pause_s


def test_a_refusal_has_the_receivers_reason_in_one_short_line():
    """
    The dead letter shows the reason, but not a whole page.
    """
    verdict = verdict_of(422, {}, "no such\n customer " + "x" * 500, NOW)

    assert verdict.reason.startswith("the receiver returned 422: no such customer x")
    assert len(verdict.reason) < 250
