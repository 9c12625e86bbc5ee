"""
The process that leads a run, its workers, and their listeners for Locust's events.

Locust's only process, or its master, leads: it prepares the run, samples lag, counts
and reports; a worker only runs users. At the end of a run, Locust's master would not
wait for requests that its workers still have in progress, and would lose their counts.
So the master first asks its workers to finish: each worker stops its users, sends its
statistics, and then reports that it has finished.
"""

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import gevent
from flask import Response, jsonify, request
from gevent.event import Event
from locust import stats as locust_stats
from locust.env import Environment
from locust.event import Events
from locust.rpc import Message
from locust.runners import (
    STATE_RUNNING,
    STATE_SPAWNING,
    MasterRunner,
    Runner,
    WorkerRunner,
)
from locust.web import WebUI

from towpath.loadtests.errors import LoadOptionError, ShopDatabaseError
from towpath.loadtests.load import report, users
from towpath.loadtests.load.customers import (
    SHAPE,
    STREAMS,
    Customer,
    ProcessCustomers,
    add_entry,
    options_of,
)
from towpath.loadtests.load.lag import Fire, LagSampling, SideProcess
from towpath.loadtests.load.options import (
    NO_CHECK,
    NO_REPORT,
    OPTIONS,
    add_options,
    checked,
)
from towpath.loadtests.load.series import Series
from towpath.loadtests.load.shapes import Shape, read_shape
from towpath.loadtests.load.shop import (
    check_shop,
    given_customers,
    shop_address,
    targets_of,
)
from towpath.schemas.clock import Clock, SystemClock
from towpath.schemas.failure import TowpathError, with_remedy

# The master passes these on to its workers, as it does all options.
GIVEN: Final = "load_given_customers"

_FINISH: Final = "towpath-finish"
_FINISHED: Final = "towpath-finished"
_STATS: Final = "stats"
_FINISH_WITHIN_S: Final = 15.0


class Worker:
    """A worker: it runs users, and obeys the master's messages."""

    def __init__(self, environment: Environment, runner: WorkerRunner) -> None:
        self._environment = environment
        self._runner = runner
        environment.events.test_start.add_listener(self._start)
        runner.register_message(_FINISH, self._finish, concurrent=True)
        runner.register_message(STREAMS, self._count_streams)

    def _start(self, environment: Environment, **_: object) -> None:
        given = getattr(options_of(environment), GIVEN, ())
        Customer.people = ProcessCustomers(environment, tuple(given))

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
    """The master's view of its workers."""

    def __init__(self, environment: Environment, runner: MasterRunner) -> None:
        self._environment = environment
        self._runner = runner
        self._running: set[str] = set()
        self._all_finished = Event()
        runner.register_message(_FINISHED, self._finished)
        environment.events.spawning_complete.add_listener(self._send_streams)

    def start(self, customers: tuple[str, ...]) -> None:
        """Pass customers and the number of users on to the workers."""
        options = options_of(self._environment)
        setattr(options, GIVEN, customers)
        setattr(options, STREAMS, self._runner.target_user_count)

    def finish(self) -> None:
        """Wait until all workers have sent their statistics, or the time is up."""
        if not self._runner.user_count:
            return
        self._all_finished.clear()
        self._running = {client.id for client in self._runner.clients.all}
        self._runner.send_message(_FINISH)
        within_s = self._environment.stop_timeout + _FINISH_WITHIN_S
        with gevent.Timeout(within_s, exception=False):
            self._all_finished.wait()

    def _send_streams(self, user_count: int, **_: object) -> None:
        setattr(options_of(self._environment), STREAMS, user_count)
        self._runner.send_message(STREAMS, {STREAMS: user_count})

    def _finished(self, msg: Message, **_: object) -> None:
        self._running.discard(msg.node_id)
        if not self._running:
            self._all_finished.set()


_CHECK: Final = "towpath.loadtests.load.check"
_DATABASE: Final = "database"
_NOW: Final = "now"  # The line that starts the check.
# The sampler needs the orders of only a few customers.
_SAMPLED_CUSTOMERS: Final = 100


