"""
The outbox table as SQLAlchemy sees it.

``towpath relay init`` creates it; a test compares that DDL with this description. The
two JSON columns write ``None`` as SQL NULL, not as the JSON text ``null``.
"""

from sqlalchemy import JSON, Column, DateTime, MetaData, Table, Text, Uuid, func

metadata = MetaData(schema="towpath")

outbox_table = Table(
    "outbox",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("aggregate_type", Text, nullable=False),
    Column("aggregate_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("payload", JSON(none_as_null=True)),
    Column("headers", JSON(none_as_null=True)),
    Column("traceparent", Text),
    Column(
        "occurred_at",
        DateTime(timezone=True),
        nullable=False,
        server_default=func.now(),
    ),
)
