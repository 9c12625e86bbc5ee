"""``towpath config check | show | from-debezium``."""

import json as json_text
import os
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

from cyclopts import App, Parameter

from towpath.cli.options import ConfigOption, JsonOption, config_file, reading
from towpath.deploy.debezium.connector import Connector, read_properties
from towpath.deploy.debezium.conversion import Conversion, convert, toml_text
from towpath.deploy.debezium.rules import PropertyStatus
from towpath.schemas.failure import UnavailableError, UsageError
from towpath.schemas.table_name import TableName
from towpath.settings import Settings, Sink, load
from towpath.settings.secrets import masked
from towpath.settings.section import WRITTEN
from towpath.settings.sink import is_built_in

app = App(
    name="config",
    help="Check or show the configuration, or convert one from a Debezium connector.",
)


@app.command
def check(*, config: ConfigOption = None) -> int:
    """
    Check the configuration.

    All mistakes are listed together, each with the nearest valid name. No server is
    contacted: towpath doctor does that. towpath config show prints the effective
    values. Exit 2 if there are mistakes.

    Args:
        config: Configuration file.
    """
    path = config_file(config)
    _check_other_packages(path)
    from towpath.sinks.cli.sink import tables_by_expression  # noqa: PLC0415 - keeps --help fast

    settings = load(path, os.environ)  # noqa: TID251 - a root
    _check_client(settings)
    unchecked = [
        topic
        for sink in settings.sink
        for topic in tables_by_expression(settings, sink)
    ]
    topics = ", ".join(unchecked)
    hint = (
        f"; towpath sink check reports whether {topics} have tables" if topics else ""
    )
    print(f"{path}: no mistakes{hint}")
    return 0


