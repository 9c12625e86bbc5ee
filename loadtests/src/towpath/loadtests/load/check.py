"""
The check at the end of a run: whether the shop's data is consistent in every store.

It runs as a process next to Locust's: ``python -m towpath.loadtests.load.check``. The
first line of its input names the stores, and the process answers that it is ready.
After the second line, it waits until the last orders are settled, and then until each
sink shows the same orders as the database. Then it writes the findings of each store.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import psycopg
from pyiceberg.catalog import load_catalog

from towpath.loadtests.errors import LoadOptionError, ShopDatabaseError
from towpath.loadtests.load import invariants
from towpath.loadtests.load.invariants import StoreContents
from towpath.schemas.clock import Clock, Deadline, SystemClock

SOURCE: Final = "database"
_POLL_INTERVAL_S: Final = 1.0
# The keys of all tables begin with the prefix of the orders' keys.
_ORDERS_KEY: Final = ":orders:{}"
# The warehouse's other tables must have the same names as in the source.
_ORDERS_TABLE: Final = "shop.orders"

_FIRST_ORDER: Final = "select coalesce(max(id), 0) + 1 from shop.orders"
_UNSETTLED: Final = "select count(*) from shop.unsettled_orders"

Read = Callable[[], StoreContents]


def first_order(dsn: str) -> int:
    """
    Return the lowest number that an order of the run can have.

    Raises:
        ShopDatabaseError: The database cannot be read, or lacks the shop's tables.
    """
    return _number(dsn, _FIRST_ORDER)


def _number(dsn: str, query: str) -> int:
    try:
        with psycopg.connect(dsn) as connection:
            row = connection.execute(query.encode()).fetchone()
    except psycopg.Error as error:
        reason = str(error).strip()
        message = f"--load-dsn: the shop's database cannot be read: {reason}"
        raise ShopDatabaseError(message) from error
    return int(row[0]) if row else 0


def readers(dsn: str, targets: Mapping[str, Mapping[str, Any]]) -> dict[str, Read]:
    """
    Return a reader for each store: the database and the sampler's targets.

    Raises:
        LoadOptionError: An option names a cache key or a table that the check cannot
            use.
    """
    found: dict[str, Read] = {SOURCE: partial(invariants.read_source, dsn)}
    if cache := targets.get("cache"):
        key_prefix = _key_prefix(cache["key"])
        found["cache"] = partial(invariants.read_cache, cache["url"], key_prefix)
    if search := targets.get("search"):
        url, index = search["url"], search["index"]
        found["search"] = partial(invariants.read_search, url, index)
    if warehouse := targets.get("warehouse"):
        if warehouse["table"] != _ORDERS_TABLE:
            message = f"--load-warehouse-table must be {_ORDERS_TABLE} for the check"
            raise LoadOptionError(message)
        found["warehouse"] = partial(_read_warehouse, warehouse["catalog"])
    return found


def _key_prefix(key: str) -> str:
    if not key.endswith(_ORDERS_KEY):
        message = f"--load-cache-key must end with {_ORDERS_KEY} for the check"
        raise LoadOptionError(message)
    return key.removesuffix(_ORDERS_KEY)


def _read_warehouse(arguments: Mapping[str, str]) -> StoreContents:
    more = {name: text for name, text in arguments.items() if name != "name"}
    return invariants.read_warehouse(load_catalog(arguments["name"], **more))


def check_stores(
    stores: Mapping[str, Read], first: int, clock: Clock, within_s: float
) -> Iterator[tuple[str, list[str]]]:
    """
    Yield each store with a sentence for each rule that it violates.

    Args:
        stores: The reader of each store, the database first.
        first: The first order of the run.
        clock: Measures the wait for each sink.
        within_s: How long each sink may take to show the same orders as the database.
    """
    source: StoreContents | None = None
    for name, read in stores.items():
        deadline = Deadline(clock, within_s)
        while True:
            try:
                contents = read()
            except Exception as error:  # noqa: BLE001 - from any of the drivers
                found = [f"could not be read: {error}"]
            else:
                found = invariants.findings(contents, first)
                if name == SOURCE:
                    source = contents
                elif source is not None:
                    found += _differences(source, contents)
            if not found or name == SOURCE or deadline.passed():
                break
            clock.wait(_POLL_INTERVAL_S)
        yield name, found


def _differences(source: StoreContents, sink: StoreContents) -> Iterator[str]:
    wrong = sorted(n for n, _ in source.orders.items() ^ sink.orders.items())
    if wrong:
        count = len(set(wrong))
        differ = "1 order differs" if count == 1 else f"{count:,} orders differ"
        yield f"{differ} from the database: the first is order {wrong[0]}"


def wait_until_settled(dsn: str, clock: Clock, within_s: float) -> None:
    """
    Wait until every order is settled, or the time is up.

    Raises:
        ShopDatabaseError: The database cannot be read.
    """
    deadline = Deadline(clock, within_s)
    while _number(dsn, _UNSETTLED) and not deadline.passed():
        clock.wait(_POLL_INTERVAL_S)


def main() -> None:
    """Check the stores that the first input line names, once the second line comes."""
    clock = SystemClock()
    config = json.loads(sys.stdin.readline())
    dsn, within_s = config["dsn"], config["within_s"]
    try:
        stores = readers(dsn, config["targets"])
        first = first_order(dsn)
        _write({"ready": True})
        if not sys.stdin.readline():
            return
        wait_until_settled(dsn, clock, within_s)
        _write(dict(check_stores(stores, first, clock, within_s)))
    except ShopDatabaseError as error:
        _write({"error": str(error)})
    except LoadOptionError as error:
        _write({"error": str(error), "is_option": True})


def _write(document: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
