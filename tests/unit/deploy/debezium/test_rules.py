"""Single conversions: units, choices, addresses, lists, secrets, routes."""

import json

import pytest

from towpath.deploy.debezium.connector import ROUTER_TYPE, Connector, read_properties
from towpath.deploy.debezium.conversion import Conversion, convert
from towpath.deploy.debezium.rules import PropertyStatus
from towpath.deploy.errors import ConnectorError

BASE = {"connector.class": "io.debezium.connector.postgresql.PostgresConnector"}
ROUTED = {"transforms": "o", "transforms.o.type": ROUTER_TYPE}


def converted(properties: dict[str, str], **more: object) -> Conversion:
    """Convert a connector with these properties."""
    return convert(Connector({**BASE, **properties}, **more))  # type: ignore[arg-type]


def text_of(conversion: Conversion, name: str) -> str:
    """Return the sentence about a property."""
    return next(each.text for each in conversion.findings if each.name == name)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("heartbeat.interval.ms", "1500", "taken as relay.heartbeat_interval_s = 1.5"),
        ("heartbeat.interval.ms", "1", "taken as relay.heartbeat_interval_s = 0.001"),
        ("heartbeat.interval.ms", "60000", "taken as relay.heartbeat_interval_s = 60"),
        (
            "heartbeat.interval.ms",
            "10000",
            "same by default: relay.heartbeat_interval_s = 10",
        ),
        ("heartbeat.interval.ms", "ten", "not supported: 'ten' is not a whole number"),
        (
            "heartbeat.interval.ms",
            "9223372036854775807",
            "not supported: '9223372036854775807' has more than 18 digits",
        ),
        (
            "topic.creation.default.retention.ms",
            "3600000",
            "taken as topics.retention_hours = 1",
        ),
        (
            "topic.creation.default.retention.ms",
            "3600001",
            "taken as topics.retention_hours = 2; rounded up to whole hours",
        ),
        ("tombstones.on.delete", "FALSE", "taken as relay.rows.tombstones = false"),
        (
            "tombstones.on.delete",
            "yes",
            "not supported: 'yes' is not true or false",
        ),
        (
            "decimal.handling.mode",
            "precise",
            'same by default: relay.rows.decimals = "precise"',
        ),
        (
            "skipped.operations",
            "t",
            'same by default: relay.rows.skipped_operations = ["t"]',
        ),
        (
            "toasted.value.placeholder",
            "hex:3f",
            'taken as relay.rows.placeholder = "?"',
        ),
        (
            "column.include.list",
            "a.b.(c",
            (
                "not supported: relay.rows.include_columns.0: "
                "not a regular expression: missing ), unterminated subpattern at "
                "position 4: 'a.b.(c'"
            ),
        ),
        ("table.include.lists", "s.a", "unknown property; did you mean "),
    ],
)
def test_a_property_value_is_converted_exactly(
    name: str, value: str, text: str
) -> None:
    """
    Milliseconds, booleans and words are converted, or the sentence explains why not.
    """
    assert text_of(converted({name: value}), name).startswith(text)


def test_the_salt_of_a_hash_is_not_shown() -> None:
    """
    Debezium puts the salt in the property's name; the report hides it in both names.
    """
    hashed = "column.mask.hash.{}.with.salt.{}"
    properties = {
        hashed.format("SHA-256", "Cz.QMA"): "a.b.c",
        hashed.format("MD2", "pepper"): "a.b.d",
    }
    findings = converted(properties).findings
    names = [each.name for each in findings if ".with.salt." in each.name]

    assert [hashed.format(each, "********") for each in ("SHA-256", "MD2")] == names
    assert not any("QMA" in each.text or "pepper" in each.text for each in findings)


def test_an_unknown_hash_is_refused() -> None:
    """
    The sentence names a known hash.
    """
    name = "column.mask.hash.MD2.with.salt.{}"
    conversion = converted({name.format("x"): "a.b.c"})

    assert text_of(conversion, name.format("********")) == (
        "not supported: relay.rows.mask.0.algorithm: 'MD2' is not a known hash, such as"
        " 'SHA-256'"
    )