class Prepared(NamedTuple):
    """
    The prepared parts of a run.

    Attributes:
        host: The shop's address.
        customers: The customers of ``--load-customers-file``.
        sampling: The sampler of lags, if there are sinks.
        shape: The rate over time, if it changes.
        check: The process that checks the stores after the run, if there is a database.
    """

    host: str
    customers: tuple[str, ...]
    sampling: LagSampling | None
    shape: Shape | None
    check: SideProcess | None

    def close(self) -> None:
        """End the processes of a run that never begins."""
        if self.sampling is not None:
            self.sampling.close()
        if self.check is not None:
            self.check.close()


def prepare(
    options: argparse.Namespace, host: str | None, fire: Fire, clock: Clock
) -> Prepared:
    """
    Call the shop and each target once, to report a mistake before the load begins.

    Raises:
        LoadOptionError: An address, shape, rate, folder, key or table is unusable.
        ShopUnavailableError: The shop cannot be used at its address.
        CustomersError: The given customers cannot place orders.
        TargetUnavailableError: A sink's target cannot be sampled.
        ShopDatabaseError: The shop's database cannot be read.
    """
    report.check_outputs(options)
    shape = _shape(options)
    address = shop_address(host)
    given = given_customers(options)
    buyers = check_shop(address, given)
    targets = targets_of(options)
    check = _store_check(options, targets)
    if not targets:
        return Prepared(address, given, None, shape, check)
    config = {
        "host": address,
        "customers": buyers[:_SAMPLED_CUSTOMERS],
        "interval_s": options.load_lag_interval,
        "after_s": options.load_lag_after,
        "for_s": options.load_lag_for,
        "lost_after_s": options.load_lag_lost_after,
        "targets": targets,
    }
    try:
        sampling = LagSampling(config, fire, clock)
    except TowpathError:
        if check is not None:
            check.close()
        raise
    return Prepared(address, given, sampling, shape, check)


def _store_check(
    options: argparse.Namespace, targets: Mapping[str, object]
) -> SideProcess | None:
    if options.load_dsn in {"", NO_CHECK}:
        return None
    arguments = {"dsn": options.load_dsn, "targets": targets}
    check = SideProcess(_CHECK, {**arguments, "within_s": options.load_settle_for})
    if "error" in (first := check.first_line()):
        check.close()
        kind = LoadOptionError if first.get("is_option") else ShopDatabaseError
        raise kind(first["error"])
    return check


def _shape(options: argparse.Namespace) -> Shape | None:
    if not options.load_shape:
        return None
    if not options.load_rate:
        message = "a shape needs a rate: set --load-rate to the arrivals per second"
        raise LoadOptionError(message)
    return read_shape(options.load_shape)


_POLL_INTERVAL_S: Final = 1.0
# The exit code if a check fails or finds a violation, or --load-dsn is empty.
EXIT_UNPROVEN: Final = 1

log = logging.getLogger(__name__)


