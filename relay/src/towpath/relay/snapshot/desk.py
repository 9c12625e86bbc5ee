"""What scans work with: what all of them share, and what each has of its own."""

from typing import NamedTuple

from towpath.relay.snapshot.errand import Freeze
from towpath.relay.snapshot.readers import Asking
from towpath.relay.snapshot.requests import KeyRequests
from towpath.relay.snapshot.tokens import Tokens
from towpath.relay.snapshot.touches import Notes
from towpath.relay.snapshot.visibility import InvisibleTransactions


class Desk(NamedTuple):
    """What the scans of one source share."""

    invisible: InvisibleTransactions
    requests: KeyRequests
    tokens: Tokens


class Means(NamedTuple):
    """
    What one scan works with.

    Attributes:
        notes: Where the stream's touches of its table go.
        asking: When and how it asks for chunks.
        parts: Into how many ranges its table may be cut.
        freeze: The mark and view that its run shares; None: it is not frozen.
    """

    notes: Notes
    asking: Asking
    parts: int
    freeze: Freeze | None = None
