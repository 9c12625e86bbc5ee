"""
The load's own options: one table for the parser, the checks and the documentation.

Each option has a flag on Locust's command line, an environment variable and, where that
makes sense, a field on Locust's web page.
"""

import argparse
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.samples import LOST_AFTER_S

GROUP: Final = "Towpath options"
OWN: Final = "own"
ANY: Final = "any"
NO_REPORT: Final = "none"
NO_CHECK: Final = "none"

# Longer than a busy shop usually takes to respond, but short enough to end a run soon.
STOP_TIMEOUT_S: Final = 10.0

WEB: Final = ("http", "https")
_REDIS: Final = ("redis", "rediss", "unix")
POSTGRES: Final = ("postgresql", "postgres")


class Option(NamedTuple):
    """
    One option.

    Attributes:
        name: The name on the command line, after ``--load-``.
        default: The default value, whose type is the option's.
        meaning: The help text.
        check: Returns why a value is wrong, or None.
        is_on_page: Whether Locust's page has a field for it.
        is_secret: Whether the page hides its value.
        choices: All allowed values.
    """

    name: str
    default: str | float | int
    meaning: str
    check: Callable[[Any], str | None] = lambda _: None
    is_on_page: bool = True
    is_secret: bool = False
    choices: tuple[str, ...] | None = None

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"--load-{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"TOWPATH_LOAD_{self.name.upper().replace('-', '_')}"

    @property
    def dest(self) -> str:
        """The attribute of the parsed options."""
        return f"load_{self.name.replace('-', '_')}"


def _not_negative(value: float) -> str | None:
    is_valid = math.isfinite(value) and value >= 0
    return None if is_valid else "must be 0 or more"


def _positive(value: float) -> str | None:
    return None if math.isfinite(value) and value > 0 else "must be more than 0"


def _share(value: float) -> str | None:
    return None if 0 <= value <= 1 else "must be between 0 and 1"


def _address(*schemes: str) -> Callable[[str], str | None]:
    def check(value: str) -> str | None:
        if not value:
            return None
        address = split_address(value)
        is_valid = address is not None and address.scheme in schemes
        if address is not None and is_valid and (address.hostname or address.path):
            return None
        forms = " or ".join(f"{scheme}://..." for scheme in schemes)
        return f"must be an address such as {forms}"

    return check


def _database(value: str) -> str | None:
    reason = None if value == NO_CHECK else _address(*POSTGRES)(value)
    return f"{reason}, or {NO_CHECK}" if reason else None


def _pattern(value: str) -> str | None:
    return None if "{}" in value else "must contain {}, which stands for the order's id"


def _properties(value: str) -> str | None:
    try:
        properties(value)
    except ValueError:
        return "must be name=value pairs separated by commas"
    return None


OPTIONS: Final = (
    Option(
        "rate",
        0.0,
        "Open loop: total arrivals per second over all processes, however slow the "
        "shop is. 0: each user waits for its responses (closed loop).",
        _not_negative,
    ),
    Option(
        "shape",
        "",
        "Open loop: the rate over time, as factors of --load-rate: ramp, spike, soak, "
        "black_friday or a TOML file. The run ends at the last point of the shape. "
        "Empty: a steady rate.",
    ),
    Option(
        "max-outstanding",
        500,
        "Open loop: the maximum number of concurrent arrivals per process; any more "
        "are counted as failed.",
        _positive,
    ),
    Option(
        "think",
        1.0,
        "Closed loop: mean seconds that a user waits between two visits.",
        _not_negative,
    ),
    Option(
        "return-share",
        0.2,
        "Share of users (closed loop) or arrivals (open loop) that come back to an "
        "order that was left open.",
        _share,
    ),
    Option(
        "return-to",
        OWN,
        "Come back to orders that this load left open (own), or to any order of the "
        "shop (any).",
        choices=(OWN, ANY),
    ),
    Option(
        "watch-share",
        0.1,
        "Share of paid and cancelled orders that their customers poll until they are "
        "settled; some of those that complete are then returned.",
        _share,
    ),
    Option(
        "watch-for",
        60.0,
        "Seconds after which a customer stops polling an order.",
        _positive,
    ),
    Option(
        "retries",
        0,
        "How many times a customer retries a request that got no response or a 5xx; "
        "a checkout keeps its Idempotency-Key. Each attempt is counted.",
        _not_negative,
    ),
    Option(
        "customers",
        20,
        "Open loop: customers that each process registers before its first order.",
        _positive,
    ),
    Option(
        "customers-file",
        "",
        "File with ids of existing customers, one per line; the load registers none.",
        is_on_page=False,
    ),
    Option(
        "lag-interval",
        0.25,
        "Seconds between two sampled orders, whose lag in the sinks is measured.",
        _positive,
    ),
    Option(
        "lag-after",
        0.0,
        "Seconds of load before the first sampled order.",
        _not_negative,
    ),
    Option(
        "lag-for",
        0.0,
        "Seconds for which sampled orders are placed; 0: until the load ends.",
        _not_negative,
    ),
    Option(
        "lag-lost-after",
        LOST_AFTER_S,
        "Seconds after which an order that a sink does not show counts as lost.",
        _positive,
    ),
    Option(
        "cache-url",
        "",
        "URL of the cache's Redis, redis://host:port/db; empty: the cache is not "
        "sampled.",
        _address(*_REDIS),
        is_secret=True,
    ),
    Option(
        "cache-key",
        "towpath:orders:{}",
        "The key of an order's hash in the cache; {} stands for its id.",
        _pattern,
    ),
    Option(
        "search-url",
        "",
        "URL of the search sink's OpenSearch, http://host:port; empty: the search "
        "index is not sampled.",
        _address(*WEB),
        is_secret=True,
    ),
    Option("search-index", "orders", "The index or alias of orders in OpenSearch."),
    Option(
        "warehouse-url",
        "",
        "URL of the warehouse's Iceberg catalog: http://host:port of a REST catalog, "
        "or postgresql://user@host:port/database; empty: the warehouse is not sampled.",
        _address(*WEB, *POSTGRES),
        is_secret=True,
    ),
    Option("warehouse-table", "shop.orders", "The warehouse's table of orders."),
    Option("warehouse-catalog", "lake", "The name of the warehouse's catalog."),
    Option(
        "warehouse-properties",
        "",
        "Further properties for pyiceberg, such as s3.endpoint: name=value,name=value.",
        _properties,
        is_secret=True,
    ),
    Option(
        "dsn",
        "",
        "The shop's database, postgresql://...: after the run, money, stock and "
        "parcels are checked there and in the sampled sinks. none: no check; empty: "
        "no check, and the process exits with 1.",
        _database,
        is_secret=True,
    ),
    Option(
        "settle-for",
        120.0,
        "Seconds that the check of --load-dsn waits for the last orders to be settled, "
        "and then for each sink to show them.",
        _positive,
    ),
    Option(
        "report",
        "",
        "Folder for the report of a run; by default a headless run writes "
        "load-report-TIME; none: no report.",
        is_on_page=False,
    ),
    Option(
        "progress",
        "",
        "File that is replaced once a second with the counts of the run, as JSON.",
        is_on_page=False,
    ),
)


