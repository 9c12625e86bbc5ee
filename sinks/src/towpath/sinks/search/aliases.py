"""Which index stands behind an alias."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from opensearchpy import OpenSearch

from towpath.sinks.errors import ForeignIndexError
from towpath.sinks.search.client import translated
from towpath.sinks.search.mapping import FOLLOWS_MEMO

# As many names as fit the 4 KB that a server takes as the first line of a request.
_NAMES_PER_CALL: Final = 12

_ASKED: Final = {
    "ignore_unavailable": "true",
    "filter_path": "*.aliases,*.mappings._meta,"
    "*.settings.index.uuid,*.settings.index.refresh_interval",
}


class Standing(NamedTuple):
    """
    An index behind an alias.

    Attributes:
        name: What it is called.
        id: What the server knows it by; no other index ever has the same.
        follows: The ids of those whose place it took in rebuilds.
        refresh: How often what was written comes to be found, as the index has it.
    """

    name: str
    id: str
    follows: tuple[str, ...]
    refresh: str


def indexes_of(client: OpenSearch, aliases: Iterable[str]) -> dict[str, Standing]:
    """
    Return the index behind each alias; what is no alias is left out.

    Raises:
        ForeignIndexError: An alias is over several indexes.
        UnavailableError: The index does not answer.
    """
    found: dict[str, Standing] = {}
    wanted = list(aliases)
    for first in range(0, len(wanted), _NAMES_PER_CALL):
        names = wanted[first : first + _NAMES_PER_CALL]
        with translated():
            answer = client.indices.get(index=",".join(names), params=dict(_ASKED))
        for index, said in answer.items():
            standing = _standing(index, said)
            for alias in said.get("aliases", {}):
                other = found.setdefault(alias, standing)
                if other != standing:
                    message = f"the alias {alias} is over {other.name} and {index}"
                    raise ForeignIndexError(message)
    return found


def _standing(index: str, said: Mapping[str, Any]) -> Standing:
    settings = said["settings"]["index"]
    memo = said.get("mappings", {}).get("_meta", {})
    return Standing(
        name=index,
        id=settings["uuid"],
        follows=tuple(memo.get(FOLLOWS_MEMO, ())),
        refresh=settings.get("refresh_interval", ""),
    )
