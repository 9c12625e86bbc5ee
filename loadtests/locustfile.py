"""
Load on the shop, by locust: ``locust -f loadtests/locustfile.py --host URL``.

Only the address is required; docs/load.md lists the options. Users, preparation and
report are in ``towpath.loadtests.load``.
"""
# Locust loads this file by its path; it belongs to no package.
# ruff: noqa: INP001

from locust import events

from towpath.loadtests.load import lead
from towpath.loadtests.load.users import OpenLoop, ReturningCustomer, Shopper

__all__ = ["OpenLoop", "ReturningCustomer", "Shopper"]

lead.install(events)
