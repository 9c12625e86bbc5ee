"""Addresses of the shop and of the sinks' targets, as the options give them."""

import argparse
from typing import Final
from urllib.parse import urlsplit

import requests

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.options import POSTGRES, WEB, properties, split_address

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def session_with(address: str) -> requests.Session:
    """Return a session that asks no proxy for an address of this machine."""
    session = requests.Session()
    session.trust_env = urlsplit(address).hostname not in _LOOPBACK
    return session


def shop_address(host: str | None) -> str:
    """
    Return the shop's address without a slash at its end.

    Raises:
        LoadOptionError: There is none, or it is no address of a web server.
    """
    if not host:
        message = "--host is missing: the address of the orders service"
        raise LoadOptionError(message)
    address = split_address(host)
    if address is None or address.scheme not in WEB or not address.hostname:
        message = f"--host: {host!r} is no address such as http://127.0.0.1:8080"
        raise LoadOptionError(message)
    return host.rstrip("/")


def targets_of(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Say where a reader finds an order in each sink that has an address."""
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
    """Return an address that may be shown."""
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
