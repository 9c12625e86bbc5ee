"""
Load on the shop, by locust: ``locust -f loadtests/locustfile.py --host URL``.

Nothing but the address is needed; docs/load.md lists the options. The users and what
goes on around them are modules of ``towpath.loadtests``.
"""
# Locust loads this file by its path; it is in no package.
# ruff: noqa: INP001

from locust import events

from towpath.loadtests.load import lead
from towpath.loadtests.load.users import OpenLoop, ReturningCustomer, Shopper

__all__ = ["OpenLoop", "ReturningCustomer", "Shopper"]

lead.install(events)
