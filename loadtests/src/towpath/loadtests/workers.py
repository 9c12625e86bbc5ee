"""
Several processes of one run: what the master tells its workers, and how they end.

At the end of a run locust's master does not wait for requests that its workers still
have under way, and loses their counts. So it asks them to finish first; each stops its
users, sends its statistics, and then says that it has finished.
"""

from typing import Final

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.rpc import Message
from locust.runners import MasterRunner, WorkerRunner

from towpath.loadtests.people import STREAMS, People, options_of
from towpath.loadtests.users import Customer

# The master hands these on to its workers, as it does all options.
GIVEN: Final = "load_given_customers"

_FINISH: Final = "towpath-finish"
_FINISHED: Final = "towpath-finished"
_STATS: Final = "stats"
_ANSWER_WITHIN_S: Final = 15.0


class Worker:
    """A worker: it has users, and does what the master says."""

    def __init__(self, environment: Environment, runner: WorkerRunner) -> None:
        self._environment = environment
        self._runner = runner
        environment.events.test_start.add_listener(self._start)
        runner.register_message(_FINISH, self._finish, concurrent=True)
        runner.register_message(STREAMS, self._count_streams)

    def _start(self, environment: Environment, **_: object) -> None:
        given = getattr(options_of(environment), GIVEN, ())
        Customer.people = People(environment, tuple(given))

    def _count_streams(self, msg: Message, **_: object) -> None:
        setattr(options_of(self._environment), STREAMS, msg.data[STREAMS])

    def _finish(self, **_: object) -> None:
        self._runner.stop()
        data: dict[str, object] = {}
        self._environment.events.report_to_master.fire(
            client_id=self._runner.client_id, data=data
        )
        self._runner.send_message(_STATS, data)
        self._runner.send_message(_FINISHED)


class Workers:
    """The workers, as the master knows them."""

    def __init__(self, environment: Environment, runner: MasterRunner) -> None:
        self._environment = environment
        self._runner = runner
        self._running: set[str] = set()
        self._all_finished = Event()
        runner.register_message(_FINISHED, self._finished)
        environment.events.spawning_complete.add_listener(self._tell_streams)

    def start(self, customers: tuple[str, ...]) -> None:
        """Hand on what a run begins with."""
        options = options_of(self._environment)
        setattr(options, GIVEN, customers)
        setattr(options, STREAMS, self._runner.target_user_count)

    def finish(self) -> None:
        """Wait until every worker has finished and sent its statistics."""
        if not self._runner.user_count:
            return
        self._all_finished.clear()
        self._running = {client.id for client in self._runner.clients.all}
        self._runner.send_message(_FINISH)
        patience_s = self._environment.stop_timeout + _ANSWER_WITHIN_S
        with gevent.Timeout(patience_s, exception=False):
            self._all_finished.wait()

    def _tell_streams(self, user_count: int, **_: object) -> None:
        setattr(options_of(self._environment), STREAMS, user_count)
        self._runner.send_message(STREAMS, {STREAMS: user_count})

    def _finished(self, msg: Message, **_: object) -> None:
        self._running.discard(msg.node_id)
        if not self._running:
            self._all_finished.set()
