"""
Writes ``logs.md``, the list of all log records, from the calls in the source.

``make docs`` runs this script. Each row has the text of an event, its level, the names
of its fields, and the modules that log it: calls with the same text and level share a
row. A text that comes from a variable is not listed.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

DOCS: Final = Path(__file__).parent
PAGE: Final = DOCS / "logs.md"

# The first word of a record, which is the noun to search for, and its meaning.
NOUNS: Final = {
    "batch": "one micro-batch of a sink",
    "broker": "the Kafka brokers",
    "cache": "the Redis target of a sink",
    "change": "one change of the stream",
    "client": "a message from Kafka's client library",
    "column": "a column of a route",
    "configuration": "`towpath.toml`",
    "console": "the web console",
    "consumer": "the process of a service that consumes other services' events",
    "database": "the source, as a service sees it",
    "dead": "dead letters: records kept with their reason",
    "driver": "the Spark process of sinks",
    "executor": "a process of a Spark cluster that runs the tasks of a driver",
    "gap": "a range of unknown changes, which a snapshot closes",
    "event": "an event, as a consumer with an inbox handles it",
    "heartbeat": "the relay's heartbeat row",
    "index": "the search target of a sink",
    "lineage": "run events for data catalogs (OpenLineage)",
    "load": "the load on a demo or benchmark",
    "kafka": "the connection of a consumer with an inbox",
    "inventory": "the shop's stock",
    "lsn": "a place in the log, for services that read their own writes",
    "metrics": "the port that Prometheus scrapes",
    "order": "an order of the shop",
    "outbox": "rows of the outbox",
    "payment": "a payment, and its operations with the provider",
    "postgres": "the Postgres target of a sink",
    "publication": "the publication in the source",
    "refetch": "rows that a sink requests again from the source",
    "relay": "the relay process",
    "request": "an HTTP request of a service",
    "route": "a route of a sink",
    "schema": "the schema registry",
    "service": "the process of a service",
    "session": "one connection of the relay, from start to end",
    "settings": "settings that changed since the last start",
    "shop": "the demo's shop",
    "signal": "a request to the relay",
    "sink": "one sink of a driver",
    "slot": "the replication slot",
    "snapshot": "a snapshot, and its tables",
    "source": "the source database, as the relay checks it",
    "sweep": "the last step of a snapshot that closes a gap",
    "table": "a captured table",
    "timeline": "the history file of a server that was promoted",
    "topic": "a Kafka topic",
    "traces": "the spans of this process, for OpenTelemetry",
    "uncaught": "an exception that no code expected: a defect",
    "value": "a value of a row",
    "warehouse": "the Iceberg target of a sink",
    "webhook": "the HTTP target of a sink",
}
_LEVELS: Final = {"debug", "info", "warning", "error", "exception", "critical"}
_LOGGERS: Final = {"log", "_log", "logger", "get_logger"}
# Functions that log a caller's text: the argument's index, the level, the fields.
_FORWARDING: Final = {
    "_count": (1, "warning", ("reason",)),
    "log_failure": (1, "warning or error", ("reason",)),
}
_INTRO: Final = """# Log records

Every process writes one record per line: the text of the event, its level, the time,
and facts as fields. A terminal gets text for people, anything else gets JSON
(`--log-format` chooses); the shop's services always write JSON. The text starts with
the noun to search for; the part after a colon is what the process does next.

Records about one sink, in a driver and in a task on an executor, have its name as
`sink`, even if the table does not list the field.

No field contains a row, a payload or a credential. The text of an error (`reason`,
`answer`, `why`) comes from a server or a handler, and may quote a value.

`make docs` generates this page from the source; a test compares the two.
`{...}` stands for a part that is known only at run time.
"""


class LogRecord(NamedTuple):
    """One log record of the source."""

    event: str
    level: str
    fields: tuple[str, ...]
    module: str

    @property
    def noun(self) -> str:
        """The first word of the record's text, in lower case."""
        return self.event.split()[0].rstrip(":").lower()


def log_records(root: Path) -> list[LogRecord]:
    """Return all log records of the workspace members below a checkout's root."""
    found: set[LogRecord] = set()
    for path in root.glob("*/src/towpath/**/*.py"):
        module = path.as_posix().partition("/src/towpath/")[2]
        found.update(records_of(path.read_text(encoding="utf-8"), module))
    return sorted(found)


def records_of(source: str, module: str) -> Iterator[LogRecord]:
    """Yield the log records of one module."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        index, level, fields = _logged(node.func)
        if level and len(node.args) > index:
            names = {keyword.arg for keyword in node.keywords if keyword.arg}
            for event in _texts(node.args[index]):
                yield LogRecord(event, level, tuple(sorted({*fields, *names})), module)


def _logged(function: ast.expr) -> tuple[int, str, tuple[str, ...]]:
    """Return a log call's event index, level and fields; other calls have no level."""
    name = getattr(function, "attr", getattr(function, "id", ""))
    if name in _FORWARDING:
        return _FORWARDING[name]
    if isinstance(function, ast.Name) and function.id == "log":
        return 0, "warning or error", ()
    if name not in _LEVELS or not isinstance(function, ast.Attribute):
        return 0, "", ()
    owner = function.value
    maker = owner.func if isinstance(owner, ast.Call) else owner
    is_logger = ast.unparse(maker).rpartition(".")[2].lower() in _LOGGERS
    return 0, name if is_logger else "", ()


def _texts(event: ast.expr) -> Iterator[str]:
    """Yield the strings that an expression can produce; none for a variable."""
    match event:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(
                part.value if isinstance(part, ast.Constant) else "{...}"
                for part in parts
            )
        case ast.IfExp(body=body, orelse=other):
            yield from _texts(body)
            yield from _texts(other)


def page_of(records: list[LogRecord]) -> str:
    """Return the page: one table for each noun."""
    lines = [_INTRO]
    ordered = sorted(records, key=lambda record: (record.noun, *record))
    for noun, group in groupby(ordered, key=lambda record: record.noun):
        lines += [
            f"## {noun}\n\n{NOUNS.get(noun, '')}\n",
            "| Record | Level | Fields | Module |",
            "|---|---|---|---|",
            *_rows(group),
            "",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def _rows(records: Iterator[LogRecord]) -> Iterator[str]:
    merged: dict[tuple[str, str], list[LogRecord]] = defaultdict(list)
    for record in records:
        merged[record.event, record.level].append(record)
    for (event, level), same in merged.items():
        fields = sorted({f"`{name}`" for record in same for name in record.fields})
        modules = sorted({f"`{record.module}`" for record in same})
        yield f"| {event} | {level} | {', '.join(fields)} | {', '.join(modules)} |"


if __name__ == "__main__":
    PAGE.write_text(page_of(log_records(DOCS.parent)), encoding="utf-8")
