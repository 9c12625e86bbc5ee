"""``[sink.search]``: how the indexes of a search sink are made and written."""

from pydantic import Field

from towpath.settings.section import Section

_MEBIBYTE = 1024 * 1024


class SearchOptions(Section):
    """
    ``[sink.search]``.

    ``shards`` and ``replicas`` are of each index; replicas of -1 are one where there
    is a second node. A document is found at most ``refresh_ms`` after it was written;
    while a backlog is worked off, ten seconds. Replicas and refresh are changed in
    place, shards by a rebuild.

    Documents go in calls of at most ``call_documents`` and ``call_bytes``, of which
    ``calls_in_flight`` are under way at a time. With each batch at most
    ``purged_at_once`` documents of deleted rows that nothing needs any more are taken
    away.
    """

    shards: int = Field(default=1, ge=1, le=1024)
    replicas: int = Field(default=-1, ge=-1)
    refresh_ms: int = Field(default=500, ge=100)
    call_documents: int = Field(default=2_000, ge=1)
    call_bytes: int = Field(default=5 * _MEBIBYTE, ge=1024)
    calls_in_flight: int = Field(default=2, ge=1, le=32)
    purged_at_once: int = Field(default=2_000, ge=1)
