"""
The one configuration file, ``towpath.toml``: its shape and its mistakes.

Every process reads the whole file, so an unknown key is noticed in any section. All
mistakes are reported together; an unknown name is reported with the nearest known one.
"""

from towpath.settings.brokers import Kafka, client_settings, spark_options
from towpath.settings.environment import is_override
from towpath.settings.load import WatchedFile, load, read
from towpath.settings.model import (
    OnDrop,
    Registry,
    Settings,
    Source,
    Topics,
)
from towpath.settings.outbox import (
    AggregateView,
    EmptyPayload,
    IdForm,
    MissingColumn,
    OnUpdate,
    Outbox,
    OutboxColumns,
    Traceparent,
)
from towpath.settings.relay import (
    DeliveryMode,
    FirstStart,
    Messages,
    OnGap,
    Relay,
    Select,
    Snapshot,
    Transactions,
    Watermarks,
)
from towpath.settings.routes import Route, RouteKind
from towpath.settings.rows import (
    Binaries,
    ColumnRule,
    Decimals,
    HstoreForm,
    Intervals,
    RecordFormat,
    RefusedSchema,
    Rows,
    Times,
    UnknownTypes,
)
from towpath.settings.sink import (
    CatalogKind,
    PartitionField,
    SearchOptions,
    Sink,
    SinkKind,
    Spark,
    Unfit,
    WarehouseOptions,
    WriteFrom,
)
from towpath.settings.tables import Capture

__all__ = [
    "AggregateView",
    "Binaries",
    "Capture",
    "CatalogKind",
    "ColumnRule",
    "Decimals",
    "DeliveryMode",
    "EmptyPayload",
    "FirstStart",
    "HstoreForm",
    "IdForm",
    "Intervals",
    "Kafka",
    "Messages",
    "MissingColumn",
    "OnDrop",
    "OnGap",
    "OnUpdate",
    "Outbox",
    "OutboxColumns",
    "PartitionField",
    "RecordFormat",
    "RefusedSchema",
    "Registry",
    "Relay",
    "Route",
    "RouteKind",
    "Rows",
    "SearchOptions",
    "Select",
    "Settings",
    "Sink",
    "SinkKind",
    "Snapshot",
    "Source",
    "Spark",
    "Times",
    "Topics",
    "Traceparent",
    "Transactions",
    "Unfit",
    "UnknownTypes",
    "WarehouseOptions",
    "WatchedFile",
    "Watermarks",
    "WriteFrom",
    "client_settings",
    "is_override",
    "load",
    "read",
    "spark_options",
]
