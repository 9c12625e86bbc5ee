"""The kind of a sink, and the sections that belong to it."""

from pathlib import Path

import pytest

from towpath.schemas.failure import ConfigurationError
from towpath.settings import SinkKind, load
from towpath.settings.secrets import masked
from towpath.settings.sink import installed_kinds

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 - an example
FILE = """
version = 1
[[source]]
dsn = "postgresql://localhost/shop"
tables = ["shop.orders"]
[kafka]
bootstrap_servers = "localhost:9092"
[registry]
url = "http://localhost:8080"
[[sink]]
name = "orders"
kind = "{kind}"
url = "{url}"
{more}
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders"
{route}
"""
HOOK = f'webhook = {{ secrets = ["{SECRET}"] }}'


def read(folder: Path, kind: str, more: str = "", **changes: str):
    """Write the file and read it."""
    path = folder / "towpath.toml"
    values = {"url": "https://example.org/hook", "route": "", **changes}
    path.write_text(FILE.format(kind=kind, more=more, **values), encoding="utf-8")
    return load(path, {}).sink_named("orders")


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch) -> Path:
    """Install a package that adds the kind ``heap``."""
    folder = tmp_path / "site"
    metadata = folder / "heap-1.0.dist-info"
    metadata.mkdir(parents=True)
    metadata.joinpath("METADATA").write_text("Name: heap\nVersion: 1.0\n")
    metadata.joinpath("entry_points.txt").write_text(
        "[towpath.sinks]\nheap = heap:KIND\ncache = heap:KIND\n"
    )
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.usefixtures("plugged")
def test_a_kind_that_a_package_adds_is_accepted_with_its_options(tmp_path: Path):
    """
    An entry point adds the kind; the check imports nothing from the package.
    """
    sink = read(tmp_path, "heap", "options = { height = 3, of = [1, 2] }")

    assert ("heap", {"height": 3, "of": [1, 2]}) == (sink.kind, sink.options)


@pytest.mark.usefixtures("plugged")
def test_a_package_does_not_replace_a_built_in_kind(tmp_path: Path):
    """
    A kind with the name of a built-in kind is neither listed nor used.
    """
    assert installed_kinds() == ("heap",)
    assert read(tmp_path, "cache", url="redis://localhost").kind is SinkKind.CACHE


@pytest.mark.usefixtures("plugged")
def test_the_error_for_an_unknown_kind_lists_those_of_packages(tmp_path: Path):
    """
    The error suggests the nearest of all kinds.
    """
    with pytest.raises(ConfigurationError, match="'heap'; did you mean 'heap'"):
        read(tmp_path, "heep")


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        ("webhook", "", "name at least one secret"),
        ("webhook", 'webhook = { secrets = ["whsec_short"] }', "must be whsec_"),
        (
            "webhook",
            HOOK.replace("[", f'["{SECRET}", "{SECRET}", '),
            "2 or fewer elements",
        ),
        ("webhook", HOOK + '\nfolder = "here"', "folder: a warehouse needs one"),
        ("webhook", HOOK + "\noptions = { a = 1 }", "options: a sink of the kind web"),
        ("cache", HOOK, "webhook: a sink of the kind cache has no such section"),
    ],
)
def test_a_kind_has_exactly_its_own_sections(tmp_path: Path, kind, more, message):
    """
    Superfluous and missing sections of a kind are reported.
    """
    with pytest.raises(ConfigurationError, match=message) as caught:
        read(tmp_path, kind, more)

    assert SECRET not in str(caught.value)


def test_a_webhook_has_an_http_address(tmp_path: Path):
    """
    Any other address is a mistake that is reported before anything runs.
    """
    with pytest.raises(ConfigurationError, match="must begin with http:// or https://"):
        read(tmp_path, "webhook", HOOK, url="redis://localhost")


@pytest.mark.parametrize(
    ("topic", "route"),
    [("outbox.event.order", 'kind = "event_log"'), ("towpath.shop.orders", "")],
)
def test_webhooks_report_rows_and_events(tmp_path: Path, topic: str, route: str):
    """
    A webhook accepts routes of tables and of event logs.
    """
    path = tmp_path / "towpath.toml"
    text = FILE.format(kind="webhook", url="http://x", more=HOOK, route=route)
    path.write_text(text.replace("towpath.shop.orders", topic), encoding="utf-8")

    assert (SECRET,) == load(path, {}).sink_named("orders").webhook.secrets


def test_a_webhooks_secrets_are_masked(tmp_path: Path):
    """
    A printed configuration does not contain the secrets.
    """
    shown = masked(read(tmp_path, "webhook", HOOK).model_dump(mode="json"))

    assert (False, True) == (SECRET in str(shown), SECRET in HOOK)
