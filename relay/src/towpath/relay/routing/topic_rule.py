"""
The topic of an event: a value of the row, rewritten by a pattern, put into a template.

The pattern and its replacement are Java's, as Debezium's router takes them: the whole
value must match, ``$1`` and ``${name}`` stand for groups, a backslash takes the meaning
from the next character; a value that does not match stays as it is.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from towpath.relay.errors import UnroutableError
from towpath.schemas import topics
from towpath.schemas.failure import ConfigurationError
from towpath.settings.outbox import Outbox
from towpath.settings.syntax import compiled

ILLEGAL_TOPIC: Final = "the aggregate type makes no topic name that Kafka takes"
RESERVED_TOPIC: Final = "the aggregate type makes a topic of Kafka's or of the relay's"

_OF_KAFKA: Final = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__cluster_metadata",
    }
)
_REFERENCE: Final = re.compile(
    r"\\(?P<plain>.)|\$\{(?P<name>[^}]*)\}|\$(?P<digits>\d+)", re.DOTALL
)

Part = Callable[["re.Match[str]"], str]


class TopicRule:
    """
    Names topics.

    Args:
        outbox: Template, pattern and replacement; checked before.
        reserved: Topics that no event may go to.
    """

    def __init__(self, outbox: Outbox, reserved: frozenset[str]) -> None:
        self._template = outbox.topic
        self._reserved = reserved
        self._pattern = compiled(outbox.route_regex) if outbox.route_regex else None
        self._parts: tuple[Part, ...] = ()
        if self._pattern is not None:
            self._parts = tuple(_parts(outbox.route_replacement, self._pattern))

    def topic(self, value: str) -> str:
        """
        Return the topic of a value.

        Raises:
            UnroutableError: There is none that events may be written to.
        """
        name = topics.outbox_topic(self._template, self._rewritten(value))
        if not value or not topics.is_legal_topic(name):
            raise UnroutableError(ILLEGAL_TOPIC)
        if name in self._reserved or name in _OF_KAFKA:
            raise UnroutableError(RESERVED_TOPIC)
        return name

    def _rewritten(self, value: str) -> str:
        pattern = self._pattern
        if pattern is None or pattern.fullmatch(value) is None:
            return value
        found = pattern.search(value)
        if found is None:
            return value
        replacement = "".join(part(found) for part in self._parts)
        return value[: found.start()] + replacement + value[found.end() :]


def topics_of_relay(prefix: str) -> frozenset[str]:
    """Name the topics in which the relay keeps house: no event may go there."""
    return frozenset(
        {
            topics.state_topic(prefix),
            topics.relations_topic(prefix),
            topics.notifications_topic(prefix),
            topics.heartbeat_topic(prefix),
            topics.transaction_topic(prefix),
            topics.message_topic(prefix),
            topics.signal_topic(prefix),
            topics.dead_letter_topic(prefix, "relay"),
        }
    )


def _parts(replacement: str, pattern: "re.Pattern[str]") -> Iterable[Part]:
    """Cut a replacement into plain texts and references to groups."""
    at = 0
    for found in _REFERENCE.finditer(replacement):
        yield _text(replacement[at : found.start()])
        at = found.end()
        if found["plain"] is not None:
            yield _text(found["plain"])
        elif found["name"] is not None:
            yield _group(found["name"], pattern)
        else:
            yield from _numbered(found["digits"], pattern)
    yield _text(replacement[at:])


def _numbered(digits: str, pattern: "re.Pattern[str]") -> Iterable[Part]:
    """Read as many digits as name a group; the others stand for themselves."""
    length = len(digits)
    while length > 1 and int(digits[:length]) > pattern.groups:
        length -= 1
    yield _group(int(digits[:length]), pattern)
    yield _text(digits[length:])


def _group(group: str | int, pattern: "re.Pattern[str]") -> Part:
    known = group in pattern.groupindex or (
        isinstance(group, int) and group <= pattern.groups
    )
    if not known:
        mistake = f"relay.outbox.route_replacement: route_regex has no group {group}"
        raise ConfigurationError([mistake])
    return lambda found: found[group] or ""


def _text(text: str) -> Part:
    return lambda _found: text
