"""The messages about a wrong configuration: every mistake at once, with a remedy."""

from pathlib import Path

import pytest

from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, load

VALID = """
version = 1
[[source]]
dsn = "postgresql://u@127.0.0.1/shop"
tables = ["shop.orders", "shop.customers"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[registry]
url = "http://127.0.0.1:8081"
"""

SINK = '[[sink]]\nname = "c"\nkind = "cache"\nurl = "redis://h"\n'
ROUTE = '[[sink.route]]\ntopic = "towpath.shop.orders"\nname = "o"\n'


def read(folder: Path, more: str, **environ: str) -> Settings:
    """Load the good file with more text and the given environment."""
    path = folder / "towpath.toml"
    path.write_text(VALID + more, encoding="utf-8")
    return load(path, environ)


def mistakes(folder: Path, more: str, **environ: str) -> tuple[str, ...]:
    """Return the mistakes in the good file with more text."""
    with pytest.raises(ConfigurationError) as caught:
        read(folder, more, **environ)
    return caught.value.mistakes


@pytest.mark.parametrize(
    ("more", "mistake"),
    [
        (
            '[relay]\ndelivery = "transactionel"',
            (
                "relay.delivery: 'transactionel' is not one of 'idempotent', "
                "'transactional'; "
                "did you mean 'transactional'?"
            ),
        ),
        (
            '[relay]\npreset = "debezum"',
            (
                "relay.preset: 'debezum' is not one of 'towpath', 'debezium'; "
                "did you mean 'debezium'?"
            ),
        ),
        (
            "[relay]\ndelivery = 3",
            "relay.delivery: 3 is not one of 'idempotent', 'transactional'",
        ),
        (
            '[topics]\npartitions = "many"',
            "topics.partitions: expected a whole number, not 'many'",
        ),
        (
            "[topics]\npartitions = true",
            "topics.partitions: expected a whole number, not true",
        ),
        (
            "[sinks]\nmetrics_ports = {cache = true}",
            "sinks.metrics_ports.cache: expected a whole number, not true",
        ),
        (
            "[topics]\nretention_hours = 1.5",
            "topics.retention_hours: expected a whole number, not 1.5",
        ),
        ("[topics]\npartitions = 0", "topics.partitions: must be at least 1, not 0"),
        (
            "[relay]\nstop_timeout_s = inf",
            "relay.stop_timeout_s: expected a finite number, not inf",
        ),
        (
            "[relay]\nheartbeat_interval_s = -1",
            "relay.heartbeat_interval_s: must be more than 0, not -1",
        ),
        (
            "[relay]\nheartbeat_query = 5",
            "relay.heartbeat_query: expected text in quotes, not 5",
        ),
        (
            "[relay]\nheartbeat_query = 2026-01-02",
            "relay.heartbeat_query: expected text in quotes, not 2026-01-02",
        ),
        (
            f"{SINK}{ROUTE}[[sink.route.transforms]]\ndrop_if = {{}}",
            "sink.0.route.0.transforms.0.drop_if: must be a table of 1 or more keys",
        ),
        (
            '[relay.rows]\ntombstones = "maybe"',
            "relay.rows.tombstones: expected true or false, not 'maybe'",
        ),
        (
            '[relay.rows]\ninclude_columns = "a"',
            (
                'relay.rows.include_columns: expected a list, such as ["a", "b"], '
                "not 'a'"
            ),
        ),
        (
            "[relay]\nrows = [1]",
            "relay.rows: expected a section with keys, not a list",
        ),
        (
            "[relay.rows]\nkey_columns = true",
            "relay.rows.key_columns: expected a table of keys and values, not true",
        ),
        (
            '[relay.rows.key_columns]\norders = ["id"]',
            "relay.rows.key_columns.orders: must be schema.table, not 'orders'",
        ),
        (
            '[relay.rows]\nexclude_columns = ["a.(b"]',
            (
                "relay.rows.exclude_columns.0: not a regular expression: "
                "missing ), unterminated subpattern at position 2: 'a.(b'"
            ),
        ),
        (
            '[relay.outbox]\nplacements = ["a:header", "b:heder"]',
            (
                "relay.outbox.placements.1: 'b:heder': 'heder' is not one of 'header', "
                "'partition', 'envelope'"
            ),
        ),
        (
            '[relay.outbox]\nplacements = ["a"]',
            (
                "relay.outbox.placements.0: 'a' is not column:header, "
                "column:partition or "
                "column:envelope"
            ),
        ),
        (
            '[relay.outbox]\ntopic = "a {aggregate_type}"',
            (
                "relay.outbox.topic: 'a {aggregate_type}' is not a topic that Kafka "
                "accepts: "
                "use 1 to 249 letters, digits, dots, dashes and underscores "
                "(but not just . or ..), and "
                "{aggregate_type} for "
                "the aggregate type"
            ),
        ),
        (
            '[relay.outbox]\ntopic = "{aggregate}"',
            (
                "relay.outbox.topic: '{aggregate}' is not a topic that Kafka accepts: "
                "use 1 to 249 letters, digits, dots, dashes and underscores "
                "(but not just . or ..), and "
                "{aggregate_type} for "
                "the aggregate type"
            ),
        ),
        (
            '[[relay.outbox.view]]\naggregate_type = "a"\nview = "s.v"\nname = "A b"',
            (
                "relay.outbox.view.0.name: must be lower-case letters, digits, dashes "
                "and underscores, beginning with a letter or a digit, or empty, "
                "not 'A b'"
            ),
        ),
        (
            "[relay.snapshot]\nchunk_row = 1",
            "relay.snapshot.chunk_row: unknown key; did you mean 'chunk_rows'?",
        ),
        (
            "[topics]\ntombstones = true",
            "topics.tombstones: unknown key; did you mean 'relay.rows.tombstones'?",
        ),
        (
            '[[relay.rows.mask]]\ncolumns = ["a"]\nform = "hash"\nalgorithm = "MD0"',
            (
                "relay.rows.mask.0.algorithm: 'MD0' is not a known hash, "
                "such as "
                "'SHA-256'"
            ),
        ),
    ],
)
def test_each_mistake_is_reported_with_the_expected_value(
    tmp_path: Path, more: str, mistake: str
) -> None:
    """
    The message has the key, its valid values, the given value and the nearest word.
    """
    assert mistakes(tmp_path, more) == (mistake,)


