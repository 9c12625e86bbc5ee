"""
The actions of the console: their inputs, and the functions that carry them out.

Each action calls the function of the command with the same name, so that its checks and
results are the same. An action is recorded in the audit log before it begins, and again
with its outcome.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from towpath.deploy.console import Document
from towpath.deploy.console.security import RecordedAction, actor, current_access
from towpath.deploy.snapshots.requests import (
    ANSWERED_WITHIN_S,
    AnsweredSignal,
    RunningChange,
    SnapshotRequest,
    request_snapshot,
    signal_running,
)
from towpath.deploy.snapshots.signals import LARGEST_SPEED, wait_answer
from towpath.relay.commands import dead_letters as relay
from towpath.schemas.clock import SystemClock
from towpath.schemas.failure import TowpathError
from towpath.services.plumbing.http import (
    LINES,
    ConflictError,
    Input,
    InvalidInputError,
)
from towpath.settings import Settings
from towpath.sinks.dead_letters.entries import Verb
from towpath.sinks.dead_letters.parked import OpenDeadLetters
from towpath.sinks.dead_letters.requests import chosen_subjects, request_outcomes
from towpath.sinks.kafka.dead_letter_topic import DeadLetterTopic
from towpath.sinks.state.declare import sink_named

# The maximum number of outcomes that the audit log and the page list.
_SHOWN: Final = 20


class ActionResult(NamedTuple):
    """The result of an action, as text and as a document."""

    text: str
    document: Document


class Action(NamedTuple):
    """
    An action that was requested.

    Attributes:
        event: The action's name in the audit log.
        fields: The objects and options of the action, for the audit log.
        act: Carries out the action.
    """

    event: str
    fields: Mapping[str, Any]
    act: Callable[[], ActionResult]


def carry_out(action: Action) -> RecordedAction[ActionResult]:
    """
    Carry out an action for the current request, and record it in the audit log.

    Raises:
        AuditLogError: The log cannot be written.
        TowpathError: The action was refused or failed.
    """
    return current_access().audit.record(
        action.event, {**actor(), **action.fields}, action.act, lambda done: done.text
    )


class SnapshotInput(Input):
    """A request for a snapshot, with the options of ``towpath snapshot start``."""

    tables: Annotated[list[str], LINES] = Field(
        default=[],
        max_length=1000,
        description="Tables as schema.table, aggregates as outbox.TYPE; empty for all.",
    )
    target: str | None = Field(default=None, description="The only sink to fill.")
    where: Annotated[list[str], LINES] = Field(
        default=[], max_length=1000, description="Filters: schema.table=filter."
    )
    keys: Annotated[list[str], LINES] = Field(
        default=[], description="Keys of one table: each a string or a JSON list."
    )
    type: Literal["incremental", "blocking"] = "incremental"
    surrogate_key: list[str] = Field(default=[], max_length=32)
    max_rows_per_second: int | None = Field(default=None, ge=1, le=LARGEST_SPEED)
    sweep: bool = Field(
        default=False, description="Delete the sinks' rows that are not in the tables."
    )
    id: str | None = Field(default=None, min_length=1, max_length=64)

    def request(self) -> SnapshotRequest:
        """Return the request."""
        options = self.model_dump(exclude={"tables"})
        return SnapshotRequest(collections=self.tables, **options)


class SnapshotNamesInput(Input):
    """A snapshot's id, or tables, or an id and then tables; empty for all."""

    names: list[str] = Field(default=[], max_length=1000)


def start_snapshot(settings: Settings, wanted: SnapshotInput) -> Action:
    """Return the action that requests a snapshot and waits for the relay's answer."""

    def act() -> ActionResult:
        source = settings.database
        chosen = request_snapshot(settings, wanted.request())
        answer = wait_answer(source, chosen, SystemClock(), ANSWERED_WITHIN_S)
        return _signal_done(AnsweredSignal(chosen, answer))

    return Action("snapshot start", wanted.model_dump(exclude_defaults=True), act)


def change_snapshots(
    settings: Settings, change: RunningChange, wanted: SnapshotNamesInput
) -> Action:
    """Return the action that pauses, resumes or stops snapshots."""

    def act() -> ActionResult:
        source = settings.database
        return _signal_done(signal_running(source, change, wanted.names, SystemClock()))

    return Action(f"snapshot {change}", wanted.model_dump(), act)


def _signal_done(signal: AnsweredSignal) -> ActionResult:
    """
    Return the relay's answer as a result.

    Raises:
        ConflictError: The relay rejected the signal, or its snapshot failed or is
            incomplete.
    """
    answer = signal.answer
    if not answer.is_good:
        message = f"{signal.id} {answer}"
        raise ConflictError(message)
    text = "; ".join([f"{signal.id} {answer.status}", *signal.lines])
    return ActionResult(text, {"id": signal.id, **answer._asdict()})