class RunLeader:
    """Listens to Locust's events, and leads one run after another."""

    def __init__(
        self,
        environment: Environment,
        runner: Runner,
        web_ui: WebUI | None,
        clock: Clock,
    ) -> None:
        self._environment = environment
        self._runner = runner
        self._clock = clock
        self._prepared: Prepared | None = None
        self._run: LedRun | None = None
        self._ending: LedRun | None = None
        self._end_of_shape: gevent.Greenlet | None = None
        self._workers: Workers | None = None
        if isinstance(runner, MasterRunner):
            self._workers = Workers(environment, runner)
        environment.events.test_start.add_listener(self._start)
        environment.events.test_stop.add_listener(self._stop)
        # On SIGTERM, Locust sets its exit code before it stops the run: stop the run
        # earlier, so that its check still counts.
        environment.events.quitting.add_listener(lambda **_: runner.stop())
        if web_ui is not None and web_ui.app is not None:
            # A user who may not start a load may not change its options either.
            check = web_ui.auth_required_if_enabled(self._check_start)
            web_ui.app.before_request(lambda: check() if _is_start() else None)
        options = options_of(environment)
        if options.headless or options.autostart:
            self._prepare_or_exit()

    def _prepare(self, host: str | None) -> None:
        if self._prepared is not None:
            self._prepared.close()
        self._prepared = None
        users.choose_users(self._environment)
        options = options_of(self._environment)
        fire = partial(add_entry, self._environment)
        self._prepared = prepare(options, host, fire, self._clock)
        if self._ending is not None:
            # The ending run's last samples would become rows of the next run.
            self._ending.abandon()

    def _prepare_or_exit(self) -> None:
        try:
            self._prepare(self._environment.host)
        except TowpathError as error:
            sys.stderr.write(f"locust: error: {_sentence(error)}\n")
            sys.exit(error.exit_code)

    def _prepare_or_quit(self) -> None:
        try:
            self._prepare(self._environment.host)
        except TowpathError as error:
            log.error(_sentence(error))  # noqa: TRY400 - one sentence, with its remedy
            gevent.spawn(self._runner.quit)

    def _check_start(self) -> Response | None:
        """Check the start form of Locust's page; return a response if it is refused."""
        options = options_of(self._environment)
        try:
            for option in OPTIONS:
                text = request.form.get(option.dest)
                if text is not None:
                    setattr(options, option.dest, checked(option, text))
            if self._runner.state not in {STATE_RUNNING, STATE_SPAWNING}:
                self._prepare(request.form.get("host") or self._environment.host)
            elif self._workers is not None:
                setattr(options, STREAMS, int(request.form.get("user_count", 0)))
        except (TowpathError, ValueError) as error:
            reason = _sentence(error) if isinstance(error, TowpathError) else str(error)
            return jsonify({"success": False, "message": reason})
        return None

    def _start(self, environment: Environment, **_: object) -> None:
        if self._prepared is None:
            # Started by a key press, not from the page.
            self._prepare_or_quit()
        prepared, self._prepared = self._prepared, None
        shape = prepared.shape if prepared else None
        setattr(options_of(environment), SHAPE, shape.points if shape else ())
        Customer.people = ProcessCustomers(
            environment, prepared.customers if prepared else ()
        )
        if prepared is None:
            return
        environment.host = prepared.host
        if self._workers is not None:
            self._workers.start(prepared.customers)
        self._run = LedRun(environment, prepared, self._clock)
        if shape is not None:
            self._end_of_shape = gevent.spawn_later(shape.duration_s, self._end_shape)

    def _end_shape(self) -> None:
        """End the run at the last point of its shape."""
        self._end_of_shape = None
        if options_of(self._environment).headless:
            self._runner.quit()
        else:
            self._runner.stop()

    def _stop(self, **_: object) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        if self._end_of_shape is not None:
            self._end_of_shape.kill()
            self._end_of_shape = None
        if self._workers is not None:
            self._workers.finish()
        self._ending = run
        run.end()
        self._ending = None


