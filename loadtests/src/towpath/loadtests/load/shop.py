"""
The load's view of the shop: addresses, customers, baskets and the customers' mix.

Baskets, registrations and choices are repeatable with a seeded ``Random``.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_plus, urlsplit
from uuid import UUID

import requests

from towpath.loadtests.errors import (
    CustomersError,
    LoadOptionError,
    ShopUnavailableError,
)
from towpath.loadtests.load.options import (
    POSTGRES,
    WEB,
    properties,
    split_address,
)

MAX_LINES: Final = 4
MAX_QUANTITY: Final = 5
MAX_PRICE_CENTS: Final = 25_000

# The products that the shop's services seed; every fiftieth of them is scarce.
PRODUCTS: Final = tuple(
    UUID(md5(f"product {number}".encode(), usedforsecurity=False).hexdigest())
    for number in range(1_000)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """
    The behavior of customers, as shares between 0 and 1.

    Attributes:
        paid_at_checkout: Paid orders whose payment method was given at checkout.
        paid_and_cancelled: Cancelled orders that had been paid for.
        paid_late: Orders of this load that are paid for when a customer comes back to
            them; the others are cancelled.
        paid_old: The same share for any order of the shop. It is lower, because
            customers of a demo come back to more of the shop's orders than they place,
            and each paid order runs a whole saga.
        sent_back: Completed orders that are returned when a customer looks at them.
        undeliverable: Orders that the carrier cannot deliver, and that are refunded.
        methods: Payment methods, which are tokens of the simulated provider.
    """

    paid_at_checkout: float
    paid_and_cancelled: float
    paid_late: float
    paid_old: float
    sent_back: float
    undeliverable: float
    methods: Mapping[str, float]

    def method(self, random: Random) -> str:
        """Choose a payment method."""
        (chosen,) = random.choices(tuple(self.methods), tuple(self.methods.values()))
        return chosen


MIX: Final = Mix(
    paid_at_checkout=0.8,
    paid_and_cancelled=0.2,
    paid_late=0.75,
    paid_old=0.1,
    sent_back=0.2,
    undeliverable=0.01,
    methods=MappingProxyType(
        {
            "card": 0.90,
            "card-declined": 0.04,
            "card-timeout": 0.03,
            "card-repeats": 0.028,
            "card-silent": 0.002,
        }
    ),
)


def checkout(
    random: Random, customers: Sequence[str], method: str | None = None
) -> dict[str, object]:
    """Describe an order; with a payment method, it is paid for at checkout."""
    found = basket(random, customers)
    if method is not None:
        found["payment_method"] = method
    if random.random() < MIX.undeliverable:
        found["attributes"] = {"carrier": "undeliverable"}
    return found


def basket(random: Random, customers: Sequence[str]) -> dict[str, object]:
    """Fill a basket of one to four lines for one of the customers."""
    return {
        "customer_id": random.choice(customers),
        "lines": [_line(random) for _ in range(random.randint(1, MAX_LINES))],
    }


def registration(random: Random) -> dict[str, object]:
    """Describe a new customer."""
    number = random.randrange(10**9)
    return {"name": f"Customer {number}", "email": f"load{number}@example.org"}


def _line(random: Random) -> dict[str, object]:
    cents = random.randint(100, MAX_PRICE_CENTS)
    return {
        "product_id": str(random.choice(PRODUCTS)),
        "quantity": random.randint(1, MAX_QUANTITY),
        "unit_price": f"{cents // 100}.{cents % 100:02d}",
    }


_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def session_with(address: str) -> requests.Session:
    """Return a session that uses no proxy for an address of this machine."""
    session = requests.Session()
    session.trust_env = urlsplit(address).hostname not in _LOOPBACK
    return session


def shop_address(host: str | None) -> str:
    """
    Return the shop's address without a trailing slash.

    Raises:
        LoadOptionError: The address is missing or is not an HTTP URL.
    """
    if not host:
        message = "--host is missing: set it to the address of the orders service"
        raise LoadOptionError(message)
    address = split_address(host)
    if address is None or address.scheme not in WEB or not address.hostname:
        message = f"--host: {host!r} is not an address such as http://127.0.0.1:8080"
        raise LoadOptionError(message)
    return host.rstrip("/")


def targets_of(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Return the location of orders in each sink that has an address."""
    found: dict[str, dict[str, object]] = {}
    if options.load_cache_url:
        key = options.load_cache_key
        found["cache"] = {"url": options.load_cache_url, "key": key}
    if options.load_search_url:
        index = options.load_search_index
        found["search"] = {"url": options.load_search_url, "index": index}
    if options.load_warehouse_url:
        table = options.load_warehouse_table
        found["warehouse"] = {"catalog": _catalog(options), "table": table}
    return found


