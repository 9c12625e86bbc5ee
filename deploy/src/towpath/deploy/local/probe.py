"""Small questions that probes ask: is the port open, does HTTP answer."""

import json
import socket
import urllib.error
import urllib.request
from typing import Any, Final

from towpath.deploy.errors import NotReadyError
from towpath.deploy.local.ports import LOOPBACK

# One question's patience; the part's own deadline bounds the asking as a whole.
ANSWER_WITHIN_S: Final = 3.0


def port_open(port: int) -> None:
    """
    Ask whether anybody listens.

    Raises:
        NotReadyError: Nobody does.
    """
    try:
        socket.create_connection((LOOPBACK, port), timeout=ANSWER_WITHIN_S).close()
    except OSError as error:
        message = f"nobody listens on port {port}"
        raise NotReadyError(message) from error


def get_json(url: str) -> Any:  # noqa: ANN401 - JSON of whatever shape
    """
    Fetch a JSON document.

    Raises:
        NotReadyError: No answer, an error, or something that is not JSON.
    """
    # Only the loopback address is asked, so a proxy in the environment must not serve.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=ANSWER_WITHIN_S) as answer:
            return json.load(answer)
    except (OSError, urllib.error.URLError, ValueError) as error:
        message = f"{url}: {error}"
        raise NotReadyError(message) from error