@pytest.mark.parametrize(
    ("more", "mistake"),
    [
        (
            '[relay.rows.key_columns]\n"shop.order" = ["id"]',
            (
                "relay.rows.key_columns.shop.order: not one of source.tables; "
                "did you mean 'shop.orders'?"
            ),
        ),
        (
            '[relay.outbox]\ntable = "shop.orders"',
            (
                "source.tables: shop.orders is the outbox (relay.outbox.table), "
                "whose rows "
                "become events: leave it out"
            ),
        ),
        (
            "[relay]\nretained_critical_bytes = 1",
            (
                "relay.retained_critical_bytes: must be at least "
                "relay.retained_warning_bytes, which is 10737418240"
            ),
        ),
        (
            '[relay.outbox]\nroute_replacement = "a"',
            "relay.outbox.route_replacement: needs relay.outbox.route_regex",
        ),
        (
            (
                '[relay.outbox]\nroute_regex = "(?<a>.)(.)"\n'
                'route_replacement = "$1 ${a} $2 $21 ${b} $3"'
            ),
            (
                "relay.outbox.route_replacement: ${b} is not a group of "
                "relay.outbox.route_regex"
            ),
        ),
        (
            '[relay.messages]\ninclude = ["a"]\nexclude = ["b"]',
            "relay.messages: include and exclude cannot be combined",
        ),
    ],
)
def test_sections_that_contradict_each_other_are_mistakes(
    tmp_path: Path, more: str, mistake: str
) -> None:
    """
    Such mistakes are found when the file is read, without a server.
    """
    assert mistakes(tmp_path, more)[0] == mistake


def test_an_escaped_dollar_is_not_a_reference(tmp_path: Path) -> None:
    """
    The check reads a replacement as the relay does.
    """
    more = "[relay.outbox]\nroute_regex = \"(a)\"\nroute_replacement = 'b\\$5-$1'\n"

    assert r"b\$5-$1" == read(tmp_path, more).relay.outbox.route_replacement


