"""
What goes on around locust's users, registered with locust's own events.

The process that leads a run (locust's only one, or the master) prepares it, samples lag
and reports; a worker has users only.
"""

from locust.env import Environment
from locust.event import Events
from locust.runners import Runner, WorkerRunner
from locust.web import WebUI

from towpath.loadtests.lead import Lead
from towpath.loadtests.options import add_options
from towpath.loadtests.workers import Worker
from towpath.schemas.clock import SystemClock


def install(events: Events) -> None:
    """Register everything; called once, by the locustfile."""
    events.init_command_line_parser.add_listener(add_options)
    events.init.add_listener(_begin)


def _begin(
    environment: Environment, runner: Runner, web_ui: WebUI | None, **_: object
) -> None:
    if isinstance(runner, WorkerRunner):
        Worker(environment, runner)
    else:
        Lead(environment, runner, web_ui, SystemClock())
