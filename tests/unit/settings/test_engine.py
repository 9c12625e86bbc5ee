"""The engine's section, and the process that writes to a sink's target."""

import json
from pathlib import Path

import pytest

from support.configuration import ADDRESSES
from towpath.schemas.failure import ConfigurationError
from towpath.settings import Settings, WriteFrom, read

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - an example


def settings(
    kind: str = "cache", environ: dict[str, str] | None = None, **spark: object
) -> Settings:
    """Read a configuration with one sink, which the executors write to."""
    sink: dict[str, object] = {
        "name": "one",
        "kind": kind,
        "url": ADDRESSES[kind],
        "write_from": "executors",
        "route": [{"topic": "towpath.shop.orders", "name": "shop.orders"}],
    }
    if kind == "warehouse":
        sink["folder"] = "lake"
    if kind == "webhook":
        sink["webhook"] = {"secrets": [SECRET]}
    document = {
        "version": 1,
        "source": [{"dsn": "postgresql://localhost/s", "tables": ["shop.orders"]}],
        "kafka": {"bootstrap_servers": "localhost:9092"},
        "registry": {"url": "http://localhost:8080"},
        "spark": spark,
        "sink": [sink],
    }
    return read(document, environ or {}, Path("/etc"))


@pytest.mark.parametrize("kind", ["cache", "search", "warehouse"])
def test_executors_write_to_a_cache_an_index_and_a_warehouse(kind: str):
    """
    The guard compares positions key by key, whichever process writes.

    A batch of a warehouse is one commit per table.
    """
    assert WriteFrom.EXECUTORS is settings(kind).sink[0].write_from


def test_webhooks_are_sent_from_the_driver():
    """
    The requests for a key must be sent one after another.
    """
    reason = "only the driver can write to a webhook sink"
    with pytest.raises(ConfigurationError, match=reason) as caught:
        settings("webhook")

    assert 1 == len(caught.value.mistakes)


def test_settings_of_the_engine_come_from_the_file_and_from_secrets(tmp_path: Path):
    """
    A variable that names a file replaces the entire table.
    """
    secret = {"spark.authenticate.secret": "s3cret"}
    path = tmp_path / "spark.json"
    path.write_text(json.dumps(secret), encoding="utf-8")
    from_file = settings(
        master="spark://m:7077", settings={"spark.executor.memory": "2g"}
    )
    from_secret = settings(environ={"TOWPATH_SPARK__SETTINGS_FILE": str(path)})

    assert ("spark://m:7077", {"spark.executor.memory": "2g"}, secret) == (
        from_file.spark.master,
        from_file.spark.settings,
        from_secret.spark.settings,
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("executor.memory", "it must begin with spark."),
        ("spark.master", "has a key of its own"),
        ("spark.speculation", "set by the driver itself"),
        ("spark.sql.session.timeZone", "set by the driver itself"),
    ],
)
def test_settings_that_decide_the_output_are_not_configurable(name: str, message: str):
    """
    Keys that are not engine settings are rejected, too.
    """
    with pytest.raises(ConfigurationError, match=message):
        settings(settings={name: "x"})
