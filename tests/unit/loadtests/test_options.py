"""The load's options: the parser, their checks, and the page that documents them."""

from argparse import Namespace
from pathlib import Path

import configargparse
import pytest

from towpath.loadtests.errors import LoadOptionError
from towpath.loadtests.load.options import OPTIONS, add_options, checked
from towpath.loadtests.load.shop import shop_address, targets_of, without_password

DOCUMENT = Path(__file__).parents[3] / "docs" / "load.md"


def parse(*args, **env):
    """Parse a command line as locust's parser does."""
    parser = configargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--stop-timeout", default="0")
    add_options(parser)
    return parser.parse_args(list(args), env_vars=env)


def option_named(name):
    """Find an option."""
    return next(option for option in OPTIONS if option.name == name)


def test_the_documentation_lists_every_option():
    """
    Each has its variable, its default and its meaning, in the parser's order.
    """
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    expected = [
        f"| `{one.flag}` | `{one.variable}` | {_default(one)} | {one.meaning} |"
        for one in OPTIONS
    ]

    assert expected == [line for line in lines if line.startswith("| `--load-")]


def _default(option):
    return f"`{option.default:g}`" if _is_number(option) else _text(option.default)


def _is_number(option):
    return not isinstance(option.default, str)


def _text(default):
    return f"`{default}`" if default else ""


def test_every_option_has_its_variable():
    """
    The command line overrides the environment, which overrides the default.
    """
    parsed = parse(
        *("--load-rate", "20"),
        TOWPATH_LOAD_RATE="10",
        TOWPATH_LOAD_CACHE_URL="redis://c",
    )

    assert (20.0, "redis://c", "own") == (
        parsed.load_rate,
        parsed.load_cache_url,
        parsed.load_return_to,
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("rate", "fast", "'fast' is not a valid number"),
        ("rate", "-1", "must be 0 or more"),
        ("rate", "nan", "must be 0 or more"),
        ("max-outstanding", "0", "must be more than 0"),
        ("max-outstanding", "1.5", "is not a valid whole number"),
        ("return-share", "1.1", "between 0 and 1"),
        ("return-to", "mine", "not one of own, any"),
        ("cache-url", "http://c", "such as redis://"),
        ("cache-key", "orders", "must contain {}"),
        ("search-url", "localhost:9200", "such as http://"),
        ("warehouse-url", "http://[", "such as http://"),
        ("warehouse-properties", "s3.endpoint", "name=value"),
        ("dsn", "mysql://d", "such as postgresql://... or postgres://..., or none"),
    ],
)
def test_an_invalid_value_is_refused_with_its_option(name, text, reason):
    """
    This applies to locust's page and to the command line.
    """
    with pytest.raises(LoadOptionError, match=f"--load-{name}") as refused:
        checked(option_named(name), text)

    assert reason in str(refused.value)


@pytest.mark.parametrize("host", [None, "", "127.0.0.1:8080", "ftp://shop", "http://"])
def test_a_shop_without_an_address_is_refused(host):
    """
    The error names the option, and gives an example.
    """
    with pytest.raises(LoadOptionError, match="--host"):
        shop_address(host)


def test_the_shops_address_has_no_trailing_slash():
    """
    Paths are appended to it.
    """
    assert shop_address("https://shop:8080/") == "https://shop:8080"


def test_only_targets_with_an_address_are_sampled():
    """
    A REST catalog has an http address, a catalog in Postgres a postgresql address.
    """
    none = targets_of(parse())
    rest = targets_of(
        parse(
            *("--load-warehouse-url", "http://catalog:8181"),
            *("--load-warehouse-properties", "s3.endpoint=http://store:9000,a=b=c"),
        )
    )
    full = targets_of(
        parse(
            *("--load-cache-url", "redis://c/0", "--load-search-url", "https://s"),
            *("--load-warehouse-url", "postgresql://u@h:5432/warehouse"),
        )
    )

    assert none == {}
    assert rest["warehouse"]["catalog"] == {
        "name": "lake",
        "uri": "http://catalog:8181",
        "type": "rest",
        "s3.endpoint": "http://store:9000",
        "a": "b=c",
    }
    assert ["cache", "search", "warehouse"] == list(full)
    assert ("towpath:orders:{}", "orders", "sql", "shop.orders") == (
        full["cache"]["key"],
        full["search"]["index"],
        full["warehouse"]["catalog"]["type"],
        full["warehouse"]["table"],
    )


def test_a_report_shows_no_password():
    """
    The rest of an address is kept; a password in the query is removed, too.
    """
    in_query = "postgresql://u@h:1/d?sslmode=require&password=secret&a=b"

    assert "postgresql://u@h:1/d?sslmode=require&a=b" == without_password(in_query)
    assert ("redis://u@h:1/0", "http://h/", "") == tuple(
        map(without_password, ("redis://u:secret@h:1/0", "http://h/", ""))
    )


def test_the_namespace_has_one_attribute_for_each_option():
    """
    Locust passes all of them on to its workers.
    """
    parsed = parse()

    assert isinstance(parsed, Namespace)
    assert {option.dest for option in OPTIONS} <= set(vars(parsed))
