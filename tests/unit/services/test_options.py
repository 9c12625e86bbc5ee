"""The options of all services, compared with docs/configuration.md."""

import argparse
import re
from typing import NamedTuple

import pytest

from support.pages import DOCS
from towpath.services.inventory.__main__ import INVENTORY
from towpath.services.orders.__main__ import ORDERS
from towpath.services.payments.__main__ import PAYMENTS
from towpath.services.plumbing.service import Service
from towpath.services.shipping.__main__ import SHIPPING
from towpath.services.storefront.__main__ import declare

SERVICES = (ORDERS, INVENTORY, PAYMENTS, SHIPPING, declare({}))
_ROW = re.compile(r"\| `(--[a-z-]+)` \| `?(.*?)`? \| ([a-z ,]+) \| `?(.*?)`? \| .+ \|")


class Documented(NamedTuple):
    """An option of a service as documented on the page."""

    option: str
    variable: str
    default: str


def documented(service: Service) -> list[Documented]:
    """Read the rows of a service from the page."""
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## The services' options\n")
    names = {"all", service.name} | (
        set() if service.migrate is None else {"all but storefront"}
    )
    return [
        Documented(option, variable.replace("<PREFIX>", service.prefix), default)
        for option, variable, whose, default in _ROW.findall(section)
        if not names.isdisjoint(whose.split(", "))
    ]


def default_of(action: argparse.Action) -> str:
    """Format a default as the page does."""
    if action.required:
        return "required"
    names = {"None": "none", "": "empty", "False": "off"}
    is_number = isinstance(action.default, float)
    text = f"{action.default:g}" if is_number else str(action.default)
    return names.get(text, text)


def actions(service: Service, environ: dict[str, str]) -> list[argparse.Action]:
    """Return the options of a service, except --help."""
    found = service.parser(environ)._actions
    return [action for action in found if action.option_strings[:1] not in ([], ["-h"])]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_the_page_has_every_option_of_a_service_with_its_default(service: Service):
    """
    A change to an option or a default requires a change to the page.
    """
    expected = [
        (action.option_strings[0], default_of(action))
        for action in actions(service, {})
    ]

    assert sorted(expected) == sorted(
        (row.option, row.default) for row in documented(service)
    )


@pytest.mark.parametrize("window", ["payment", "confirmation", "delivery"])
def test_an_order_may_wait_for_a_day_but_not_for_a_negative_time(window: str):
    """
    A time of 86,400 seconds is accepted, and one of -1 second is refused.
    """
    option = f"--{window}-seconds"
    args = ["--dsn", "postgresql:///shop", option]
    found = ORDERS.options([*args, "86400"], {})

    assert 86_400 == getattr(found, f"{window}_seconds")
    with pytest.raises(SystemExit) as ended:
        ORDERS.options([*args, "-1"], {})
    assert 2 == ended.value.code


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_each_documented_variable_replaces_the_default(service: Service):
    """
    Only options without a value have no variable.
    """
    rows = [row for row in documented(service) if row.variable != "no variable"]
    given = {row.variable: "7" for row in rows}
    changed = {
        action.option_strings[0]
        for action in actions(service, given)
        if action.default == "7" and not action.required
    }
    flags = {
        action.option_strings[0] for action in actions(service, {}) if action.nargs == 0
    }

    assert len(rows) > 10
    assert {row.option for row in rows} == changed
    assert {row.option for row in documented(service)} == changed | flags
