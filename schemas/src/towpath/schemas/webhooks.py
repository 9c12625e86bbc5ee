"""
Signatures of webhooks, as the Standard Webhooks specification has them: both ends.

What is signed is ``id.timestamp.body``; the signature is ``v1,`` and an HMAC-SHA256 in
base64, one for each secret, apart by blanks. A receiver takes any of them, so that a
secret can be changed while requests are on their way; it compares the timestamp with
its own clock, so that nobody can send an old request again next week.
"""

import base64
import binascii
import hmac
from collections.abc import Iterable, Mapping
from typing import Final

from towpath.schemas.failure import DataError

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - what each secret begins with
# The bounds of the specification for what a secret holds.
SHORTEST_SECRET_BYTES: Final = 24
LONGEST_SECRET_BYTES: Final = 64

# As the specification's own libraries: more than clocks differ and requests take.
TOLERANCE_S: Final = 300

_SCHEME: Final = "v1,"


class SignatureRefusedError(DataError):
    """A request does not come from whom it says, or comes too late."""

    remedy = "Refuse the request with 401; compare the secrets and clocks of both ends."


def secret_bytes(secret: str) -> bytes:
    """
    Return what a secret holds.

    Raises:
        ValueError: It is none; the message does not repeat it.
    """
    try:
        found = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    is_sized = SHORTEST_SECRET_BYTES <= len(found) <= LONGEST_SECRET_BYTES
    if not secret.startswith(SECRET_PREFIX) or not is_sized:
        message = (
            f"must be {SECRET_PREFIX} and {SHORTEST_SECRET_BYTES} to "
            f"{LONGEST_SECRET_BYTES} random bytes in base64"
        )
        raise ValueError(message)
    return found


def signed(
    secrets: Iterable[bytes], webhook_id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """Return the headers of a request, with a signature of each secret."""
    return {
        ID: webhook_id,
        TIMESTAMP: str(timestamp_s),
        SIGNATURE: " ".join(
            _signature(secret, webhook_id, str(timestamp_s), body) for secret in secrets
        ),
    }


def verify(
    secrets: Iterable[str], headers: Mapping[str, str], body: bytes, now_s: float
) -> str:
    """
    Check a request as its receiver, before anything of it is read.

    Args:
        secrets: Those that are taken, as they were agreed upon (``whsec_...``).
        headers: The request's headers, in any case.
        body: Its body, as it came, byte by byte.
        now_s: The receiver's time, in seconds since 1970.

    Returns:
        The webhook's id: the same for the same changes, however often they come.

    Raises:
        SignatureRefusedError: No signature is of any secret, or the request is old.
        ValueError: A secret is none.
    """
    keys = [secret_bytes(secret) for secret in secrets]
    told = {name.lower(): value for name, value in headers.items()}
    webhook_id, timestamp = told.get(ID, ""), told.get(TIMESTAMP, "")
    given = [one.encode() for one in told.get(SIGNATURE, "").split()]
    expected = [_signature(k, webhook_id, timestamp, body).encode() for k in keys]
    # Each is compared with each, in the same time whether they agree or not.
    matches = [hmac.compare_digest(one, known) for one in given for known in expected]
    if not webhook_id or not any(matches):
        message = "the request has no signature of a secret that is taken"
        raise SignatureRefusedError(message)
    is_number = timestamp.isascii() and timestamp.isdigit()
    if not is_number or abs(now_s - int(timestamp)) > TOLERANCE_S:
        message = f"the request was not signed within {TOLERANCE_S} s of now"
        raise SignatureRefusedError(message)
    return webhook_id


def _signature(secret: bytes, webhook_id: str, timestamp: str, body: bytes) -> str:
    content = f"{webhook_id}.{timestamp}.".encode() + body
    digest = hmac.digest(secret, content, "sha256")
    return _SCHEME + base64.b64encode(digest).decode()