def test_slot_retries_become_a_waiting_time() -> None:
    """
    For a slot that is in use, the relay waits the number of retries times their delay.
    """
    conversion = converted({"slot.max.retries": "5", "slot.retry.delay.ms": "100"})

    assert conversion.document["relay"]["takeover_timeout_s"] == 0.5


def test_an_address_is_composed_and_quoted() -> None:
    """
    Special characters in an address are quoted; the password is left out.
    """
    conversion = converted(
        {
            "database.hostname": "::1",
            "database.port": "5433",
            "database.user": "a@b",
            "database.password": "p/w",
            "database.dbname": "my db",
            "database.sslmode": "require",
            "database.tcpKeepAlive": "false",
        }
    )
    dsn = conversion.document["source"][0]["dsn"]
    assert "p/w" not in json.dumps(conversion.document)

    assert dsn == ("postgresql://a%40b@[::1]:5433/my%20db?sslmode=require&keepalives=0")


def test_secrets_are_written_only_on_request() -> None:
    """
    With the option, the password is in the file, but is still masked in the report.
    """
    properties = {
        "database.hostname": "h",
        "database.user": "u",
        "database.password": "p@w",
        "producer.override.sasl.jaas.config": 'x required username="k" password="s";',
        "producer.override.security.protocol": "SASL_SSL",
    }
    with_secrets = converted(properties, includes_secrets=True)
    found = json.dumps([each._asdict() for each in with_secrets.findings])
    assert with_secrets.document["source"][0]["dsn"] == "postgresql://u:p%40w@h:5432/"
    assert with_secrets.document["kafka"]["client"]["sasl.password"] == "s"
    assert "p%40w" not in found
    assert "p@w" not in found
    written = json.dumps(converted(properties).document)

    assert ("p%40w" in written, '"s"' in written) == (False, False)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("value.converter.basic.auth.user.info", "k:s3cret", "********"),
        (
            "value.converter.schema.registry.url",
            "http://k:s3cret@registry:8081",
            "http://k:********@registry:8081",
        ),
    ],
)
def test_the_report_masks_a_login(name: str, value: str, shown: str) -> None:
    """
    A registry's login is in its own option or in the registry's address.
    """
    conversion = converted({"value.converter": "AvroConverter", name: value})
    found = {each.name: each for each in conversion.findings}

    assert shown == found[name].value
    assert "s3cret" not in found[name].text


def test_the_login_of_a_registry_is_written_only_on_request() -> None:
    """
    The file has the address without the login; the report says where the login belongs.
    """
    name, address = "value.converter.schema.registry.url", "http://k:s@registry:8081"
    properties = {"value.converter": "AvroConverter", name: address}
    closed = converted(properties)
    documents = [closed.document, converted(properties, includes_secrets=True).document]

    assert ["http://registry:8081", address] == [
        document["registry"]["url"] for document in documents
    ]
    assert "set TOWPATH_REGISTRY__URL to the address" in text_of(closed, name)


@pytest.mark.parametrize("prefix", ["", "schema.registry."])
def test_a_registry_login_option_belongs_in_the_address(prefix: str) -> None:
    """
    The report gives this advice for both names of the option.
    """
    name = f"value.converter.{prefix}basic.auth.user.info"
    conversion = converted({"value.converter": "AvroConverter", name: "k:s"})

    assert "set TOWPATH_REGISTRY__URL to the address" in text_of(conversion, name)


