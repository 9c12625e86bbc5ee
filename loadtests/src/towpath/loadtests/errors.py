"""Failures of loads, benchmarks and chaos runs."""

from towpath.schemas.failure import UnavailableError, UsageError


class LoadOptionError(UsageError):
    """An option of the load is wrong."""

    remedy = "Correct the option; docs/load.md lists all of them."


class ShopUnavailableError(UnavailableError):
    """The orders service cannot be used at the given address."""

    remedy = "Check --host, and that the orders service is running there."


class ShopDatabaseError(UnavailableError):
    """The shop's database cannot be read."""

    remedy = "Correct --load-dsn, or give --load-dsn none to skip the checks."


class CustomersError(UsageError):
    """The given customers cannot place orders."""

    remedy = (
        "Let the load register its own (leave --load-customers-file out), or list ids "
        "of customers of this shop, one per line."
    )


class TargetUnavailableError(UnavailableError):
    """A sink's target cannot be sampled at the given address."""

    remedy = "Correct the option that gives its address, or leave it out."


class BenchError(UnavailableError):
    """A system or a server of the benchmark ended, or did not finish in time."""

    remedy = "Read the log that the message names, or all logs: --keep preserves them."


class ChaosError(UnavailableError):
    """The relay could not be started, or a server of the run failed."""

    remedy = "Read the log that the message names, or all logs: --keep preserves them."
