"""The circumstances of a run, as its report states them."""

from datetime import datetime

import locust
from locust.env import Environment
from locust.runners import MasterRunner

from towpath.loadtests.addresses import without_password
from towpath.loadtests.bench.machine import summary
from towpath.loadtests.options import OPTIONS
from towpath.loadtests.people import options_of, runner_of

_ADDRESSES = ("cache-url", "search-url", "warehouse-url")


def facts_of(
    environment: Environment, began_at: datetime, elapsed_s: float
) -> dict[str, str]:
    """Tell when, against what, with how many users and which options, on what."""
    found = {
        "began": f"{began_at:%Y-%m-%d %H:%M:%S} UTC, and went on for {elapsed_s:.0f} s",
        "shop": without_password(environment.host or ""),
        "load": _load(environment),
        "machine": f"{summary()}, locust {locust.__version__}",
    }
    if options := _set_options(environment):
        found["options"] = options
    return found


def _load(environment: Environment) -> str:
    options, runner = options_of(environment), runner_of(environment)
    rate, users = options.load_rate, runner.target_user_count
    kind = f"open loop, {rate:g} arrivals a second" if rate else "closed loop"
    workers = ""
    if isinstance(runner, MasterRunner):
        workers = f", master and {len(runner.clients)} workers"
    return f"{kind}, {users} users{workers}"


def _set_options(environment: Environment) -> str:
    """List the options that are not as they are by themselves, without secrets."""
    shown = []
    for option in OPTIONS:
        value = getattr(environment.parsed_options, option.dest)
        if value == option.default or option.name in {"report", "progress"}:
            continue
        if option.is_secret:
            is_address = option.name in _ADDRESSES
            value = without_password(value) if is_address else "..."
        shown.append(f"`{option.flag} {value}`")
    return " ".join(shown)
