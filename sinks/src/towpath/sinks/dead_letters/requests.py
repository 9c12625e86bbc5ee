"""
Asks a sink to replay or to give up dead letters, and waits for what it says.

The order stands in the dead-letter topic: a sink that does not run takes it at its next
start. So nobody but the sink writes to its target, and a replay meets the same guard as
any batch.
"""

import uuid
from collections.abc import Sequence
from typing import Final, Protocol

from towpath.schemas.clock import Clock, Deadline
from towpath.sinks.dead_letters.letter import (
    Answer,
    Ending,
    Entry,
    Matter,
    Order,
    Verb,
)
from towpath.sinks.dead_letters.parked import OpenDeadLetters

_LOOK_EVERY_S: Final = 0.2


class Asks(Protocol):
    """The topic, as the one who asks sees it."""

    def ask(self, orders: Sequence[Order]) -> None:
        """Write orders; durable when this returns."""

    def since(self) -> list[Entry]:
        """Return what was written since the topic was last read."""


def ask(
    topic: Asks, matters: Sequence[Matter], verb: Verb, clock: Clock, timeout_s: float
) -> dict[Matter, Ending | Answer | None]:
    """
    Ask for all matters at once and return what became of each.

    Returns:
        Per matter its ending, or the answer why there is none; ``None`` if the sink
        has said nothing in time: the order stands.

    Raises:
        UnavailableError: The broker does not answer.
    """
    orders = [Order(uuid.uuid4().hex, verb, matter) for matter in matters]
    said = ask_orders(topic, orders, clock, timeout_s)
    return {order.matter: said[order.id] for order in orders}


def ask_orders(
    topic: Asks, orders: Sequence[Order], clock: Clock, timeout_s: float
) -> dict[str, Ending | Answer | None]:
    """
    Ask as orders say, and return what became of each, by its id; as ``ask`` does.

    Raises:
        UnavailableError: The broker does not answer.
    """
    topic.ask(orders)
    book = OpenDeadLetters(frozenset())
    deadline = Deadline(clock, timeout_s)
    while True:
        book.read(topic.since())
        said = {order.id: book.answers.get(order.id) for order in orders}
        if None not in said.values() or deadline.passed():
            return said
        clock.wait(_LOOK_EVERY_S)