def test_a_value_that_a_provider_fills_in_is_not_written() -> None:
    """
    Otherwise libpq would take the placeholder in the file as the password.
    """
    properties = {
        "database.hostname": "${env:HOST}",
        "database.dbname": "shop",
        "database.user": "u",
        "database.password": "${file:/s.properties:password}",
        "database.sslpassword": "${file:/s.properties:key}",
        "producer.override.security.protocol": "SASL_SSL",
        "producer.override.sasl.jaas.config": (
            'x required username="k" password="${file:/s.properties:kafka}";'
        ),
    }
    conversion = converted(properties, includes_secrets=True)
    filled_in = "not supported: Kafka Connect's configuration provider fills in the "
    texts = [text_of(conversion, n) for n in properties if "{" in properties[n]]

    assert [filled_in] * 4 == [text[: len(filled_in)] for text in texts]
    assert "sasl.username = " in texts[-1]
    assert "${" not in json.dumps(conversion.document)
    assert conversion.document["source"][0]["dsn"] == "postgresql://u@:5432/shop"
    login = {**properties, "producer.override.sasl.jaas.config": "${file:/s:jaas}"}
    assert "write librdkafka's settings" in text_of(
        converted(login), "producer.override.sasl.jaas.config"
    )


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("table.include.list", "source.tables"),
        ("column.mask.with.5.chars", "relay.rows.mask"),
        ("heartbeat.action.query", "relay.heartbeat_query"),
        ("signal.data.collection", "relay.snapshot.signal_table"),
        ("producer.override.client.rack", "kafka.client.client.rack"),
        ("producer.override.bootstrap.servers", "kafka.bootstrap_servers"),
    ],
)
def test_a_filled_in_value_of_any_key_is_not_written(name: str, key: str) -> None:
    """
    A placeholder must not select a table or mask a column.
    """
    conversion = converted({name: "shop.${file:/s.properties:value}"})

    assert text_of(conversion, name) == (
        "not supported: Kafka Connect's configuration provider fills in the value: "
        f"write it to {key}"
    )
    assert "${" not in json.dumps(conversion.document)


@pytest.mark.parametrize(
    ("login", "password"),
    [
        ("""username="k" password="it's";""", "it's"),
        (r"""username="k" password="a\"b\\c";""", 'a"b\\c'),
        ("""username='k' password='say "x"';""", 'say "x"'),
        ("""username="k" password="s" keypassword="t";""", "s"),
    ],
)
def test_a_login_is_read_as_java_reads_it(login: str, password: str) -> None:
    """
    A value ends at the quote that it began with, unless a backslash precedes it.
    """
    properties = {
        "database.hostname": "h",
        "producer.override.security.protocol": "SASL_SSL",
        "producer.override.sasl.jaas.config": f"x required {login}",
    }
    client = converted(properties, includes_secrets=True).document["kafka"]["client"]

    assert ("k", password) == (client["sasl.username"], client["sasl.password"])


def test_plain_names_and_choices_need_no_database() -> None:
    """
    Names, escaped names and choices of names become names; others are reported.
    """
    conversion = converted({"table.include.list": r"s.a, s\.b,s.(c|d), (s, orders"})
    text = text_of(conversion, "table.include.list")
    assert conversion.document["source"][0]["tables"] == ["s.a", "s.b", "s.c", "s.d"]

    assert "no schema.table matches '(s', 'orders'" in text


@pytest.mark.parametrize(
    ("lists", "tables", "excluded"),
    [
        ({"table.include.list": r"s\.e.*"}, [r"s\.e.*"], None),
        ({"table.include.list": r"S\.e\D*"}, [r"(?i)S\.e\D*"], None),
        ({}, [".*"], None),
        ({"schema.include.list": "s"}, [r"s\..*"], None),
        ({"table.exclude.list": "secret,public.hidden"}, [".*"], ["public.hidden"]),
        (
            {"schema.include.list": "s,t", "table.exclude.list": r"s\.tmp.*,t.x"},
            [r"(?:s|t)\..*"],
            [r"s\.tmp.*", "t.x"],
        ),
        (
            {"schema.include.list": "s,t", "table.include.list": r"s.a,.*\.e.*"},
            ["s.a", r"(?=(?:s|t)\.)(?:.*\.e.*)"],
            None,
        ),
        (
            {"table.include.list": r".*\.a", "schema.exclude.list": "u.*"},
            [r".*\.a"],
            [r"u.*\..*"],
        ),
    ],
)
def test_regular_expressions_remain_regular_expressions(
    lists: dict[str, str], tables: list[str], excluded: list[str] | None
) -> None:
    """
    Without the catalog, a regular expression is kept, with all its restrictions.
    """
    source = converted(lists).document["source"][0]

    assert (tables, excluded) == (source["tables"], source.get("exclude_tables"))


