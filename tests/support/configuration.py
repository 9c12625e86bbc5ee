"""The configuration of a relay that a test runs, without a template."""

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
    Write a configuration whose prefix and slot have one name.

    Args:
        dsn: Of the source.
        kafka: Its bootstrap servers.
        prefix: Of topics, and the slot's name.
        tables: The captured tables.
        lines: Further lines of ``source``, ``kafka`` and ``topics``; the address of a
            ``registry``, by default one where no server is; the text below
            ``[relay]``: its keys, then whole sections.
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


# An address that each kind of sink may have; no server is there.
ADDRESSES = {
    "cache": "redis://localhost",
    "postgres": "host=localhost dbname=models",
    "search": "http://localhost",
    "warehouse": "postgresql://localhost/lake",
    "webhook": "https://localhost/hook",
}


def mistakes_of(document: Mapping[str, object]) -> tuple[str, ...]:
    """List the mistakes of a configuration that is a document of TOML."""
    try:
        read(document, {}, Path("/"))
    except ConfigurationError as error:
        return tuple(error.mistakes)
    return ()
