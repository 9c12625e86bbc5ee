"""
Has single keys erased by the sink itself: an order in its dead-letter topic.

So nobody but the sink writes to its target, and no batch is under way meanwhile. An
order that is not answered in time is withdrawn: nothing is erased later, unseen.
"""

import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from towpath.schemas.clock import Clock
from towpath.settings import Settings, Sink
from towpath.sinks.dead_letter_topic import DeadLetterTopic
from towpath.sinks.dead_letters.asking import ask_orders
from towpath.sinks.dead_letters.letter import Answer, Matter, Order, Verb

# A record of Kafka takes them, and a statement of the warehouse.
KEYS_AT_ONCE: Final = 100
# A warehouse may be in the middle of a batch.
_WITHIN_S: Final = 120.0

_WITHDRAWN: Final = (
    "the sink did not answer, and the order was withdrawn: start the sink"
)


class OrderedEraser:
    """Erases keys of one sink."""

    def __init__(self, settings: Settings, sink: Sink, clock: Clock) -> None:
        self._settings = settings
        self._sink = sink
        self._clock = clock

    def erase(self, route: str, keys: Sequence[str], *, is_read_again: bool) -> str:
        """
        Have keys erased; return why that was not done, or nothing.

        Args:
            route: Whose they are.
            keys: As the target has them.
            is_read_again: Whether the source's table can have them: then the sink asks
                for their rows.

        Raises:
            UnavailableError: The broker does not answer.
        """
        (topic,) = {one.topic for one in self._sink.route if one.name == route}
        matter = Matter(topic, None)
        orders = [
            Order(
                uuid.uuid4().hex, Verb.ERASE, matter, route, tuple(some), is_read_again
            )
            for first in range(0, len(keys), KEYS_AT_ONCE)
            if (some := keys[first : first + KEYS_AT_ONCE])
        ]
        with closing(DeadLetterTopic(self._settings, self._sink.name)) as letters:
            said = ask_orders(letters, orders, self._clock, _WITHIN_S)
            for order, answer in said.items():
                if answer is None:
                    letters.answer(Answer(order, _WITHDRAWN, matter))
        if None in said.values():
            return _WITHDRAWN
        refused = (one.text for one in said.values() if isinstance(one, Answer))
        return next(refused, "")