@pytest.mark.parametrize(
    ("properties", "name", "text"),
    [
        ({}, "snapshot.mode", 'taken as relay.snapshot.mode = "initial"'),
        (
            {"snapshot.mode": "exported"},
            "snapshot.mode",
            'taken as relay.snapshot.mode = "initial"',
        ),
        (
            {"snapshot.mode": "always"},
            "snapshot.mode",
            'taken as relay.snapshot.mode = "always"; every start reads all rows',
        ),
        (
            {"snapshot.mode": "no_data"},
            "snapshot.mode",
            'same by default: relay.snapshot.mode = "never"',
        ),
        (
            {"snapshot.mode": "recovery"},
            "snapshot.mode",
            "not needed because Postgres needs no schema history",
        ),
        (
            {"snapshot.mode": "custom"},
            "snapshot.mode",
            "not supported: 'custom': choose a value of relay.snapshot.mode",
        ),
        (
            {"snapshot.delay.ms": "1500"},
            "snapshot.delay.ms",
            "taken as relay.snapshot.delay_s = 1.5",
        ),
        (
            {"snapshot.max.threads": "4"},
            "snapshot.max.threads",
            "taken as relay.snapshot.readers = 4",
        ),
        (
            {"incremental.snapshot.watermarking.strategy": "INSERT_DELETE"},
            "incremental.snapshot.watermarking.strategy",
            'taken as relay.snapshot.watermarks = "rows_deleted"',
        ),
        (
            {"signal.enabled.channels": "source,kafka", "topic.prefix": "p"},
            "signal.enabled.channels",
            'taken as relay.snapshot.signal_topic = "p-signal"',
        ),
        (
            {"signal.enabled.channels": "kafka,jmx", "signal.kafka.topic": "asks"},
            "signal.enabled.channels",
            "not supported: jmx: request snapshots with towpath",
        ),
        (
            {"signal.kafka.topic": "asks"},
            "signal.kafka.topic",
            "not needed because signal.enabled.channels does not name kafka",
        ),
        (
            {"signal.data.collection": "shop.towpath.signal"},
            "signal.data.collection",
            "same by default",
        ),
        (
            {"signal.data.collection": "shop.mytowpath.signal"},
            "signal.data.collection",
            'taken as relay.snapshot.signal_table = "mytowpath.signal"',
        ),
        (
            {"signal.data.collection": "shop.s.dbz_signal"},
            "signal.data.collection",
            'taken as relay.snapshot.signal_table = "s.dbz_signal"',
        ),
        (
            {
                "table.include.list": "s.a",
                "snapshot.select.statement.overrides": "d.s.a",
            },
            "snapshot.select.statement.overrides",
            "not supported: there is no snapshot.select.statement.overrides.<table>",
        ),
        (
            {
                "table.include.list": "s.a",
                "snapshot.select.statement.overrides": "d.s.a",
                "snapshot.select.statement.overrides.d.s.a": "select 1",
            },
            "snapshot.select.statement.overrides.d.s.a",
            'taken as relay.snapshot.select = [{"table": "s.a", "select": "select 1"}]',
        ),
    ],
)
def test_snapshot_and_signal_properties_are_converted(
    properties: dict[str, str], name: str, text: str
) -> None:
    """
    Modes, statements, strategies and channels become keys, or a sentence says why not.
    """
    tables = {"table.include.list": "s.a"}

    assert text_of(converted({**tables, **properties}), name).startswith(text)


def test_patterns_are_matched_against_the_catalog() -> None:
    """
    With the catalog, every list is applied to the existing tables.
    """
    catalog = dict.fromkeys(("s.a", "s.ab", "s.tmp", "t.a", "u.a"), ("id", "at"))
    conversion = converted(
        {
            "schema.include.list": "s|t",
            "table.include.list": r"[ST]\.a.*,s.tmp",
            "table.exclude.list": "s.tmp",
            "message.key.columns": "s.*:^i",
        },
        catalog=catalog,
    )
    assert conversion.document["relay"]["rows"]["key_columns"] == {
        "s.a": ["id"],
        "s.ab": ["id"],
    }

    assert conversion.document["source"][0]["tables"] == ["s.a", "s.ab", "t.a"]


@pytest.mark.parametrize(
    ("properties", "table"),
    [
        ({"table.include.list": "public.events"}, "public.events"),
        ({"table.include.list": "s.a,s.my_outbox"}, "s.my_outbox"),
        (
            {
                "topic.prefix": "p",
                "table.include.list": "s.a,s.b",
                "transforms.o.predicate": "x",
                "predicates.x.pattern": "p.s.b",
            },
            "s.b",
        ),
    ],
)
def test_the_routers_table_becomes_the_outbox_table(
    properties: dict[str, str], table: str
) -> None:
    """
    The predicate names it, or it is the only table, or the one named outbox.
    """
    document = converted({**ROUTED, **properties}).document
    assert table not in document["source"][0].get("tables", [])

    assert document["relay"]["outbox"]["table"] == table


