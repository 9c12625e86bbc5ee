"""How a sink is looked at again: by key where its reader can, else as a whole."""

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from towpath.sinks.ports import SinkReader, StoredRow
from towpath.sinks.verify.forms import Form
from towpath.sinks.verify.suspects import Suspects


@runtime_checkable
class KeyReader(Protocol):
    """A reader that need not go through all keys to find a few."""

    def at(self, route: str, keys: Iterable[str]) -> Iterator[StoredRow]:
        """
        Read the rows of any number of keys, as ``rows`` gives them.

        Raises:
            UnavailableError: The target cannot be reached.
        """


@runtime_checkable
class SampleReader(Protocol):
    """A reader that need not go through all keys to pick a few by chance."""

    def sample(self, route: str, count: int) -> Iterator[StoredRow]:
        """
        Read about so many rows, tombstones among them, as ``rows`` gives them.

        Raises:
            UnavailableError: The target cannot be reached.
        """


def look(reader: SinkReader, route: str, form: Form, suspects: Suspects) -> None:
    """
    See what a sink holds of the open suspects.

    Raises:
        UnavailableError: The target cannot be reached.
    """
    if not isinstance(reader, KeyReader):
        suspects.saw(form.held(row) for row in reader.rows(route))
        return
    keys = (suspect.key for some in suspects.open() for suspect in some)
    suspects.saw(form.held(row) for row in reader.at(route, keys))
