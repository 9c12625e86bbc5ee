"""
Watermarks into the log: as logical messages, or as rows of ``towpath.signal``.

A row has the type ``snapshot-window-open`` (marks ``start`` and ``low``) or
``snapshot-window-close`` (``high``), the watermark's content as ``data``, and an id
that is made of its run, its request's number and its mark.
"""

import json
from typing import Final

from towpath.relay.postgres.connect import Connection
from towpath.relay.postgres.queries import query
from towpath.relay.snapshot.tokens import WATERMARK_PREFIX
from towpath.settings.snapshot import Watermarks

# From this version on a plain message can be flushed with the call.
_FLUSH_VERSION: Final = 170_000
_CLOSING: Final = "high"


def write_watermark(connection: Connection, token: str, form: Watermarks) -> None:
    """Write a watermark into the log; the stream will bring it."""
    if form is Watermarks.MESSAGES:
        is_flushed = connection.info.server_version >= _FLUSH_VERSION
        name = "write_watermark" if is_flushed else "write_watermark_in_transaction"
        connection.execute(query(name), {"prefix": WATERMARK_PREFIX, "token": token})
        return
    content = json.loads(token)
    row = {"id": "{run}-{request}-{mark}".format(**content), "token": token}
    name = "close_window" if content["mark"] == _CLOSING else "open_window"
    with connection.transaction():
        connection.execute(query(name), row)
        if form is Watermarks.ROWS_DELETED:
            connection.execute(query("forget_window"), row)