def test_an_ambiguous_outbox_table_is_a_finding() -> None:
    """
    The converter cannot guess which of two tables is the outbox.
    """
    conversion = converted({**ROUTED, "table.include.list": "s.a,s.b"})

    assert "write its name to relay.outbox.table" in text_of(conversion, "transforms")


@pytest.mark.parametrize(
    ("regex", "replacement", "outbox"),
    [
        (None, "${routedByValue}.events", {"topic": "{aggregate_type}.events"}),
        ("(.*)", "x.$1", {"topic": "x.{aggregate_type}"}),
        (
            "(?<a>[a-z]+)-(.*)",
            "${a}.$2",
            {
                "topic": "{aggregate_type}",
                "route_regex": "(?P<a>[a-z]+)-(.*)",
                "route_replacement": "${a}.$2",
            },
        ),
    ],
)
def test_a_route_becomes_a_template_or_a_rewrite(
    regex: str | None, replacement: str, outbox: dict[str, str]
) -> None:
    """
    A regular expression that matches everything becomes a template, others a rewrite.
    """
    properties = {"transforms.o.route.topic.replacement": replacement}
    if regex is not None:
        properties["transforms.o.route.topic.regex"] = regex
    document = converted({**ROUTED, **properties}).document

    assert {**outbox, "placements": []} == document["relay"]["outbox"]


@pytest.mark.parametrize(
    ("converter", "enabled", "format_"),
    [
        ("org.apache.kafka.connect.json.JsonConverter", "false", "json"),
        ("io.confluent.connect.avro.AvroConverter", "true", "avro"),
    ],
)
def test_a_converter_becomes_the_format_of_rows(
    converter: str, enabled: str, format_: str
) -> None:
    """
    The format is JSON with or without schemas, or Avro.
    """
    properties = {
        "value.converter": converter,
        "value.converter.schemas.enable": enabled,
    }

    assert converted(properties).document["relay"]["rows"]["format"] == format_


def test_quoted_payloads_are_reported() -> None:
    """
    Consumers must know if a JSON converter used to write text in quotes.
    """
    name = "value.converter"
    conversion = converted(
        {**ROUTED, name: "org.apache.kafka.connect.json.JsonConverter"}
    )

    assert "parse them once" in text_of(conversion, name)


@pytest.mark.parametrize("name", ["key.converter", "value.converter"])
def test_a_converter_to_text_is_supported_only_for_the_outbox(name: str) -> None:
    """
    Without the event router, it converts row changes, which are never plain text here.
    """
    converter = {name: "org.apache.kafka.connect.storage.StringConverter"}
    routed = text_of(converted({**ROUTED, **converter}), name)
    rows = text_of(converted(converter), name)

    assert routed.startswith("same by default: outbox ")
    assert rows.startswith("not supported: ")
    assert rows.endswith(" are JSON, JSON with schemas, or Avro")


def test_a_refused_value_does_not_affect_other_keys() -> None:
    """
    A value that the configuration refuses affects only its own key.
    """
    conversion = converted({"slot.name": "Not-Legal", "publication.name": "pub"})
    statuses = {each.name: each.status for each in conversion.findings}
    assert statuses["slot.name"] is PropertyStatus.NOT_SUPPORTED

    assert conversion.document["source"][0]["publication"] == "pub"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not an object"),
        ('"x"', "not an object"),
        ("{}", "no connector.class"),
        ('{"a": "b"}', "no connector.class"),
        (
            '{"connector.class": "io.debezium.connector.mysql.MySqlConnector"}',
            "not Deb",
        ),
        ('{"name": "x", "config": {"slot.name": {"a": 1}}}', "slot.name: a property"),
        ('{"slot.name": "\\ud800"}', "not text"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_an_invalid_connector_gives_one_clear_error(text: str, reason: str) -> None:
    """
    A document that is not a Postgres connector is refused with the reason.
    """
    with pytest.raises(ConnectorError, match=reason):
        read_properties(text)
