"""
The load's view of the shop: addresses, customers, baskets and due arrivals.

Baskets and registrations are pure, and repeatable with a seeded ``Random``. The
schedule of an open loop is pure too: due times follow from the rate alone, never from
an answer, and a late arrival does not delay later ones.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final
from urllib.parse import urlsplit
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

# A small catalogue, so that products repeat as they do in a shop.
_PRODUCTS: Final = tuple(UUID(int=(0xA11CE << 96) + number) for number in range(500))


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
        "product_id": str(random.choice(_PRODUCTS)),
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
    Return the shop's address without a slash at its end.

    Raises:
        LoadOptionError: The address is missing or is not an HTTP URL.
    """
    if not host:
        message = "--host is missing: the address of the orders service"
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
    """Return an address without its password."""
    address = split_address(url)
    if address is None or address.password is None:
        return url
    place = address.netloc.rpartition("@")[2]
    return address._replace(netloc=f"{address.username or ''}@{place}").geturl()


def _catalog(options: argparse.Namespace) -> dict[str, str]:
    url = options.load_warehouse_url
    scheme = urlsplit(url).scheme
    facts = {"name": options.load_warehouse_catalog, "uri": url, "type": "rest"}
    if scheme in POSTGRES:
        uri = urlsplit(url)._replace(scheme="postgresql+psycopg").geturl()
        facts |= {"type": "sql", "uri": uri, "init_catalog_tables": "false"}
    return facts | properties(options.load_warehouse_properties)


_ANSWER_TIMEOUT_S: Final = 10.0


def given_customers(options: argparse.Namespace) -> tuple[str, ...]:
    """
    Read the file of customers, if there is one.

    Raises:
        CustomersError: It cannot be read, is empty, or contains something else.
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
    Check that the shop takes orders; return the given customers, or a new one.

    Raises:
        ShopUnavailableError: The shop cannot be used at the address.
        CustomersError: The shop does not have the first given customer.
    """
    with session_with(address) as session:
        if given:
            _find(session, address, given[0])
        return given or (_register(session, address),)


def _find(session: requests.Session, address: str, customer_id: str) -> None:
    answer = _request(session, "GET", address, f"/customers/{customer_id}")
    if answer.status_code == requests.codes.not_found:
        message = f"{address} has no customer {customer_id}"
        raise CustomersError(message)
    _expect(answer, requests.codes.ok)


def _register(session: requests.Session, address: str) -> str:
    body = registration(Random())
    answer = _request(session, "POST", address, "/customers", body)
    _expect(answer, requests.codes.created)
    return str(answer.json()["customer_id"])


def _request(
    session: requests.Session, method: str, address: str, path: str, body: object = None
) -> requests.Response:
    url = f"{address}{path}"
    try:
        return session.request(method, url, json=body, timeout=_ANSWER_TIMEOUT_S)
    except requests.RequestException as error:
        message = f"the orders service does not answer at {address}"
        raise ShopUnavailableError(message) from error


def _expect(answer: requests.Response, status: int) -> None:
    is_json = "json" in answer.headers.get("Content-Type", "")
    if answer.status_code != status or not is_json:
        asked = f"{answer.request.method} {answer.request.path_url}"
        message = (
            f"{answer.url} is not an orders service: {asked} gave {_described(answer)}"
        )
        raise ShopUnavailableError(message)


def _described(answer: requests.Response) -> str:
    words: Sequence[str] = answer.text.split()
    return f"{answer.status_code} {' '.join(words)[:120]}".strip()


# A scheduler of greenlets is a few milliseconds late at best.
TOLERATED_S: Final = 0.05


class Schedule:
    """The due times of one stream of arrivals."""

    def __init__(self, first_due_s: float) -> None:
        self._due_s = first_due_s

    def lateness_s(self, now_s: float) -> float:
        """Return how late the current arrival is; 0 within the tolerance."""
        late_s = now_s - self._due_s
        return late_s if late_s > TOLERATED_S else 0.0

    def next_in_s(self, now_s: float, interval_s: float) -> float:
        """Advance to the next arrival; return the seconds until then."""
        self._due_s += interval_s
        return max(0.0, self._due_s - now_s)
