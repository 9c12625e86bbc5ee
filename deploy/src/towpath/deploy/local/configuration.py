"""
The ``towpath.toml`` that ``towpath up`` writes for the shop on the local stack.

The file begins with a line that names the ports for which it was written. An existing
file belongs to the user: only ports that have changed since then are replaced, on that
line and wherever they follow the loopback address.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from towpath.deploy.local.ports import LOOPBACK
from towpath.deploy.local.stack import NAMES, Addresses
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import UsageError

# The captured tables. Their names are unique, for the sinks that have no schemas.
_TABLES: Final = (
    ("shop", "customers"),
    ("shop", "orders"),
    ("shop", "order_lines"),
    ("inventory", "products"),
    ("payments", "payments"),
    ("shipping", "shipments"),
)
# The search index has the orders as documents, with their lines.
_ORDERS_TABLES: Final = (("shop", "orders"), ("shop", "order_lines"))
_MARK: Final = "# local stack:"
_MARK_LINE: Final = re.compile(rf"^{_MARK}(.*)$", re.MULTILINE)
_ADDRESS: Final = re.compile(rf"(?<![\d.]){re.escape(LOOPBACK)}:(\d+)")

_HEAD: Final = """\
{mark}
# towpath up writes the line above and keeps the ports below up to date; you may change
# the rest.
version = 1
state_folder = "."

[[source]]
dsn = "{source}"
prefix = "towpath"
slot = "towpath"
publication = "towpath"
tables = [{tables}]

[kafka]
bootstrap_servers = "{kafka}"

[registry]
url = "{registry}"

# The documents of orders whose events were deleted: read by a snapshot of outbox.order.
[[relay.outbox.view]]
aggregate_type = "order"
view = "shop.order_documents"
id_form = "integer"
state_types = ["*"]
"""
_SINK: Final = """
[[sink]]
name = "{name}"
kind = "{kind}"
driver = "{driver}"
url = "{url}"
"""
# Documents are expensive: the last batch of a killed driver is written again, and on
# busy cores a larger batch takes a minute. The index handles two calls at a time, so
# calls that fill a sink must be short, or they would delay another sink's changes.
SEARCH_OPTIONS: Final = """\
max_batch_records = 10000
search.call_documents = 500
trigger_ms = 700
"""
# A batch of a few records takes a tenth of a second of CPU time in Spark. Here
# everything shares a machine, so batches start less often than by default.
_CACHE_OPTIONS: Final = "trigger_ms = 300\n"

_ROUTE: Final = """
[[sink.route]]
topic = "{topic}"
name = "{name}"
"""
# Documents of the orders with their lines, built from the events of the orders.
_ORDERS: Final = """
[[sink.route]]
topic = "outbox.event.order"
name = "{name}"
kind = "aggregate"
state_types = [
  "OrderPlaced", "OrderPaymentRequested", "OrderConfirmed", "OrderPaid",
  "OrderCancellationRequested", "OrderCancelled", "OrderCompleted", "OrderReturned",
]

[sink.route.fields]
customer_id = "uuid"
status = "keyword"
currency = "keyword"
total = "numeric"
placed_at = "timestamp with time zone"
updated_at = "timestamp with time zone"
confirmed_at = "timestamp with time zone"
paid_at = "timestamp with time zone"
completed_at = "timestamp with time zone"
cancelled_at = "timestamp with time zone"
returned_at = "timestamp with time zone"
"lines[].product_id" = "uuid"
"lines[].unit_price" = "numeric"
"""


def write_configuration(addresses: Addresses, path: Path) -> None:
    """Write the shop's configuration, or update the ports of an existing file."""
    if path.exists():
        update_ports(addresses, path)
    else:
        _replace(path, for_shop(addresses))


def check_files(paths: Iterable[Path]) -> None:
    """
    Check that files name the ports for which they were written.

    Raises:
        UsageError: A file cannot be read, or has no line with its ports.
    """
    for path in paths:
        text = _read(path)
        if _MARK_LINE.search(text) is None:
            message = f'{path} has no line "{_MARK} postgres=5432 ..." with its ports'
            raise UsageError(message)


def update_ports(addresses: Addresses, path: Path) -> None:
    """
    Update the ports of an existing file; keep its mode, and links to it.

    Raises:
        UsageError: The file cannot be read or replaced.
    """
    path = path.resolve()
    text = _read(path)
    if with_ports(text, addresses) == text:
        return
    from towpath.sinks.state.declare import candidate_of, changing  # noqa: PLC0415 - slow

    with (
        changing(path, SystemClock()),
        candidate_of(path, with_ports(_read(path), addresses)) as candidate,
    ):
        candidate.replace(path)


def for_shop(addresses: Addresses) -> str:
    """Return a configuration with the shop's tables and the three sinks."""
    head = _HEAD.format(
        mark=_mark(addresses),
        source=addresses.dsn("shop"),
        tables=", ".join(f'"{schema}.{table}"' for schema, table in _TABLES),
        kafka=addresses.kafka,
        registry=addresses.registry_url,
    )
    cache = _SINK.format(
        name="cache", kind="cache", driver="serving", url=addresses.redis_url
    )
    search = _SINK.format(
        name="search", kind="search", driver="serving", url=addresses.opensearch_url
    )
    warehouse = _SINK.format(
        name="warehouse",
        kind="warehouse",
        driver="warehouse",
        url=addresses.dsn("warehouse"),
    )
    searched = [table for table in _TABLES if table not in _ORDERS_TABLES]
    events = _ROUTE.format(topic="outbox.event.*", name="shop.events")
    return "".join(
        (
            *(head, cache, _CACHE_OPTIONS, *_routes(_TABLES)),
            *(search, SEARCH_OPTIONS, *_routes(searched)),
            order_documents("orders"),
            *(
                warehouse,
                'folder = "warehouse"\ntrigger_ms = 6000\n',
                *_routes(_TABLES, in_schemas=True),
            ),
            *(events, 'kind = "event_log"\n'),
        )
    )


def order_documents(index: str) -> str:
    """Return the route that writes the orders' documents to an index."""
    return _ORDERS.format(name=index)


def with_ports(text: str, addresses: Addresses) -> str:
    """Return the text with changed ports replaced by the current ones."""
    marked = _MARK_LINE.search(text)
    if marked is None:
        return text
    pairs = (pair.partition("=") for pair in marked.group(1).split())
    current = _ports(addresses)
    moved = {port: str(current[name]) for name, _, port in pairs if name in current}
    text = _ADDRESS.sub(lambda m: f"{LOOPBACK}:{moved.get(m[1], m[1])}", text)
    return _MARK_LINE.sub(_mark(addresses), text, count=1)


def _read(path: Path) -> str:
    """Return the text of a file, or raise a usage error."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}"
        raise UsageError(message) from error


def _replace(path: Path, text: str) -> None:
    """Write a file atomically."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)


def _routes(
    tables: Iterable[tuple[str, str]], *, in_schemas: bool = False
) -> list[str]:
    return [
        _ROUTE.format(
            topic=f"towpath.{schema}.{table}",
            name=f"{schema}.{table}" if in_schemas else table,
        )
        for schema, table in tables
    ]


def _mark(addresses: Addresses) -> str:
    ports = " ".join(f"{name}={port}" for name, port in _ports(addresses).items())
    return f"{_MARK} {ports}"


def _ports(addresses: Addresses) -> dict[str, int]:
    return {name: getattr(addresses, f"{name}_port") for name in NAMES}
