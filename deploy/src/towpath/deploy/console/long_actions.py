"""
Long actions of the console: verifications, and changes to sinks, each as a run.

Only one verification (``towpath verify``) runs at a time. Its result lists the first
differences of each route, by key and column. Values of columns that a route masks or
hashes are not shown.

A change to a sink (``towpath sink add | refill | rebuild | drop``) modifies the state
folder of the sink's driver. The console needs write access to that folder, whose path
is ``state_folder`` in the console's configuration. Only one change runs at a time.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from pydantic import Field

from towpath.deploy.console import ConfigurationFile, Document
from towpath.deploy.console.actions import Action, ActionResult
from towpath.deploy.console.messages import HIDDEN, hidden_fields
from towpath.deploy.console.runs import Run, RunEnd, Runs
from towpath.deploy.console.security import actor
from towpath.deploy.sinks import dropping, lifecycle
from towpath.deploy.snapshots.signals import LARGEST_SPEED, TableProgress
from towpath.schemas.failure import TowpathError, UsageError, with_remedy
from towpath.services.plumbing.http import ConflictError, Input
from towpath.settings import Settings, Sink
from towpath.sinks.state.declare import sink_named
from towpath.sinks.state.progress import sink_folder
from towpath.sinks.verify import report
from towpath.sinks.verify.__main__ import (
    SinkVerifier,
    VerifyOptions,
    chosen_sinks,
    verifier_of,
)
from towpath.sinks.verify.report import Verdict, Verification

# The kinds of the runs.
VERIFICATION: Final = "verify"
SINK_CHANGE: Final = "sinks"

_MAX_CHARACTERS: Final = 100_000


class VerificationInput(Input):
    """The sinks to verify, with the options of ``towpath verify``."""

    sinks: list[str] = Field(
        default=[],
        max_length=1000,
        description="The sinks to verify; empty for all whose target can be read.",
    )
    routes: list[str] = Field(
        default=[], max_length=1000, description="Routes of one sink, or their tables."
    )
    sample: str = Field(default="", description="A number of rows, or 5%.")
    repair: bool = Field(
        default=False, description="Refetch differing rows, and compare them again."
    )
    erase: bool = Field(
        default=False,
        description="With repair, erase the sink's keys that a refetch cannot correct.",
    )

    def options(self) -> VerifyOptions:
        """Return the options of the command."""
        return VerifyOptions(
            names=tuple(self.routes),
            sample=self.sample,
            repairs=self.repair,
            erases=self.erase,
        )


def begin_verification(
    settings: Settings, runs: Runs, wanted: VerificationInput
) -> Action:
    """Return the action that starts a verification."""
    fields = wanted.model_dump(exclude_defaults=True)

    def act() -> ActionResult:
        options = wanted.options()
        names = chosen_sinks(settings, wanted.sinks, options)
        # A mistake in any sink's options is found before the first comparison.
        verifiers = {name: verifier_of(settings, name, options) for name in names}

        def work(run: Run) -> RunEnd:
            return _verify(settings, verifiers, run)

        run = runs.begin(VERIFICATION, "verify", {**actor(), **fields}, work)
        text = f"the verification of {', '.join(names)} has started"
        return ActionResult(text, {"run": run.document()})

    return Action("verify", fields, act)


def _verify(
    settings: Settings, verifiers: Mapping[str, SinkVerifier], run: Run
) -> RunEnd:
    """Verify the sinks in turn; the run fails if one of them cannot be verified."""
    outcomes, verdicts = [], set()
    for name, verifier in verifiers.items():
        try:
            found = verifier.compare(run.advance)
        except TowpathError as failure:
            reason = with_remedy(str(failure), failure.remedy)
            found = Verification(name, error=reason)
        sink = settings.sink_named(name)
        if sink is not None:
            run.add_result(shown_result(settings, sink, found))
        outcomes.append(_outcome(found))
        verdicts.add(found.verdict)
    return RunEnd("; ".join(outcomes), is_good=Verdict.UNVERIFIED not in verdicts)


def _outcome(found: Verification) -> str:
    if found.verdict is Verdict.DIFFERENT:
        count = found.differences
        return f"{found.sink} has {count:,} difference{'s' if count > 1 else ''}"
    if found.verdict is Verdict.UNVERIFIED:
        return f"{found.sink} could not be verified"
    return f"{found.sink} equals the source"


def shown_result(settings: Settings, sink: Sink, found: Verification) -> Document:
    """Return a result as ``towpath verify --json`` prints it, without hidden values."""
    document: Document = json.loads(report.as_json(found))
    hidden = {route.name: hidden_fields(settings, route) for route in sink.route}
    for route in document["routes"]:
        names = hidden.get(route["route"], frozenset())
        route["first"] = list(_without(route["first"], names))
    return document


def _without(
    differences: Sequence[Document], hidden: frozenset[str]
) -> Iterable[Document]:
    for one in differences:
        is_hidden = one["column"] in hidden
        yield one | {
            side: HIDDEN if is_hidden and one[side] is not None else one[side]
            for side in ("source", "sink")
        }


class AddSinkInput(Input):
    """A sink to add: one ``[[sink]]`` block with its routes, as TOML."""

    block: str = Field(min_length=1, max_length=_MAX_CHARACTERS)
    max_rows_per_second: int | None = Field(default=None, ge=1, le=LARGEST_SPEED)

    @property
    def name(self) -> str:
        """
        The name of the sink.

        Raises:
            UsageError: The block is not TOML, or does not have one sink with a name.
        """
        try:
            [sink] = tomllib.loads(self.block)["sink"]
            return str(sink["name"])
        except tomllib.TOMLDecodeError as error:
            message = f"the block is not TOML: {error}"
            raise UsageError(message) from error
        except RecursionError as error:
            message = "the block is nested too deeply"
            raise UsageError(message) from error
        except (KeyError, TypeError, ValueError) as error:
            message = "the block must declare one [[sink]] with a name"
            raise UsageError(message) from error


class RefillInput(Input):
    """A sink, or one of its routes, to refill from the source."""

    sink: str = Field(min_length=1)
    route: str | None = None
    max_rows_per_second: int | None = Field(default=None, ge=1, le=LARGEST_SPEED)


class RebuildInput(Input):
    """A search sink to rebuild: all its indexes, or only the index of one route."""

    sink: str = Field(min_length=1)
    route: str | None = None


class DropInput(Input):
    """A sink to drop, with or without its data; ``confirm`` must be true."""

    sink: str = Field(min_length=1)
    data: bool = False
    confirm: bool = False


class RunReport:
    """Shows the steps of a change to a sink in a run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def say(self, line: str) -> None:
        """Show a step."""
        self._run.say(line)

    def warn(self, line: str) -> None:
        """Show a sentence about a step that remains to be done."""
        self._run.say(line)

    @contextmanager
    def watching(self) -> Iterator[Callable[[Sequence[TableProgress]], None]]:
        """Show the progress of a snapshot while the block runs."""
        yield self._show

    def _show(self, tables: Sequence[TableProgress]) -> None:
        for table in tables:
            rows = table.rows + table.dropped
            self._run.show(table.collection, rows, table.estimated_rows or 0)