def test_contradictions_are_reported_together_with_other_mistakes(
    tmp_path: Path,
) -> None:
    """
    A wrong value elsewhere does not hide that two sections contradict each other.
    """
    more = """
    [relay]
    delivery = "x"
    retained_critical_bytes = 1
    [[sink]]
    kind = "cash"
    """
    found = mistakes(tmp_path, more)
    named = sorted(line.partition(":")[0] for line in found)
    expected = [
        "relay.delivery",
        "relay.retained_critical_bytes",
        "sink.0.kind",
        "sink.0.name",
        "sink.0.route",
        "sink.0.url",
    ]

    assert expected == named


def test_a_check_is_skipped_if_its_keys_are_wrong(tmp_path: Path) -> None:
    """
    A mistyped table is not reported again as a missing table.
    """
    path = tmp_path / "towpath.toml"
    text = VALID.replace('"shop.orders"', '"orders"')
    path.write_text(text + '[relay.rows.key_columns]\n"shop.orders" = ["id"]')
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})

    assert caught.value.mistakes == (
        "source.0.tables.0: must be schema.table, not 'orders'",
    )


def test_the_environment_can_set_keys_at_every_depth(tmp_path: Path) -> None:
    """
    Nested keys, lists and tables, as TOML or JSON, and Kafka's own settings can be set.
    """
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n", encoding="utf-8")
    settings = read(
        tmp_path,
        '[[sink]]\nname = "big-cache"\nkind = "cache"\nurl = "redis://x"\n'
        '[[sink.route]]\ntopic = "towpath.shop.orders"\nname = "a"\n',
        TOWPATH_RELAY__OUTBOX__TOPIC="events.{aggregate_type}",
        TOWPATH_RELAY__OUTBOX__COLUMNS__ID="event_id",
        TOWPATH_RELAY__ROWS__TOMBSTONES="false",
        TOWPATH_RELAY__ROWS__KEY_COLUMNS='{"shop.orders": ["number"]}',
        TOWPATH_RELAY__TRANSACTIONS="{metadata = true}",
        TOWPATH_SOURCE__TABLES='["shop.orders"]',
        TOWPATH_KAFKA__CLIENT__SECURITY_PROTOCOL="sasl_ssl",
        TOWPATH_KAFKA__CLIENT__SASL_MECHANISM="PLAIN",
        TOWPATH_KAFKA__CLIENT__SASL_PASSWORD_FILE=str(secret),
        TOWPATH_SINK__BIG_CACHE__URL="redis://other",
    )
    found = (
        settings.relay.outbox.topic,
        settings.relay.outbox.columns.id,
        settings.relay.rows.tombstones,
        settings.relay.rows.key_columns,
        settings.relay.transactions.metadata,
        settings.database.tables,
        settings.kafka.client,
        settings.sink[0].url,
    )
    expected = (
        "events.{aggregate_type}",
        "event_id",
        False,
        {"shop.orders": ("number",)},
        True,
        ("shop.orders",),
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "PLAIN",
            "sasl.password": "hunter2",
        },
        "redis://other",
    )

    assert expected == found


@pytest.mark.parametrize(
    ("variable", "value", "mistake"),
    [
        (
            "TOWPATH_TOPICS__PARTITIONS",
            "many",
            "TOWPATH_TOPICS__PARTITIONS: expected a whole number, not 'many'",
        ),
        (
            "TOWPATH_SOURCE__TABLES",
            '["orders"]',
            "TOWPATH_SOURCE__TABLES[0]: must be schema.table, not 'orders'",
        ),
        (
            "TOWPATH_SOURCE__TABLES",
            "shop.orders",
            (
                "TOWPATH_SOURCE__TABLES: expected a list or a table in TOML or JSON, "
                "not 'shop.orders'"
            ),
        ),
        (
            "TOWPATH_KAFKA__BOOTSTRAP",
            "x:1",
            (
                "TOWPATH_KAFKA__BOOTSTRAP: unknown key; "
                "did you mean 'TOWPATH_KAFKA__BOOTSTRAP_SERVERS'?"
            ),
        ),
        (
            "TOWPATH_KAFKA__CLIENT__ACKS",
            "1",
            (
                "TOWPATH_KAFKA__CLIENT__ACKS: 'acks' is set by the relay itself: "
                "leave it out"
            ),
        ),
        (
            "TOWPATH_RELAY__DELIVERY",
            "idempotant",
            (
                "TOWPATH_RELAY__DELIVERY: 'idempotant' is not one of 'idempotent', "
                "'transactional'; did you mean 'idempotent'?"
            ),
        ),
        (
            "TOWPATH_RELEY__DELIVERY",
            "idempotent",
            "TOWPATH_RELEY__DELIVERY: reley: unknown key; did you mean 'relay'?",
        ),
        (
            "TOWPATH_RELAY__OUTBX__TOPIC",
            "x",
            (
                "TOWPATH_RELAY__OUTBX__TOPIC: relay.outbx: unknown key; "
                "did you mean 'outbox'?"
            ),
        ),
    ],
)
def test_a_bad_value_is_reported_with_its_variable(
    tmp_path: Path, variable: str, value: str, mistake: str
) -> None:
    """
    The message names the variable instead of a key in the file, which has no mistake.
    """
    assert mistakes(tmp_path, "", **{variable: value}) == (mistake,)


