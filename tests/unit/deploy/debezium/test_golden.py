"""Three realistic connectors: the file and the report that each is converted to."""

import tomllib
from pathlib import Path

import pytest

from towpath.deploy.debezium.connector import Connector, read_properties
from towpath.deploy.debezium.conversion import convert, shown_name, toml_text
from towpath.settings import load

DATA = Path(__file__).parents[3] / "data/debezium"
NAMES = ("inventory", "outbox", "mixed")


@pytest.mark.parametrize("name", NAMES)
def test_a_connector_becomes_the_golden_file(name: str) -> None:
    """
    The written file equals the golden one and can be read back.
    """
    text = (DATA / f"{name}.json").read_text(encoding="utf-8")
    conversion = convert(Connector(read_properties(text)))
    out = toml_text(conversion.document)
    assert tomllib.loads(out) == conversion.document

    assert out == (DATA / f"{name}.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_connector_is_reported_line_by_line(name: str) -> None:
    """
    Each property has its line, in the connector's order; implied ones follow.
    """
    text = (DATA / f"{name}.json").read_text(encoding="utf-8")
    properties = read_properties(text)
    conversion = convert(Connector(properties))
    named = [each.name for each in conversion.findings if not each.is_implied]
    assert list(map(shown_name, properties)) == named
    lines = [f"{each.name}: {each.text}\n" for each in conversion.findings]

    assert "".join(lines) == (DATA / f"{name}.report").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_file_loads(name: str) -> None:
    """
    The converted file is a valid configuration.
    """
    assert load(DATA / f"{name}.toml", {}).relay.preset == "debezium"
