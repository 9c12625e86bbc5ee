"""Which reader reads back which kind of sink; its driver is imported with it."""

from towpath.settings import Settings, Sink, SinkKind
from towpath.sinks.ports import SinkReader


def reader_of(sink: Sink, settings: Settings) -> SinkReader:
    """
    Return the reader of a sink; nothing is opened yet.

    Raises:
        UsageError: The sink's address is not one.
    """
    match sink.kind:
        case SinkKind.CACHE:
            from towpath.sinks.cache.reader import CacheReader  # noqa: PLC0415

            return CacheReader(sink.url, settings.database.prefix)
        case SinkKind.SEARCH:
            from towpath.sinks.search.reader import SearchReader  # noqa: PLC0415

            return SearchReader(sink.url)
        case SinkKind.WAREHOUSE:
            from towpath.sinks.warehouse.reader import WarehouseReader  # noqa: PLC0415

            return WarehouseReader(sink)
