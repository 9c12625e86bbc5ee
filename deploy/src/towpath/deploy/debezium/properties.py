"""
The table of the connector's properties, each with its rule.

The names of Debezium 1.x are listed after the current ones. Properties of the event
router are in ``router``.
"""

from typing import Final

from towpath.deploy.debezium import (
    router,
    rows,
    running,
    tables,
)
from towpath.deploy.debezium.rules import (
    Property,
    always,
    boolean,
    choice,
    key,
    not_needed_because,
    only,
    seconds,
    unsupported,
    whole_number,
)

_ROWS: Final = "relay.rows"
_DSN: Final = running.part_of_dsn
_OTHER_NAME: Final = "choose another name while the connector exists"
_NO_CLASSIC: Final = not_needed_because(
    "snapshots are read in chunks, and no table is locked for longer than a chunk"
)
_NO_WORKER: Final = not_needed_because("there is no Kafka Connect worker")
_OWN_BACKPRESSURE: Final = not_needed_because(
    "relay.max_in_flight_bytes bounds the data that is read ahead"
)
_MAKE_TOPICS: Final = unsupported("create such topics before the relay starts")
_ONE_CLIENT: Final = not_needed_because(
    "kafka.client applies to all clients of the relay"
)
_DEAD_LETTERS: Final = always("dead letters are in <prefix>.dead.relay")
_OTHER_CHANNELS: Final = unsupported(
    "request snapshots with towpath snapshot start, or over HTTP"
)

_SOURCE: Final = (
    Property("name", not_needed_because("slot and prefix identify a relay")),
    Property("connector.class", not_needed_because("the relay follows Postgres only")),
    Property("tasks.max", always("one relay follows one slot")),
    Property("plugin.name", only("pgoutput", "", "the relay reads pgoutput only")),
    Property("slot.name", key("source.slot", remark=_OTHER_NAME), implied="debezium"),
    Property("slot.drop.on.stop", running.slot_drop),
    Property("slot.stream.params", unsupported("the relay chooses pgoutput's options")),
    Property("slot.max.retries", running.takeover),
    Property("slot.retry.delay.ms", running.takeover),
    Property(
        "slot.failover", always("relay init creates failover slots from Postgres 17 on")
    ),
    Property(
        "publication.name",
        key("source.publication", remark=_OTHER_NAME),
        implied="dbz_publication",
    ),
    Property("publication.autocreate.mode", running.autocreate),
    Property(
        "publish.via.partition.root",
        only("true", "", "partitions are published as their root table"),
    ),
    Property(
        "replica.identity.autoset.values",
        unsupported("run ALTER TABLE ... REPLICA IDENTITY yourself"),
    ),
    Property("database.hostname", _DSN),
    Property("database.port", _DSN),
    Property("database.user", _DSN),
    Property(running.PASSWORD, running.password, is_secret=True),
    Property("database.dbname", _DSN),
    Property("database.sslmode", _DSN),
    Property("database.sslcert", _DSN),
    Property("database.sslkey", _DSN),
    Property("database.sslpassword", running.key_password, is_secret=True),
    Property("database.sslrootcert", _DSN),
    Property(
        "database.sslfactory",
        unsupported("libpq has no socket factory: use database.ssl*"),
    ),
    Property("database.tcpKeepAlive", running.keepalive),
    Property(
        "database.initial.statements",
        unsupported("set session parameters with ALTER ROLE ... SET"),
    ),
    Property(
        "database.query.timeout.ms",
        unsupported("run ALTER ROLE ... SET statement_timeout"),
    ),
    Property(
        "driver.*",
        unsupported("there is no JDBC driver: add libpq's options to source.dsn"),
    ),
    Property("read.only", unsupported("heartbeats and watermarks need write access")),
    Property("topic.prefix", running.prefix, ("database.server.name",)),
    Property(
        "table.include.list", tables.include_list, ("table.whitelist",), implied=""
    ),
    Property("table.exclude.list", tables.other_list, ("table.blacklist",)),
    Property("schema.include.list", tables.other_list, ("schema.whitelist",)),
    Property("schema.exclude.list", tables.other_list, ("schema.blacklist",)),
)

