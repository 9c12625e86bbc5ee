"""Any mapping of known properties is converted, and the result can be loaded."""

import re
import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from towpath.deploy.debezium.connector import ROUTER_TYPE, Connector, split
from towpath.deploy.debezium.conversion import convert, shown_name, toml_text
from towpath.deploy.debezium.properties import PROPERTIES
from towpath.deploy.debezium.router import ROUTER
from towpath.settings import read

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORDS = st.sampled_from(
    [
        *("true", "false", "none", "avro", "0", "-1", "250", "10000", "99999999999"),
        *("s.a", "s.a,s.b", r"s\.(a|b)", "s.*", "(", "^i", "s.a:id", "s.a:id;s.b:x,y"),
        *("a:header", "a:header:b,c:envelope", "a:nowhere", "$1", "${a}", "(?<a>.*)"),
        *("org.apache.kafka.connect.json.JsonConverter", "hex:00", "hex:zz", "o,p"),
        *("outbox", "s.outbox", "c,u", "SHA-256", "verify-full", "a.b.c", "{x}"),
    ]
)
VALUES = st.one_of(WORDS, TEXT)
PARTS = st.sampled_from(["SHA-256", "7", "0", "x.y", "a"])
NAMES = [name for each in PROPERTIES for name in (each.name, *each.older)]
OPTIONS = [f"transforms.o.{each.name}" for each in ROUTER if each.name != "type"]


@st.composite
def connectors(draw: st.DrawFn) -> Connector:
    """Draw a connector whose known properties have any values; some have a router."""
    names = draw(st.lists(st.sampled_from([*NAMES, *OPTIONS]), unique=True, max_size=8))
    filled = [re.sub(r"\*", lambda _: draw(PARTS), name) for name in names]
    properties = {name: draw(VALUES) for name in filled}
    if draw(st.booleans()):
        properties |= {"transforms": "o", "transforms.o.type": ROUTER_TYPE}
    catalog = draw(st.sampled_from([None, {}, {"s.a": ("id",), "s.outbox": ("x",)}]))
    return Connector(properties, catalog, includes_secrets=draw(st.booleans()))


@given(connectors())
def test_any_debezium_connector_converts_to_a_file_that_loads(
    connector: Connector,
) -> None:
    """
    For any values, no error is raised, no property is left out, and the file is loaded.
    """
    conversion = convert(connector)
    named = [each.name for each in conversion.findings if not each.is_implied]
    assert list(map(shown_name, connector.properties)) == named
    document = tomllib.loads(toml_text(conversion.document))
    assert document == conversion.document

    assert read(document, {}, Path("/")).relay.preset == "debezium"


@given(st.lists(TEXT))
def test_debezium_lists_are_split_at_unescaped_commas(parts: list[str]) -> None:
    """
    A comma after a backslash does not separate entries.
    """
    clean = [p.replace("\\", "").replace("\0", "").strip() for p in parts]
    wanted = tuple(part for part in clean if part)
    text = ",".join(part.replace(",", "\\,") for part in wanted)

    assert wanted == split(text)
