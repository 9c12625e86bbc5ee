"""The configuration of a relay that a test runs, and addresses of sinks."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from towpath.schemas.failure import ConfigurationError
from towpath.settings import read

NO_REGISTRY = "http://127.0.0.1:1"


def configuration(
    dsn: str, kafka: str, prefix: str, tables: Sequence[str], /, **lines: str
) -> str:
    """
    Return a configuration whose prefix and slot share one name.

    Args:
        dsn: The DSN of the source.
        kafka: Kafka's bootstrap servers.
        prefix: The prefix of topics, and the slot's name.
        tables: The captured tables.
        lines: ``source`` and ``kafka``: further lines of these sections; ``topics``:
            the lines of that section; ``registry``: its address, by default one
            without a server; ``relay``: the section's keys, then whole sections.
    """
    return f"""
version = 1
[[source]]
dsn = "{dsn}"
prefix = "{prefix}"
slot = "{prefix}"
tables = {json.dumps(list(tables), ensure_ascii=False)}
{lines.get("source", "")}
[kafka]
bootstrap_servers = "{kafka}"
{lines.get("kafka", "")}
[registry]
url = "{lines.get("registry", NO_REGISTRY)}"
[topics]
{lines.get("topics", "partitions = 3")}
[relay]
{lines.get("relay", "")}
"""


# A valid address for each kind of sink; no server listens there.
ADDRESSES = {
    "cache": "redis://localhost",
    "postgres": "host=localhost dbname=models",
    "search": "http://localhost",
    "warehouse": "postgresql://localhost/lake",
    "webhook": "https://localhost/hook",
}


def mistakes_of(document: Mapping[str, object]) -> tuple[str, ...]:
    """List the mistakes in a configuration that is given as a TOML document."""
    try:
        read(document, {}, Path("/"))
    except ConfigurationError as error:
        return tuple(error.mistakes)
    return ()