class LedRun:
    """One run, from the first user to the report."""

    def __init__(
        self, environment: Environment, prepared: Prepared, clock: Clock
    ) -> None:
        self._environment = environment
        self._options = options_of(environment)
        self._sampling = prepared.sampling
        self._check = prepared.check
        self._findings: Mapping[str, Sequence[str]] = {}
        self._clock = clock
        self._series = Series()
        self._began_at = clock.now()
        self._began_at_s = clock.monotonic_s()
        self._ended_at_s: float | None = None
        self._is_abandoned = False
        if self._sampling is not None:
            self._sampling.start()
        self._recorder = gevent.spawn(self._record_repeatedly)

    def end(self) -> None:
        """Wait for the last samples, check the stores, and write the report."""
        self._ended_at_s = self._clock.monotonic_s()
        if self._sampling is not None:
            self._sampling.finish()
        self._recorder.kill()
        self._record()
        self._check_stores()
        folder = self._report_folder()
        if folder is not None:
            path = report.write_report(self._ended_run(), folder)
            log.info("load report: %s", path)
        if self._options.csv_prefix:
            # Locust writes its CSV files at this interval, not when the run ends.
            gevent.sleep(2 * locust_stats.CSV_STATS_INTERVAL_SEC)

    def abandon(self) -> None:
        """Stop waiting for samples and for the check, because another run begins."""
        self._is_abandoned = True
        if self._sampling is not None:
            self._sampling.abandon()
        if self._check is not None:
            self._check.kill()

    def _check_stores(self) -> None:
        """Check money, stock and parcels in every store; log each violation."""
        if self._check is None:
            self._report_unchecked()
            return
        self._check.send(_NOW)
        ended = {"error": "the check ended unexpectedly"}
        found = next(self._check.documents(), ended)
        self._check.close()
        if self._is_abandoned:
            log.warning("load invariants not checked: another run began")
            return
        if "error" in found:
            found = {_DATABASE: [found["error"]]}
        self._findings = found
        for store, sentences in found.items():
            for sentence in sentences:
                log.error("load invariant violated: %s: %s", store, sentence)
                self._environment.process_exit_code = EXIT_UNPROVEN
            if not sentences:
                log.info("load invariants hold: %s", store)

    def _report_unchecked(self) -> None:
        """Log that nothing was checked: as an error unless the user chose no check."""
        if self._options.load_dsn == NO_CHECK:
            log.info("load invariants not checked: --load-dsn is %s", NO_CHECK)
            return
        log.error(
            "load invariants not checked: set --load-dsn to the shop's database, or to"
            " %s for a run that needs no check",
            NO_CHECK,
        )
        self._environment.process_exit_code = EXIT_UNPROVEN

    @property
    def _elapsed_s(self) -> float:
        until_s = self._ended_at_s or self._clock.monotonic_s()
        return until_s - self._began_at_s

    def _record_repeatedly(self) -> None:
        while True:
            gevent.sleep(_POLL_INTERVAL_S)
            self._record()

    def _record(self) -> None:
        stats = self._environment.stats
        rows = report.totals_of(stats)
        self._series.add(self._clock.monotonic_s() - self._began_at_s, rows)
        if self._options.load_progress:
            load = report.load_report(
                stats,
                elapsed_s=round(self._elapsed_s, 3),
                finished=self._ended_at_s is not None,
            )
            lag = self._sampling.report if self._sampling is not None else {}
            report.write_progress(load, lag, Path(self._options.load_progress))

    def _report_folder(self) -> Path | None:
        named = self._options.load_report
        if named == NO_REPORT or not (named or self._options.headless):
            return None
        return Path(named or f"load-report-{self._began_at:%Y%m%dT%H%M%SZ}")

    def _ended_run(self) -> report.EndedRun:
        return report.EndedRun(
            facts=report.facts_of(self._environment, self._began_at, self._elapsed_s),
            elapsed_s=self._elapsed_s,
            stats=self._environment.stats,
            series=self._series,
            began_at_s=self._began_at_s,
            samples=self._sampling.samples if self._sampling is not None else (),
            lag=self._sampling.report if self._sampling is not None else {},
            is_open=self._options.load_rate > 0,
            findings=self._findings,
        )


def _is_start() -> bool:
    return request.method == "POST" and request.path.endswith("/swarm")


def _sentence(error: TowpathError) -> str:
    return with_remedy(str(error), error.remedy)


def install(events: Events) -> None:
    """Register all listeners; the locustfile calls this function once."""
    events.init_command_line_parser.add_listener(add_options)
    events.init.add_listener(_begin)


def _begin(
    environment: Environment, runner: Runner, web_ui: WebUI | None, **_: object
) -> None:
    if isinstance(runner, WorkerRunner):
        Worker(environment, runner)
    else:
        RunLeader(environment, runner, web_ui, SystemClock())
