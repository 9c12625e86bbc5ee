"""The circumstances of a run, as its report states them."""

import os
import platform
from datetime import datetime

import locust
import psutil
from locust.env import Environment
from locust.runners import MasterRunner

from towpath.loadtests.addresses import without_password
from towpath.loadtests.options import OPTIONS
from towpath.loadtests.people import options_of, runner_of

_GIB = 1024**3
_ADDRESSES = ("cache-url", "search-url", "warehouse-url")


def facts_of(
    environment: Environment, began_at: datetime, elapsed_s: float
) -> dict[str, str]:
    """Tell when, against what, with how many users and which options, on what."""
    found = {
        "began": f"{began_at:%Y-%m-%d %H:%M:%S} UTC, and went on for {elapsed_s:.0f} s",
        "shop": without_password(environment.host or ""),
        "load": _load(environment),
        "machine": machine(),
    }
    if options := _set_options(environment):
        found["options"] = options
    return found


def machine() -> str:
    """Describe this machine in a few words."""
    memory_gib = psutil.virtual_memory().total / _GIB
    return (
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, "
        f"locust {locust.__version__}"
    )


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
