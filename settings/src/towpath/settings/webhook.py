"""``[sink.webhook]``: how changes are posted to somebody else's server."""

from typing import Annotated

from pydantic import AfterValidator, Field

from towpath.schemas.webhooks import secret_bytes
from towpath.settings.section import Section


def _check_secret(secret: str) -> str:
    secret_bytes(secret)
    return secret


Secret = Annotated[str, AfterValidator(_check_secret)]


class WebhookOptions(Section):
    """
    ``[sink.webhook]``.

    ``secrets`` sign every request; while a secret is being changed there are two, and
    the request has a signature of each. A request carries ``changes_per_request``
    changes at most, ``concurrency`` requests are open at once, and one that is not
    answered within ``timeout_s`` is sent again. A change that the receiver fails at
    ``give_up_attempts`` times over ``give_up_after_s`` is set aside, if the receiver is
    well otherwise.
    """

    secrets: tuple[Secret, ...] = Field(default=(), max_length=2)
    changes_per_request: int = Field(default=1, ge=1, le=1000)
    concurrency: int = Field(default=8, ge=1, le=64)
    timeout_s: float = Field(default=10.0, gt=0, le=300)
    # At the driver's back-off two minutes are some twenty attempts: a receiver that is
    # deployed anew, or waits for a lock, is back by then, and others wait no longer.
    give_up_attempts: int = Field(default=10, ge=2)
    give_up_after_s: float = Field(default=120.0, gt=0)
