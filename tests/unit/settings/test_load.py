"""Reading ``towpath.toml``: overrides, secrets, and all mistakes at once."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from towpath.schemas.failure import ConfigurationError, ConfigurationMissingError
from towpath.settings import Settings, SinkKind, load

VALID = """
version = 1
[[source]]
dsn = "postgresql://u@127.0.0.1/shop"
tables = ["shop.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[registry]
url = "http://127.0.0.1:8081"
[[sink]]
name = "cache"
kind = "cache"
url = "redis://127.0.0.1:6379/0"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders"
"""


def read(folder: Path, text: str, **environ: str) -> Settings:
    """Load a file with the given text and environment."""
    path = folder / "towpath.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, environ)


def mistakes(folder: Path, text: str, **environ: str) -> tuple[str, ...]:
    """Return the mistakes in a file with the given text."""
    with pytest.raises(ConfigurationError) as caught:
        read(folder, text, **environ)
    return caught.value.mistakes


def test_a_good_file_is_read_with_its_defaults(tmp_path: Path):
    """
    A missing key has its documented default.
    """
    settings = read(tmp_path, VALID)

    assert settings.database.slot == "towpath"
    assert settings.relay.outbox.topic == "outbox.event.{aggregate_type}"
    assert settings.topics.replay_window_s == (168 + 24) * 3600
    assert settings.sink_named("cache").kind is SinkKind.CACHE
    assert settings.sink_named("absent") is None


def test_relative_folders_are_relative_to_the_file(tmp_path: Path):
    """
    The state folder is in the file's folder, wherever the process was started.
    """
    assert tmp_path / ".towpath" == read(tmp_path, VALID).state_folder


def test_the_environment_overrides_the_file(tmp_path: Path):
    """
    Keys of a section, of the only source and of a named sink can be overridden.
    """
    settings = read(
        tmp_path,
        VALID,
        TOWPATH_KAFKA__BOOTSTRAP_SERVERS="broker:1",
        TOWPATH_SOURCE__SLOT="other",
        TOWPATH_SINK__CACHE__URL="redis://other",
        TOWPATH_TOPICS__PARTITIONS="12",
    )

    assert settings.kafka.bootstrap_servers == "broker:1"
    assert settings.database.slot == "other"
    assert settings.sink[0].url == "redis://other"
    assert settings.topics.partitions == 12


def test_a_secret_may_come_from_a_file(tmp_path: Path):
    """
    A variable ending in _FILE names the file that contains the value.
    """
    secret = tmp_path / "dsn"
    secret.write_text("postgresql://secret\n", encoding="utf-8")

    settings = read(tmp_path, VALID, TOWPATH_SOURCE__DSN_FILE=str(secret))

    assert settings.database.dsn == "postgresql://secret"


def test_variables_of_the_command_line_are_ignored(tmp_path: Path):
    """
    TOWPATH_CONFIG and TOWPATH_STATE are not keys of the file.
    """
    assert read(tmp_path, VALID, TOWPATH_CONFIG="x", TOWPATH_STATE="y").version == 1


def test_every_mistake_is_reported_at_once_with_the_nearest_name(tmp_path: Path):
    """
    Unknown keys, missing keys and bad values of every section are in one message.
    """
    text = (
        VALID.replace("tables =", "tabels =")
        .replace('kind = "cache"', 'kind = "cash"')
        .replace("bootstrap_servers", "bootstrap_server")
    )

    found = mistakes(tmp_path, text)

    assert "source.0.tabels: unknown key; did you mean 'tables'?" in found
    assert "kafka.bootstrap_servers: missing" in found
    assert (
        "sink.0.kind: 'cash' is not one of 'cache', 'postgres', 'search', 'warehouse', "
        "'webhook'; did you mean 'cache'?"
    ) in found
    assert len(found) == 4


def test_a_list_is_not_reported_as_short_if_its_elements_are_wrong(tmp_path: Path):
    """
    A mistake in the only source is reported once, without a report of a missing source.
    """
    found = mistakes(tmp_path, VALID.replace('"shop.orders"', '"orders"'))

    assert found == ("source.0.tables.0: must be schema.table, not 'orders'",)


def test_mistakes_of_the_environment_join_those_of_the_file(tmp_path: Path):
    """
    The missing file of a secret and a nonexistent section are reported, too.
    """
    found = mistakes(
        tmp_path,
        VALID,
        TOWPATH_SOURCE__DSN_FILE=str(tmp_path / "absent"),
        TOWPATH_SINK__ABSENT__ROUTE__URL="x",
        TOWPATH_RELAY__OUTBOX__VIEW__NAME="x",
        TOWPATH_VERSION__X="1",
    )

    assert any("No such file" in line for line in found)
    assert "TOWPATH_VERSION__X: there is no such section in the file" in found
    absent = "TOWPATH_RELAY__OUTBOX__VIEW__NAME: there is no [[relay.outbox.view]]"
    assert f"{absent} in the file" in found


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (('name = "orders"', 'name = "orders"\nkind = "event_log"'), "event log"),
        (('kind = "cache"', 'kind = "warehouse"'), "folder"),
        (("version = 1", "version = 2"), "version: must be 1, not 2"),
        (("[[source]]", "[[source]]\ndsn='x'\n[[source]]"), "source"),
    ],
)
def test_contradictions_are_mistakes(
    tmp_path: Path, change: tuple[str, str], mistake: str
):
    """
    Settings that contradict each other are rejected, and the error names the key.
    """
    assert any(mistake in line for line in mistakes(tmp_path, VALID.replace(*change)))


def test_two_sinks_with_one_name_are_refused(tmp_path: Path):
    """
    A sink's name is its identity.
    """
    again = VALID + VALID[VALID.index("[[sink]]") :]

    assert mistakes(tmp_path, again) == ("file: sink: two sinks have the same name",)


def test_two_routes_with_one_name_are_refused(tmp_path: Path):
    """
    Otherwise two tables would write the same rows.
    """
    again = VALID + VALID[VALID.index("[[sink.route]]") :]

    assert "two routes have the same name" in mistakes(tmp_path, again)[0]


@pytest.mark.parametrize("text", ["version = ", "\udcff"])
def test_invalid_toml_gives_one_clear_error(tmp_path: Path, text: str):
    """
    The error shows where the file cannot be parsed.
    """
    path = tmp_path / "towpath.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(ConfigurationError, match="not TOML"):
        load(path, {})


def test_a_missing_file_gives_one_clear_error(tmp_path: Path):
    """
    The message names the missing file, and the page that explains how to write one.
    """
    with pytest.raises(ConfigurationMissingError, match=r"absent\.toml: No such file"):
        load(tmp_path / "absent.toml", {})
    assert "docs/how-to/own-servers.md" in ConfigurationMissingError.remedy


@pytest.mark.parametrize(
    ("document", "name", "kind"),
    [
        ({"version": 1, "relay": {"max_parked_keys": True}}, "max_parked_keys", "int"),
        ({"version": 1, "relay": {"stop_timeout_s": False}}, "stop_timeout_s", "float"),
        ({"sink": [{"budget_s": True}]}, "budget_s", "float"),
        ({"sink": [{"max_batch_records": True}]}, "max_batch_records", "int"),
    ],
)
def test_a_boolean_is_not_a_number(
    document: dict[str, object], name: str, kind: str
) -> None:
    """
    In Python, True equals 1, but a person who writes true has misunderstood the key.
    """
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate(document)

    found = {(error["loc"][-1], error["type"]) for error in caught.value.errors()}
    assert (name, f"{kind}_type") in found
