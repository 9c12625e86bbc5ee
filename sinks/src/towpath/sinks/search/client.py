"""The connection to OpenSearch, and its errors turned into ours, by their status."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

from opensearchpy import JSONSerializer, OpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnectionError
from opensearchpy.exceptions import SerializationError, TransportError

from towpath.sinks.errors import (
    SearchRefusedError,
    TargetBusyError,
    TargetUnavailableError,
)

ANSWER_WITHIN_S: Final = 30.0

# The index says 429 when its queues are full; they drain in a second or so.
FULL_RETRY_AFTER_S: Final = 1.0

_TOO_MANY: Final = 429
_SERVER_ERROR: Final = 500


class _ExactSerializer(JSONSerializer):
    """Reads every number with all of its digits."""

    def loads(self, s: str) -> Any:  # noqa: ANN401 - any JSON
        try:
            return json.loads(s, parse_float=Decimal)
        except (ValueError, TypeError) as error:
            raise SerializationError(s, error) from error


def connect(url: str, *, is_exact: bool = False) -> OpenSearch:
    """
    Return a client that does not retry by itself: the sink does, item by item.

    Args:
        url: The index's address.
        is_exact: Numbers with a point come as decimals, not as doubles.
    """
    return OpenSearch(
        hosts=[url],
        timeout=ANSWER_WITHIN_S,
        max_retries=0,
        retry_on_timeout=False,
        serializer=_ExactSerializer() if is_exact else JSONSerializer(),
    )


@contextmanager
def translated() -> Iterator[None]:
    """
    Turn opensearch-py's errors into ours.

    Raises:
        TargetBusyError: The index asks for a pause.
        TargetUnavailableError: It does not answer, or only with a failure of its own.
        SearchRefusedError: It refuses the call, and will again.
    """
    try:
        yield
    except NoConnectionError as error:
        message = "the search index does not answer"
        raise TargetUnavailableError(message) from error
    except TransportError as error:
        status = int(error.status_code)
        if status == _TOO_MANY:
            message = "the search index asks for a pause"
            raise TargetBusyError(message, retry_after_s=FULL_RETRY_AFTER_S) from error
        message = f"the search index answers {status}: {error.error}"
        if status >= _SERVER_ERROR:
            raise TargetUnavailableError(message) from error
        raise SearchRefusedError(message) from error