class DeadLettersInput(Input):
    """Dead letters of one sink, with keys as ``towpath dead-letters`` accepts them."""

    sink: str = Field(min_length=1)
    keys: list[str] = Field(default=[], max_length=1000)
    all: bool = Field(default=False, description="All dead letters of the sink.")
    timeout_s: float = Field(
        default=30.0, gt=0, le=90, description="The longest wait for the sink."
    )


class DiscardInput(DeadLettersInput):
    """Dead letters to discard; ``confirm`` must be true."""

    confirm: bool = False


def _aggregate(value: object) -> object:
    # A form sends an aggregate as a string that contains the API's JSON list.
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        message = 'must be a JSON list of type and id, such as ["order", "7"]'
        raise ValueError(message) from error
    return tuple(found) if isinstance(found, list) else found


ParkedAggregateName = Annotated[
    tuple[str | None, str],
    BeforeValidator(_aggregate),
    Field(description="Type and id of an aggregate; null for a row without a type."),
]


class ReleaseInput(Input):
    """Parked aggregates whose events are to be published."""

    aggregates: list[ParkedAggregateName] = Field(min_length=1, max_length=1000)
    drop: bool = Field(
        default=False, description="Discard dead letters that have no record."
    )


class DiscardAggregatesInput(Input):
    """Parked aggregates whose events are to be discarded; ``confirm`` must be true."""

    aggregates: list[ParkedAggregateName] = Field(min_length=1, max_length=1000)
    confirm: bool = False


def check_confirmed(*, is_confirmed: bool) -> None:
    """
    Check that an action that loses data was confirmed.

    Raises:
        InvalidInputError: The action was not confirmed.
    """
    if not is_confirmed:
        message = 'This loses data: confirm it with "confirm": true.'
        raise InvalidInputError(message)


def check_chosen(wanted: DeadLettersInput, verb: Verb) -> None:
    """
    Check that a request names either keys or all dead letters of the sink.

    Raises:
        InvalidInputError: The request names neither, or both.
    """
    if bool(wanted.keys) is wanted.all:
        message = f"name keys to {verb}, or set all"
        raise InvalidInputError(message)


def resolve_dead_letters(
    settings: Settings, verb: Verb, wanted: DeadLettersInput
) -> Action:
    """Return the action that has a sink replay or discard dead letters."""

    def act() -> ActionResult:
        check_chosen(wanted, verb)
        topic = DeadLetterTopic(settings, sink_named(settings, wanted.sink).name)
        open_dead_letters = OpenDeadLetters().read(topic.entries())
        keys = None if wanted.all else wanted.keys
        subjects = chosen_subjects(open_dead_letters, wanted.sink, keys)
        lines = request_outcomes(
            topic, open_dead_letters, subjects, verb, SystemClock(), wanted.timeout_s
        )
        texts = [f"{line['key'] or line['topic']}: {line['outcome']}" for line in lines]
        return ActionResult(_joined_few(texts), {"outcomes": lines})

    fields = wanted.model_dump(exclude={"confirm", "timeout_s"}, exclude_defaults=True)
    return Action(f"dead letters {verb}", fields, act)


def release_aggregates(
    settings: Settings,
    names: Sequence[tuple[str | None, str]],
    *,
    publishes: bool,
    drops: bool,
) -> Action:
    """
    Return the action that releases parked aggregates; the relay must be stopped.

    Args:
        settings: The configuration.
        names: The type and the id of each; one that is named twice is released once.
        publishes: Whether the events are published; otherwise they are discarded.
        drops: Whether dead letters without a record are discarded.
    """

    def act() -> ActionResult:
        parked = relay.read_parked_events(settings)
        for name in names:
            # A mistake in any name is found before the first aggregate is released.
            dead_letters = parked[relay.parked_aggregate(parked, *name)]
            if publishes:
                relay.publishable(dead_letters, drops=drops)
        lines: list[Document] = []
        for kind, id_ in dict.fromkeys(names):
            try:
                published, dropped = relay.release_aggregate(
                    settings, kind, id_, publishes=publishes, drops=drops
                )
            except TowpathError as error:
                if not lines:
                    raise
                # The audit log and the response list the aggregates released so far.
                failed = f"{kind or 'any type'} {id_} and later ones are not: {error}"
                text = "; ".join([_joined_few([*map(_released_text, lines)]), failed])
                return ActionResult(text, {"released": lines, "failed": failed})
            counts = {"published": published, "dropped": dropped}
            lines.append({"type": kind, "id": id_, **counts})
        text = _joined_few([*map(_released_text, lines)])
        return ActionResult(text, {"released": lines, "failed": None})

    verb = "replay" if publishes else "discard"
    fields = {"aggregates": names, "drop": drops}
    return Action(f"relay dead letters {verb}", fields, act)


def _released_text(line: Document) -> str:
    return (
        f"{line['type'] or 'any type'} {line['id']} is released: "
        f"{line['published']} events published, {line['dropped']} discarded"
    )


def _joined_few(texts: Sequence[str]) -> str:
    """Join the first few texts, and count the others."""
    more = len(texts) - _SHOWN
    return "; ".join([*texts[:_SHOWN], *([f"and {more:,} more"] if more > 0 else [])])