def add_options(parser: argparse.ArgumentParser, **_: object) -> None:
    """Add the options to Locust's parser; users get ``STOP_TIMEOUT_S`` to finish."""
    group = parser.add_argument_group(GROUP)
    for option in OPTIONS:
        arguments: dict[str, Any] = {
            "default": option.default,
            "dest": option.dest,
            "env_var": option.variable,
            "help": option.meaning,
            "type": _parsed(option),
        }
        if option.choices:
            arguments["choices"] = option.choices
        else:
            arguments["metavar"] = f"<{_KINDS[type(option.default)]}>"
        action = group.add_argument(option.flag, **arguments)
        # ``add_argument`` of a group has no parameters for these attributes, which
        # Locust's page reads.
        vars(action).update(
            include_in_web_ui=option.is_on_page,
            is_secret=option.is_secret,
            is_required=False,
            is_multiple=False,
        )
    parser.set_defaults(stop_timeout=STOP_TIMEOUT_S)


_KINDS: Final = {str: "text", float: "number", int: "whole number"}


def _parsed(option: Option) -> Callable[[str], str | float | int]:
    kind = type(option.default)

    def parse(text: str) -> str | float | int:
        try:
            value = kind(text)
        except ValueError as error:
            message = f"{text!r} is not a valid {_KINDS[kind]}"
            raise argparse.ArgumentTypeError(message) from error
        if reason := option.check(value):
            message = f"{text!r} {reason}"
            raise argparse.ArgumentTypeError(message)
        return value

    return parse


def checked(option: Option, text: str) -> str | float | int:
    """
    Parse the value of an option from Locust's page.

    Raises:
        LoadOptionError: The value is invalid.
    """
    try:
        value = _parsed(option)(text)
    except argparse.ArgumentTypeError as error:
        message = f"{option.flag}: {error}"
        raise LoadOptionError(message) from error
    if option.choices and value not in option.choices:
        message = f"{option.flag}: {text!r} is not one of {', '.join(option.choices)}"
        raise LoadOptionError(message)
    return value


def properties(text: str) -> dict[str, str]:
    """
    Parse ``name=value,name=value``.

    Raises:
        ValueError: The text has a different form.
    """
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    if not all(name.strip() and middle for name, middle, _ in pairs):
        raise ValueError(text)
    return {name.strip(): value.strip() for name, _, value in pairs}


def split_address(url: str) -> SplitResult | None:
    """Split an address; return None if it is malformed."""
    try:
        address = urlsplit(url)
        _ = address.port
    except ValueError:
        return None
    return address


def is_replaceable(file: Path) -> bool:
    """Return whether a file can be written next to this one and then replace it."""
    try:
        is_folder = file.is_dir() or new_file_of(file).is_dir()
    except OSError:
        # A name that is too long, or a folder that may not be searched.
        return False
    return not is_folder and is_writable([file.parent])


def new_file_of(file: Path) -> Path:
    """Return the file that is written first, and then replaces this one."""
    return file.with_name(f"{file.name}.new")


def is_writable(folders: Iterable[Path]) -> bool:
    """Return whether the first of these paths that exists is a writable folder."""
    try:
        found = next((folder for folder in folders if folder.exists()), None)
    except OSError:
        # The path is too long, or a folder in it may not be searched.
        return False
    return found is not None and found.is_dir() and os.access(found, os.W_OK)