@app.command
def show(
    *,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """
    Print the effective configuration, every key with its value, with masked secrets.

    Environment variables override the file (TOWPATH_RELAY__OUTBOX__TOPIC overrides
    relay.outbox.topic; a variable that ends in _FILE names a file with the value). A
    key that is not set is shown with its default; a key without a value is left out.

    Args:
        json: Print one JSON document instead of TOML.
        config: Configuration file.
    """
    path = config_file(config)
    effective = _effective(path)
    head = f"{path}, with the environment and all defaults"
    print(json_text.dumps(effective, indent=1) if json else toml_text(effective, head))
    return 0


@app.command(name="from-debezium")
def from_debezium(  # noqa: PLR0913 - the command's options
    connector: Path,
    /,
    *,
    out: Path | None = None,
    dsn: str | None = None,
    kafka: str = "",
    registry: str = "",
    include_secrets: Annotated[bool, Parameter(negative="")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """
    Convert a Debezium Postgres connector to a towpath.toml, with a report.

    Each property of the connector and of its outbox event router has a line in the
    report: taken (with the key and its value), same by default, not needed, not
    supported (with what to do instead) or unknown. Topics, keys and values remain as
    they are for the connector's consumers (relay.preset = "debezium").

    The file goes to standard output and the report to standard error; with --out the
    report goes to standard output. Nothing is started and nothing is changed.

    Args:
        connector: A file with the connector's JSON in Kafka Connect's form, with or
            without the outer keys name and config.
        out: The file to write, which must not exist yet; if it includes passwords, only
            its owner can read it.
        dsn: Look up in this database which tables a regular expression matches.
        kafka: Kafka's address, host:port, which the connector does not contain.
        registry: The schema registry's address.
        include_secrets: Write passwords to the file instead of leaving them out.
        json: Print one JSON document with the keys toml, properties and to_do.
    """
    with reading(connector):
        document = connector.read_text(encoding="utf-8")
    conversion = convert(
        Connector(
            read_properties(document),
            catalog=None if dsn is None else read_catalog(dsn),
            includes_secrets=include_secrets,
            brokers=kafka,
            registry=registry,
        )
    )
    text = toml_text(conversion.document, f"From {connector.name}, by towpath config.")
    if out is not None:
        _write(out, text, mode=0o600 if include_secrets else 0o666)
    if json:
        print(json_text.dumps(_as_json(conversion, text), indent=1, ensure_ascii=False))
        return 0
    if out is None:
        print(text)
    _report(conversion, sys.stderr if out is None else sys.stdout)
    return 0


def _effective(path: Path) -> dict[str, Any]:
    settings = load(path, os.environ)  # noqa: TID251 - a root
    dump = settings.model_dump(mode="json", exclude_none=True, context=WRITTEN)
    shown = masked(dump)
    return shown if isinstance(shown, dict) else {}


def _check_client(settings: Settings) -> None:
    """
    Check [kafka.client] against the client library; no broker is contacted.

    Raises:
        ConfigurationError: The library does not have an option, or refuses its value.
    """
    if settings.kafka.client:
        from towpath.sinks.kafka import client  # noqa: PLC0415 - seldom needed

        client.admin(settings.kafka)


def _check_other_packages(path: Path) -> None:
    """Check sinks whose kind or transforms come from another package."""
    sinks = load(path, os.environ).sink  # noqa: TID251 - a root
    foreign = [sink for sink in sinks if not is_built_in(sink.kind) or _calls(sink)]
    if foreign:
        from towpath.sinks.kinds import check_kinds  # noqa: PLC0415 - seldom needed

        check_kinds(foreign)


def _calls(sink: Sink) -> bool:
    """Return whether a transform of a sink is a Python function."""
    entries = (entry for route in sink.route for entry in route.transforms)
    return any(entry.python is not None for entry in entries)


def _write(path: Path, text: str, *, mode: int) -> None:
    opened, is_ours = partial(os.open, mode=mode), False
    try:
        with open(path, "x", encoding="utf-8", opener=opened) as file:
            is_ours = True
            file.write(text)
    except OSError as error:
        if is_ours:
            # The next run would refuse to overwrite the incomplete file.
            path.unlink(missing_ok=True)
        message = f"{path}: {error.strerror or 'cannot be written'}"
        raise UsageError(message) from error


def _as_json(conversion: Conversion, text: str) -> dict[str, object]:
    properties = [
        {
            "property": each.name,
            "value": each.value,
            "verdict": each.status.value,
            "text": each.text,
            "implied": each.is_implied,
        }
        for each in conversion.findings
    ]
    return {"toml": text, "properties": properties, "to_do": list(conversion.to_do)}


def _report(conversion: Conversion, file: TextIO) -> None:
    """Print one line per property, so that a search finds the whole entry."""
    for each in conversion.findings:
        name = f"{each.name} (Debezium's default)" if each.is_implied else each.name
        print(f"{name}: {each.text}", file=file)
    counts = Counter(each.status for each in conversion.findings)
    summary = (
        f"{counts[verdict]} {verdict}" for verdict in PropertyStatus if counts[verdict]
    )
    print(f"\n{', '.join(summary)}\n", file=file)
    for line in conversion.to_do:
        print(f"- {line}", file=file)


_TABLE_COLUMNS: Final = """\
select n.nspname, c.relname, array_agg(a.attname::text order by a.attnum)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
join pg_catalog.pg_attribute a
    on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind in ('r', 'p') and not c.relispartition
    and n.nspname not in ('information_schema', 'pg_catalog', 'pg_toast')
    and n.nspname not like 'pg\\_temp%'
group by 1, 2
order by 1, 2
"""


def read_catalog(dsn: str) -> Mapping[str, tuple[str, ...]]:
    """
    Return every table of the database with its columns; partitions are left out.

    Raises:
        UsageError: The connection string cannot be read.
        UnavailableError: The database does not answer.
    """
    import psycopg  # noqa: PLC0415 - seldom needed
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - seldom needed

    from towpath.sinks.postgres import connected  # noqa: PLC0415 - seldom needed

    try:
        conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        message = (
            "--dsn is not postgresql://user@host:port/database, nor pairs such as "
            "host=... dbname=..."
        )
        # Raise without the cause, because its message contains the password.
        raise UsageError(message) from None
    try:
        with connected(dsn) as connection:
            rows = connection.execute(_TABLE_COLUMNS).fetchall()
    except psycopg.Error as error:
        message = f"the database that --dsn names does not answer: {str(error).strip()}"
        raise UnavailableError(message) from error
    return {
        TableName(schema, table).text: tuple(columns) for schema, table, columns in rows
    }