_ROW_FORMS: Final = (
    Property("column.include.list", rows.included_columns, ("column.whitelist",)),
    Property("column.exclude.list", rows.excluded_columns, ("column.blacklist",)),
    Property(
        "time.precision.mode",
        choice(
            f"{_ROWS}.times",
            {
                "adaptive": "adaptive",
                "adaptive_time_microseconds": "adaptive_time_microseconds",
                "connect": "connect",
                "isostring": "iso",
            },
            "choose a value of relay.rows.times",
        ),
    ),
    Property(
        "decimal.handling.mode",
        choice(f"{_ROWS}.decimals", {m: m for m in ("precise", "double", "string")}),
    ),
    Property(
        "hstore.handling.mode",
        choice(f"{_ROWS}.hstore", {m: m for m in ("map", "json")}),
    ),
    Property(
        "interval.handling.mode",
        choice(f"{_ROWS}.intervals", {m: m for m in ("numeric", "string")}),
    ),
    Property(
        "binary.handling.mode",
        choice(
            f"{_ROWS}.binaries",
            {m: m for m in ("bytes", "base64", "base64-url-safe", "hex")},
        ),
    ),
    Property(
        "include.unknown.datatypes",
        choice(f"{_ROWS}.unknown_types", {"true": "bytes", "false": "omit"}),
    ),
    Property("tombstones.on.delete", key(f"{_ROWS}.tombstones", boolean)),
    Property("column.truncate.to.*.chars", rows.truncate),
    Property("column.mask.with.*.chars", rows.mask),
    Property("column.mask.hash.v2.*.with.salt.*", rows.hashed, is_secret=True),
    Property("column.mask.hash.*.with.salt.*", rows.hashed, is_secret=True),
    Property("column.propagate.source.type", rows.source_types),
    Property(
        "datatype.propagate.source.type",
        unsupported("list column expressions in relay.rows.source_types"),
    ),
    Property("message.key.columns", rows.key_columns),
    Property(
        "unavailable.value.placeholder",
        rows.placeholder,
        ("toasted.value.placeholder",),
    ),
    Property("skipped.operations", rows.skipped),
    Property("skip.messages.without.change", key(f"{_ROWS}.skip_unchanged", boolean)),
    Property("field.name.adjustment.mode", rows.sanitized, ("sanitize.field.names",)),
    Property(
        "schema.name.adjustment.mode",
        not_needed_because(
            "schema names are made legal where relay.rows.format requires it"
        ),
    ),
    Property("money.fraction.digits", only("2", "", "money has two fraction digits")),
    Property("converters", unsupported("choose among the options of relay.rows")),
    Property("value.converter", rows.value_converter),
    Property("key.converter", rows.key_converter),
    Property("value.converter.*", rows.converter_option),
    Property("key.converter.*", rows.converter_option),
    Property("header.converter", not_needed_because("headers are text")),
    Property(
        "schema.refresh.mode",
        not_needed_because(
            "each change has the columns that the table had at that time"
        ),
    ),
    Property(
        "event.processing.failure.handling.mode",
        not_needed_because("a row that cannot be published becomes a dead letter"),
    ),
    Property(
        "event.converting.failure.handling.mode",
        not_needed_because("a row that cannot be published becomes a dead letter"),
    ),
    Property("extended.headers.enabled", unsupported("use the position header")),
)

_RUNNING: Final = (
    Property(
        "provide.transaction.metadata", key("relay.transactions.metadata", boolean)
    ),
    Property(
        "message.prefix.include.list",
        running.messages,
        implied="",
    ),
    Property("message.prefix.exclude.list", running.messages),
    Property("heartbeat.interval.ms", running.heartbeat_interval),
    Property(
        "topic.heartbeat.prefix", running.heartbeat_prefix, ("heartbeat.topics.prefix",)
    ),
    Property("heartbeat.action.query", key("relay.heartbeat_query")),
    Property("exactly.once.support", running.exactly_once),
    Property("max.queue.size", _OWN_BACKPRESSURE),
    Property("max.queue.size.in.bytes", running.in_flight),
    Property("max.batch.size", _OWN_BACKPRESSURE),
    Property(
        "poll.interval.ms", not_needed_because("the relay streams and does not poll")
    ),
    Property("status.update.interval.ms", always("progress is confirmed within 10 s")),
    Property(
        "lsn.flush.mode", only("connector", "", "the relay confirms positions itself")
    ),
    Property(
        "lsn.flush.timeout.*",
        not_needed_because("the relay never waits for a confirmation"),
    ),
    Property(
        "flush.lsn.source", only("true", "", "the relay confirms positions itself")
    ),
    Property(
        "offset.mismatch.strategy",
        not_needed_because("lineages and marks decide where to resume"),
    ),
    Property(
        "retriable.restart.connector.wait.ms", always("the delay between retries grows")
    ),
    Property(
        "errors.max.retries", always("temporary failures are retried without limit")
    ),
    Property("xmin.fetch.interval.ms", only("0", "", "source.xmin is always null")),
    Property("connection.validation.timeout.ms", _NO_WORKER),
    Property("executor.shutdown.timeout.ms", key("relay.stop_timeout_s", seconds)),
)

