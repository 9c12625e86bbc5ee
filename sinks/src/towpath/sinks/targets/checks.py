"""
Checks of a sink against the tables that it reads and the target that it writes.

They run before a sink is added, before a running sink adopts a changed block, and on
demand. Nothing is written: a refusal that only a write can reveal is reported by the
sink itself when it starts.
"""

from collections.abc import Iterator
from typing import NamedTuple

from towpath.schemas.failure import TowpathError, with_remedy
from towpath.settings import Settings, Sink
from towpath.sinks.errors import RouteMistakesError, SinkUnfitError
from towpath.sinks.kafka import rights
from towpath.sinks.kinds import RoutedRelations, check_kinds, kind_of, reader_of
from towpath.sinks.ports import RelationSource


class Finding(NamedTuple):
    """A result of a check, which need not be a mistake."""

    text: str
    is_mistake: bool = True


def check_block(settings: Settings, sink: Sink, relations: RelationSource) -> None:
    """
    Check that a sink can start, or continue, with its block of the configuration.

    Args:
        settings: The configuration with the block.
        sink: The settings of the block.
        relations: Finds the shapes of tables.

    Raises:
        ConfigurationError: The block breaks a rule of its kind.
        KindBrokenError: The package of the kind does not provide it.
        TransformBrokenError: A transform in Python cannot be imported.
        SinkUnfitError: The tables or the target do not fit, or the target does not
            answer; the message lists every mistake.
        UnavailableError: The broker does not answer.
    """
    check_kinds([sink])
    found = [*check_sink(sink, relations), *check_target(sink, settings)]
    mistakes = [finding.text for finding in found if finding.is_mistake]
    if mistakes:
        raise SinkUnfitError("\n".join(mistakes))


def check_sink(sink: Sink, relations: RelationSource) -> Iterator[Finding]:
    """
    Yield mismatches between a sink's routes and the tables that they read.

    Raises:
        UnavailableError: The broker does not answer.
    """
    try:
        unfit_name = kind_of(sink).unfit_name
        unknown = RoutedRelations(relations, sink.route, unfit_name).check()
    except RouteMistakesError as error:
        for line in str(error).split("\n"):
            yield Finding(f"{sink.name}: {line}")
        return
    for topic in unknown:
        text = f"{sink.name}: the table of {topic} is not announced yet"
        yield Finding(text, is_mistake=False)


def check_topics(sink: Sink, settings: Settings) -> Iterator[Finding]:
    """
    Yield the rights that the user of ``[kafka.client]`` lacks to run the sink.

    Raises:
        UnavailableError: The broker does not answer.
    """
    wanted = rights.rights_of(settings, sink)
    for text in rights.missing_rights(settings.kafka, wanted):
        yield Finding(f"{sink.name}: {text}: see docs/rights.md")


def check_target(sink: Sink, settings: Settings) -> Iterator[Finding]:
    """Yield the rights that the target denies, or the reason why it cannot be read."""
    kind = kind_of(sink)
    try:
        if kind.rights is not None:
            missing = [*kind.rights(sink, settings.database.prefix)]
            yield from (Finding(f"{sink.name}: {text}") for text in missing)
            if missing:
                return
        if kind.read is None:
            return
        reader = reader_of(sink, settings)
        try:
            next(iter(reader.rows(sink.route[0].name)), None)
        finally:
            reader.close()
    except TowpathError as error:
        reason = with_remedy(str(error), error.remedy)
        yield Finding(f"{sink.name}: {reason}")