def missing_folder_reason(settings: Settings, name: str | None = None) -> str:
    """
    Return why sinks cannot be changed here; empty if they can.

    Args:
        settings: The configuration.
        name: The sink; None for a sink that is to be added.
    """
    names = [name] if name else [sink.name for sink in settings.sink]
    folders = [sink_folder(settings.state_folder, one) for one in names]
    if not folders or any(folder.is_dir() for folder in folders):
        return ""
    return (
        f"{settings.state_folder} holds no state of {name or 'any sink'}: run the "
        "console where the sink's driver runs, with the driver's state_folder"
    )


def add_sink(file: ConfigurationFile, runs: Runs, wanted: AddSinkInput) -> Action:
    """Return the action that adds a sink and fills it."""
    # The block is left out because its address may contain a password.
    fields = {"sink": wanted.name}
    add = partial(
        lifecycle.add_sink,
        *(file.path, file.environ, wanted.block),
        max_rows_per_second=wanted.max_rows_per_second,
    )

    def check() -> None:
        _check_folder(file.load(), None)

    return _change("sink add", fields, runs, check, add)


def refill_sink(file: ConfigurationFile, runs: Runs, wanted: RefillInput) -> Action:
    """Return the action that reads a sink's rows again."""

    def check() -> None:
        lifecycle.fillable_sink(file.load(), wanted.sink, wanted.route)
        _check_folder(file.load(), wanted.sink)

    def refill(report: RunReport) -> bool:
        return lifecycle.refill_sink(
            *(file.load(), wanted.sink, report),
            route=wanted.route,
            max_rows_per_second=wanted.max_rows_per_second,
        )

    fields = wanted.model_dump(exclude_defaults=True)
    return _change("sink refill", fields, runs, check, refill)


