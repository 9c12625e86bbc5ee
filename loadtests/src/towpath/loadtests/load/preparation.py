"""Checks before a run begins: the shop, its customers, the sinks' targets."""

import argparse
import uuid
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import requests

from towpath.loadtests.errors import CustomersError, ShopUnavailableError
from towpath.loadtests.load.lag import Fire, LagSampling
from towpath.loadtests.load.shop import (
    registration,
    session_with,
    shop_address,
    targets_of,
)
from towpath.schemas.clock import Clock

_ANSWER_TIMEOUT_S: Final = 10.0

# The sampler's orders need not be those of many.
_SAMPLED_CUSTOMERS: Final = 100


class Prepared(NamedTuple):
    """What a run begins with."""

    host: str
    customers: tuple[str, ...]
    sampling: LagSampling | None


def prepare(
    options: argparse.Namespace, host: str | None, fire: Fire, clock: Clock
) -> Prepared:
    """
    Ask the shop and each target once, so that a mistake is told before the load.

    Raises:
        LoadOptionError: The shop's address is none.
        ShopUnavailableError: The shop cannot be used there.
        CustomersError: The customers that were given cannot order.
        TargetUnavailableError: A sink's target cannot be sampled.
    """
    address = shop_address(host)
    given = given_customers(options)
    with session_with(address) as session:
        if given:
            _find(session, address, given[0])
        buyers = given or (_register(session, address),)
    targets = targets_of(options)
    if not targets:
        return Prepared(address, given, None)
    config = {
        "host": address,
        "customers": buyers[:_SAMPLED_CUSTOMERS],
        "interval_s": options.load_lag_interval,
        "after_s": options.load_lag_after,
        "for_s": options.load_lag_for,
        "lost_after_s": options.load_lag_lost_after,
        "targets": targets,
    }
    return Prepared(address, given, LagSampling(config, fire, clock))


def given_customers(options: argparse.Namespace) -> tuple[str, ...]:
    """
    Read the file of customers, if there is one.

    Raises:
        CustomersError: It cannot be read, is empty, or holds something else.
    """
    path = options.load_customers_file
    if not path:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
        ids = tuple(str(uuid.UUID(line)) for line in lines)
    except (OSError, ValueError) as error:
        message = f"--load-customers-file: {path}: {error}"
        raise CustomersError(message) from error
    if not ids:
        message = f"--load-customers-file: {path} holds no customer"
        raise CustomersError(message)
    return ids


def _find(session: requests.Session, address: str, customer_id: str) -> None:
    answer = _ask(session, "GET", address, f"/customers/{customer_id}")
    if answer.status_code == requests.codes.not_found:
        message = f"{address} knows no customer {customer_id}"
        raise CustomersError(message)
    _must(answer, requests.codes.ok)


def _register(session: requests.Session, address: str) -> str:
    body = registration(Random())
    answer = _ask(session, "POST", address, "/customers", body)
    _must(answer, requests.codes.created)
    return str(answer.json()["customer_id"])


def _ask(
    session: requests.Session, method: str, address: str, path: str, body: object = None
) -> requests.Response:
    url = f"{address}{path}"
    try:
        return session.request(method, url, json=body, timeout=_ANSWER_TIMEOUT_S)
    except requests.RequestException as error:
        message = f"the orders service does not answer at {address}"
        raise ShopUnavailableError(message) from error


def _must(answer: requests.Response, status: int) -> None:
    is_json = "json" in answer.headers.get("Content-Type", "")
    if answer.status_code != status or not is_json:
        asked = f"{answer.request.method} {answer.request.path_url}"
        message = (
            f"{answer.url} is no orders service: {asked} gave {_described(answer)}"
        )
        raise ShopUnavailableError(message)


def _described(answer: requests.Response) -> str:
    words: Sequence[str] = answer.text.split()
    return f"{answer.status_code} {' '.join(words)[:120]}".strip()