@pytest.mark.parametrize(
    ("address", "is_valid"),
    [
        ("broker:9092", True),
        ("a:1, b:2", True),
        ("[::1]:9092", True),
        ("broker", False),
        ("kafka://broker:9092", False),
        ("", False),
    ],
)
def test_brokers_are_hosts_with_ports(
    tmp_path: Path, address: str, *, is_valid: bool
) -> None:
    """
    An invalid address is reported before a client tries it.
    """
    environ = {"TOWPATH_KAFKA__BOOTSTRAP_SERVERS": address}
    if is_valid:
        assert read(tmp_path, "", **environ).kafka.bootstrap_servers == address
        return

    assert "must be host:port" in mistakes(tmp_path, "", **environ)[0]


def test_an_unlikely_key_has_no_suggestion(tmp_path: Path):
    """
    For a key that resembles none, the error lists the valid keys.
    """
    path = tmp_path / "towpath.toml"
    path.write_text(
        'version = 1\nbogus_key = 1\n[[source]]\ndsn = "postgresql:///x"\n'
        '[kafka]\nbootstrap_servers = "localhost:9092"\n[topics]\nzzz = 1\n'
    )
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})

    assert [
        (
            "topics.zzz: unknown key; [topics] has the keys partitions, "
            "replication_factor, retention_hours"
        ),
        (
            "bogus_key: unknown key; the file has the keys kafka, registry, relay, "
            "sink, sinks, source, spark, state_folder, topics, version"
        ),
    ] == list(caught.value.mistakes)


@pytest.mark.parametrize(
    ("more", "environ"),
    [
        ('[kafka.client]\n"sasl.password" = 873112', {}),
        ('[kafka.client]\n"ssl.key.password" = 873112', {}),
        ('[[relay.rows.mask]]\ncolumns=["x"]\nform="hash"\nsalt=873112', {}),
        (SINK + "hash_salts = '873112'\n" + ROUTE, {}),
        (SINK + "hash_salts.x = 873112\n" + ROUTE, {}),
        (SINK + "webhook.secrets = '873112'\n" + ROUTE, {}),
        ("", {"TOWPATH_KAFKA__CLIENT": "sasl.password=873112"}),
        (SINK + ROUTE, {"TOWPATH_SINK__C__HASH_SALTS": "873112"}),
        (SINK + ROUTE, {"TOWPATH_SINK__C__ROUTE": "http://u:873112@h"}),
    ],
)
def test_a_mistake_does_not_repeat_a_secret(tmp_path: Path, more: str, environ) -> None:
    """
    A number without quotes, or a string instead of a table, is described, not quoted.
    """
    assert "873112" not in "".join(mistakes(tmp_path, more, **environ))


def test_a_value_that_no_parser_accepts_is_a_mistake(tmp_path: Path) -> None:
    """
    A list is nested too deeply, or a number has too many digits.
    """
    deep, long = "[" * 9_999, "9" * 9_999
    for more, environ in (
        ("", {"TOWPATH_SOURCE__TABLES": deep}),
        ("", {"TOWPATH_SOURCE__TABLES": f"[{long}]"}),
        (f"[topics]\npartitions = {long}", {}),
    ):
        assert 1 == len(mistakes(tmp_path, more, **environ))