def without_password(url: str) -> str:
    """Return an address without its password, which may also be in its query."""
    address = split_address(url)
    if address is None:
        return url
    parts = address.query.split("&")
    kept = [part for part in parts if not _is_password(part)]
    if address.password is None and kept == parts:
        return url
    netloc = address.netloc
    if address.password is not None:
        netloc = f"{address.username or ''}@{netloc.rpartition('@')[2]}"
    return address._replace(netloc=netloc, query="&".join(kept)).geturl()


def _is_password(part: str) -> bool:
    return unquote_plus(part.partition("=")[0]) in {"password", "sslpassword"}


def _catalog(options: argparse.Namespace) -> dict[str, str]:
    url = options.load_warehouse_url
    scheme = urlsplit(url).scheme
    facts = {"name": options.load_warehouse_catalog, "uri": url, "type": "rest"}
    if scheme in POSTGRES:
        uri = urlsplit(url)._replace(scheme="postgresql+psycopg").geturl()
        facts |= {"type": "sql", "uri": uri, "init_catalog_tables": "false"}
    return facts | properties(options.load_warehouse_properties)


_RESPONSE_TIMEOUT_S: Final = 10.0


def given_customers(options: argparse.Namespace) -> tuple[str, ...]:
    """
    Read the file of customers, if there is one.

    Raises:
        CustomersError: The file cannot be read, is empty, or contains anything but ids.
    """
    path = options.load_customers_file
    if not path:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
        ids = tuple(str(UUID(line)) for line in lines)
    except (OSError, ValueError) as error:
        message = f"--load-customers-file: {path}: {error}"
        raise CustomersError(message) from error
    if not ids:
        message = f"--load-customers-file: {path} contains no customer ids"
        raise CustomersError(message)
    return ids


def check_shop(address: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """
    Check that the orders service responds; return the given customers, or a new one.

    Raises:
        ShopUnavailableError: The shop cannot be used at the address.
        CustomersError: The shop does not have the first given customer.
    """
    with session_with(address) as session:
        if given:
            _find(session, address, given[0])
        return given or (_register(session, address),)


def _find(session: requests.Session, address: str, customer_id: str) -> None:
    response = _request(session, "GET", address, f"/customers/{customer_id}")
    if response.status_code == requests.codes.not_found:
        message = f"{address} has no customer {customer_id}"
        raise CustomersError(message)
    _expect(response, requests.codes.ok)


def _register(session: requests.Session, address: str) -> str:
    body = registration(Random())
    response = _request(session, "POST", address, "/customers", body)
    _expect(response, requests.codes.created)
    return str(response.json()["customer_id"])


def _request(
    session: requests.Session, method: str, address: str, path: str, body: object = None
) -> requests.Response:
    url = f"{address}{path}"
    try:
        return session.request(method, url, json=body, timeout=_RESPONSE_TIMEOUT_S)
    except requests.RequestException as error:
        message = f"the orders service does not answer at {address}"
        raise ShopUnavailableError(message) from error


def _expect(response: requests.Response, status: int) -> None:
    is_json = "json" in response.headers.get("Content-Type", "")
    if response.status_code != status or not is_json:
        sent = f"{response.request.method} {response.request.path_url}"
        message = (
            f"{response.url} does not respond like an orders service: {sent} returned"
            f" {_described(response)}"
        )
        raise ShopUnavailableError(message)


def _described(response: requests.Response) -> str:
    parts: Sequence[str] = response.text.split()
    return f"{response.status_code} {' '.join(parts)[:120]}".strip()
