"""Changes of the declared sinks, or a broken file, while the relay is running."""

from pathlib import Path

from towpath.relay.context import DeclaredSinks
from towpath.settings import load

BEFORE = """
version = 1
[[source]]
dsn = "postgresql://127.0.0.1/shop"
tables = ["shop.orders"]
[kafka]
bootstrap_servers = "127.0.0.1:9092"
[registry]
url = "http://127.0.0.1:8081"
"""
NEW = """
[[sink]]
name = "second"
kind = "search"
url = "http://127.0.0.1:9200"
[[sink.route]]
topic = "towpath.shop.orders"
name = "orders_v2"
"""


def declared(config: Path) -> DeclaredSinks:
    """Read the sinks as a relay that starts now does."""
    return DeclaredSinks(config, {}, load(config, {}))


def test_a_sink_declared_later_is_known(tmp_path: Path):
    """
    Each call reads the file's current contents.
    """
    config = tmp_path / "towpath.toml"
    config.write_text(BEFORE)
    sinks = declared(config)
    before = sinks()
    config.write_text(BEFORE + NEW)

    assert (set(), {"second"}) == (before, sinks())


def test_an_invalid_file_keeps_the_previous_sinks(tmp_path: Path):
    """
    A half-written file does not make a declared sink unknown.
    """
    config = tmp_path / "towpath.toml"
    config.write_text(BEFORE + NEW)
    sinks = declared(config)
    config.write_text(BEFORE + NEW + "[[sink")

    assert {"second"} == sinks()