_SNAPSHOTS: Final = (
    Property("snapshot.mode", tables.snapshot_mode, implied="initial"),
    Property("snapshot.mode.*", _NO_CLASSIC),
    Property("snapshot.lock.timeout.ms", _NO_CLASSIC),
    Property("snapshot.locking.mode", _NO_CLASSIC),
    Property("snapshot.isolation.mode", _NO_CLASSIC),
    Property("snapshot.query.mode", _NO_CLASSIC),
    Property("snapshot.delay.ms", key("relay.snapshot.delay_s", seconds)),
    Property("streaming.delay.ms", _NO_CLASSIC),
    Property("snapshot.fetch.size", _NO_CLASSIC),
    Property("snapshot.max.threads", key("relay.snapshot.readers", whole_number)),
    Property("snapshot.tables.order.by.row.count", _NO_CLASSIC),
    Property(
        "snapshot.include.collection.list",
        unsupported(
            "an initial snapshot reads every captured table: set relay.snapshot.mode "
            'to "never", then pass the tables to towpath snapshot start'
        ),
    ),
    Property("snapshot.select.statement.overrides", tables.snapshot_overrides),
    Property("snapshot.select.statement.overrides.*", tables.snapshot_overrides),
    Property(
        "incremental.snapshot.chunk.size",
        key("relay.snapshot.chunk_rows", whole_number),
    ),
    Property(
        "incremental.snapshot.allow.schema.changes",
        always("each chunk has the columns that the table has at that time"),
    ),
    Property(
        "incremental.snapshot.watermarking.strategy",
        choice(
            "relay.snapshot.watermarks",
            {"insert_insert": "rows", "insert_delete": "rows_deleted"},
        ),
    ),
    Property("signal.data.collection", tables.signal_collection),
    Property("signal.enabled.channels", tables.signal_channels),
    Property("signal.kafka.bootstrap.servers", running.brokers),
    Property("signal.kafka.topic", tables.signal_kafka_topic),
    Property(
        "signal.kafka.groupId",
        not_needed_because("the slot's name determines the consumer group"),
    ),
    Property(
        "signal.kafka.poll.timeout.ms",
        not_needed_because("the relay waits for signals"),
    ),
    Property("signal.consumer.*", _ONE_CLIENT),
    Property("signal.file", _OTHER_CHANNELS),
    Property(
        "signal.poll.interval.ms", not_needed_because("signals arrive in the stream")
    ),
    Property(
        "notification.enabled.channels",
        only(
            "sink",
            "notifications are in <prefix>.notifications",
            "notifications are in <prefix>.notifications only",
        ),
    ),
    Property("notification.sink.topic.name", running.notification_topic),
)

_KAFKA: Final = (
    Property("topic.creation.enable", always("the relay creates its topics")),
    Property("topic.creation.default.partitions", running.partitions),
    Property("topic.creation.default.replication.factor", running.replication),
    Property("topic.creation.default.retention.ms", running.retention),
    Property("topic.creation.default.*", _MAKE_TOPICS),
    Property("topic.creation.*", _MAKE_TOPICS),
    Property(
        "topic.delimiter", only(".", "", "topics are named <prefix>.<schema>.<table>")
    ),
    Property(
        "topic.naming.strategy",
        unsupported("topics are named <prefix>.<schema>.<table>"),
    ),
    Property(
        "topic.cache.size", not_needed_because("topic names are built once per table")
    ),
    Property("topic.transaction", running.transaction_topic),
    Property("bootstrap.servers", running.brokers),
    Property("producer.override.*", running.client_option, is_secret=True),
    Property("producer.*", running.client_option, is_secret=True),
    Property("consumer.override.*", _ONE_CLIENT),
    Property("consumer.*", _ONE_CLIENT),
    Property("admin.override.*", _ONE_CLIENT),
    Property(
        "schema.history.internal.*",
        not_needed_because("Postgres needs no schema history"),
    ),
    Property(
        "database.history.*", not_needed_because("Postgres needs no schema history")
    ),
    Property("transforms", router.transforms),
    Property(
        "predicates", not_needed_because("relay.outbox.table names the router's table")
    ),
    Property(
        "predicates.*",
        not_needed_because("relay.outbox.table names the router's table"),
    ),
    Property("errors.tolerance", _DEAD_LETTERS),
    Property("errors.log.enable", always("dead letters are logged")),
    Property("errors.log.include.messages", unsupported("row values are never logged")),
    Property("errors.retry.*", always("temporary failures are retried without limit")),
    Property("errors.deadletterqueue.*", _DEAD_LETTERS),
    Property("transaction.boundary", _NO_WORKER),
    Property("transaction.boundary.interval.ms", _NO_WORKER),
    Property(
        "offsets.storage.topic", not_needed_because("marks are in <prefix>.relay-state")
    ),
    Property("config.action.reload", _NO_WORKER),
    Property(
        "custom.metric.tags", unsupported("add labels where the metrics are scraped")
    ),
    Property(
        "guardrail.*", not_needed_because("source.tables lists the captured tables")
    ),
    Property(
        "openlineage.integration.*",
        unsupported(
            "set OpenLineage's variables, such as OPENLINEAGE_URL, for the relay"
        ),
    ),
    Property("internal.*", not_needed_because("it is internal to Debezium")),
)

PROPERTIES: Final = (*_SOURCE, *_ROW_FORMS, *_RUNNING, *_SNAPSHOTS, *_KAFKA)
