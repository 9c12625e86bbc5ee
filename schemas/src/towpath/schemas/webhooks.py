"""
Signatures of the Standard Webhooks specification, for senders and receivers.

The signed content is ``id.timestamp.body``. A signature is ``v1,`` and an HMAC-SHA256
in base64; there is one per secret, separated by spaces. A receiver accepts any of them,
so a secret can be rotated while requests are in flight. It compares the timestamp with
its own clock, so an old request cannot be replayed.
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

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix, not a secret
# The specification's limits for the length of a secret.
SHORTEST_SECRET_BYTES: Final = 24
LONGEST_SECRET_BYTES: Final = 64

# As in the specification's libraries: more than clock skew and request time together.
TOLERANCE_S: Final = 300

_SCHEME: Final = "v1,"


class SignatureRefusedError(DataError):
    """A request has no accepted signature, or its timestamp is too far from now."""

    remedy = "Refuse the request with 401; compare the secrets and clocks of both ends."


def secret_bytes(secret: str) -> bytes:
    """
    Return the bytes of a secret.

    Raises:
        ValueError: The text is not a secret; the message does not repeat it.
    """
    try:
        found = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    is_sized = SHORTEST_SECRET_BYTES <= len(found) <= LONGEST_SECRET_BYTES
    if not secret.startswith(SECRET_PREFIX) or not is_sized:
        message = (
            f"must be {SECRET_PREFIX} followed by {SHORTEST_SECRET_BYTES} to "
            f"{LONGEST_SECRET_BYTES} random bytes in base64"
        )
        raise ValueError(message)
    return found


def signed(
    secrets: Iterable[bytes], webhook_id: str, timestamp_s: int, body: bytes
) -> dict[str, str]:
    """Return the headers of a request, with one signature per secret."""
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
    Verify a request on the receiving side, before its body is parsed.

    Args:
        secrets: The accepted secrets (``whsec_...``).
        headers: The headers of the request, in any case.
        body: The raw bytes of the body.
        now_s: The receiver's time, in seconds since 1970.

    Returns:
        The webhook's id, which is the same in every delivery of the same changes.

    Raises:
        SignatureRefusedError: No signature matches a secret, or the timestamp is too
            far from ``now_s``.
        ValueError: One of ``secrets`` is malformed.
    """
    keys = [secret_bytes(secret) for secret in secrets]
    lowered = {name.lower(): value for name, value in headers.items()}
    webhook_id, timestamp = lowered.get(ID, ""), lowered.get(TIMESTAMP, "")
    given = [_bytes(one) for one in lowered.get(SIGNATURE, "").split()]
    expected = [_bytes(_signature(k, webhook_id, timestamp, body)) for k in keys]
    # Every pair is compared in constant time, even after a match.
    matches = [hmac.compare_digest(one, known) for one in given for known in expected]
    if not webhook_id or not any(matches):
        message = "the request has no signature with an accepted secret"
        raise SignatureRefusedError(message)
    is_number = timestamp.isascii() and timestamp.isdigit()
    if not is_number or abs(now_s - int(timestamp)) > TOLERANCE_S:
        message = f"the request was not signed within {TOLERANCE_S} s of now"
        raise SignatureRefusedError(message)
    return webhook_id


def _signature(secret: bytes, webhook_id: str, timestamp: str, body: bytes) -> str:
    content = _bytes(f"{webhook_id}.{timestamp}.") + body
    digest = hmac.digest(secret, content, "sha256")
    return _SCHEME + base64.b64encode(digest).decode()


def _bytes(text: str) -> bytes:
    """Encode a header; a server may have decoded invalid bytes to surrogates."""
    return text.encode(errors="surrogatepass")
