"""Webhook signatures follow the specification, and only valid ones are accepted."""

import base64

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from towpath.schemas import webhooks
from towpath.schemas.clock import SystemClock
from towpath.schemas.webhooks import SignatureRefusedError, secret_bytes, signed, verify

# The example in the specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - an example
OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()
WEBHOOK_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SIGNED_S = 1_614_265_330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(*secrets: str) -> dict[str, str]:
    """Sign the example."""
    return signed([secret_bytes(s) for s in secrets], WEBHOOK_ID, SIGNED_S, BODY)


def test_the_specifications_example_is_signed_identically():
    """
    Any library that follows the specification can check our signatures.
    """
    assert headers(SECRET) == {
        "webhook-id": WEBHOOK_ID,
        "webhook-timestamp": str(SIGNED_S),
        "webhook-signature": SIGNATURE,
    }


@pytest.mark.parametrize("secrets", [(SECRET,), (OTHER, SECRET)])
def test_the_specifications_library_accepts_our_signatures(secrets: tuple[str, ...]):
    """
    A receiver needs none of our code, even during a rotation of secrets.
    """
    keys = [secret_bytes(secret) for secret in secrets]
    now_s = int(SystemClock().now().timestamp())
    given = signed(keys, WEBHOOK_ID, now_s, BODY)

    assert Webhook(SECRET).verify(BODY, given) == {"test": 2432232314}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(BODY + b" ", given)


@pytest.mark.parametrize(
    ("sent_with", "accepted"),
    [((SECRET,), [SECRET]), ((OTHER, SECRET), [SECRET]), ((SECRET,), [OTHER, SECRET])],
)
def test_a_secret_can_be_changed_at_either_end_first(sent_with, accepted):
    """
    One signature with one of the accepted secrets is enough.
    """
    given = {name.title(): value for name, value in headers(*sent_with).items()}

    assert verify(accepted, given, BODY, SIGNED_S) == WEBHOOK_ID


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("webhook-id", "msg_another"),
        ("webhook-id", ""),
        ("webhook-timestamp", str(SIGNED_S + 1)),
        ("webhook-timestamp", "later"),
        ("webhook-signature", ""),
        ("webhook-signature", SIGNATURE.replace("v1,", "v2,")),
        ("webhook-signature", "v1,ä"),
    ],
)
def test_an_altered_request_is_refused(name: str, value: str):
    """
    The id, the time and the signature must match.
    """
    with pytest.raises(SignatureRefusedError):
        verify([SECRET], {**headers(SECRET), name: value}, BODY, SIGNED_S)


def test_a_different_body_or_secret_is_refused():
    """
    A request cannot be forged or altered without the secret.
    """
    with pytest.raises(SignatureRefusedError):
        verify([SECRET], headers(SECRET), BODY + b" ", SIGNED_S)
    with pytest.raises(SignatureRefusedError):
        verify([SECRET], headers(OTHER), BODY, SIGNED_S)


@pytest.mark.parametrize("late_s", [webhooks.TOLERANCE_S + 1, -301])
def test_an_old_request_is_refused(late_s: int):
    """
    A recorded request cannot be replayed, and a wrong clock is detected.
    """
    with pytest.raises(SignatureRefusedError, match="within 300 s"):
        verify([SECRET], headers(SECRET), BODY, SIGNED_S + late_s)


@pytest.mark.parametrize(
    "text",
    ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_no base64", "whsec_c2hvcnQ="],
)
def test_an_invalid_secret_is_reported_without_repeating_it(text: str):
    """
    The message describes the form of a secret without showing one.
    """
    with pytest.raises(ValueError, match="whsec_ followed by 24 to 64") as caught:
        secret_bytes(text)

    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["webhook-id", "webhook-timestamp", "webhook-signature"]
)
def test_a_request_whose_headers_are_not_text_is_refused(name: str):
    """
    Some servers decode header bytes that are not UTF-8 into surrogates.
    """
    given = {**headers(SECRET), name: b"\xff".decode(errors="surrogateescape")}
    with pytest.raises(SignatureRefusedError):
        verify([SECRET], given, BODY, SIGNED_S)