def rebuild_sink(file: ConfigurationFile, runs: Runs, wanted: RebuildInput) -> Action:
    """Return the action that rebuilds a search sink's indexes."""

    def check() -> None:
        lifecycle.searched_routes(file.load(), wanted.sink, wanted.route)
        _check_folder(file.load(), wanted.sink)

    def rebuild(report: RunReport) -> bool:
        settings = file.load()
        return lifecycle.rebuild_sink(settings, wanted.sink, report, route=wanted.route)

    fields = wanted.model_dump(exclude_defaults=True)
    return _change("sink rebuild", fields, runs, check, rebuild)


def drop_sink(file: ConfigurationFile, runs: Runs, wanted: DropInput) -> Action:
    """Return the action that drops a sink."""

    def check() -> None:
        _check_folder(file.load(), wanted.sink)
        planned_drop(file, wanted)

    def drop(report: RunReport) -> bool:
        lifecycle.drop_sink(*file, planned_drop(file, wanted), report)
        return True

    fields = wanted.model_dump(exclude={"confirm"}, exclude_defaults=True)
    return _change("sink drop", fields, runs, check, drop)


def planned_drop(file: ConfigurationFile, wanted: DropInput) -> dropping.DropPlan:
    """
    Return the plan of a drop.

    Raises:
        UsageError: There is no such sink, or another sink writes to the same data.
    """
    return dropping.plan_drop(file.load(), wanted.sink, deletes_data=wanted.data)


def _change(
    event: str,
    fields: Mapping[str, Any],
    runs: Runs,
    check: Callable[[], None],
    work: Callable[[RunReport], bool],
) -> Action:
    """
    Return the action that starts a change.

    Args:
        event: The action's name.
        fields: The sink, and the options of the action.
        runs: The runs of the console.
        check: Finds mistakes before the change begins.
        work: Makes the change, and returns whether everything requested was done.
    """

    def run_change(run: Run) -> RunEnd:
        is_good = work(RunReport(run))
        lines = run.document()["lines"]
        return RunEnd(lines[-1] if lines else "done", is_good=is_good)

    def act() -> ActionResult:
        check()
        run = runs.begin(SINK_CHANGE, event, {**actor(), **fields}, run_change)
        text = f"{event} {fields['sink']}: started"
        return ActionResult(text, {"run": run.document()})

    return Action(event, fields, act)


def _check_folder(settings: Settings, name: str | None) -> None:
    """
    Check that the console has the state folder of the sink's driver.

    Raises:
        UnknownSinkError: The sink is not declared, and has left no state.
        ConflictError: The folder holds no state of the sink.
    """
    missing = missing_folder_reason(settings, name)
    if not missing:
        return
    if name is not None:
        sink_named(settings, name)
    raise ConflictError(missing)
