"""
The indexes of a sink's routes: found, made when first needed, widened, made anew.

::

    <route>       -> <route>-<n>      searched, and written
    <route>-next  -> <route>-<n+1>    written too, as long as a rebuild fills it

Every write goes through an alias, and only through an alias: an index that someone
dropped is never made again by a write that guesses its fields. Before each batch the
aliases are looked up, so each batch that begins after a rebuild's index was made goes
there too, and whatever earlier batches carried lies below the rebuild's snapshot.

How a sink notices that an index is not the one that it has written.

An index has an id, which the server chose when it was made. The ids of a sink's indexes
stand in a file beside its checkpoint, which says what they were given. An index with
another id was made anew, was restored from a copy, or the alias was put over another
one: what the old one had need not be there. A rebuild's index is no such case: it lists
those whose place it takes.

The rows are asked for, the file forgets the route, and only then the index is made: who
ends in between asks once more, or has asked. An index that the file does not know is
taken as it is.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from opensearchpy import OpenSearch
from opensearchpy.exceptions import RequestError

from towpath.settings import Route, SearchOptions
from towpath.sinks.change import Change
from towpath.sinks.errors import (
    ForeignIndexError,
    IndexGoneError,
    SearchRefusedError,
    ShapeUnknownError,
)
from towpath.sinks.ports import Repairs
from towpath.sinks.state.files import KnownIds
from towpath.sinks.tally import Floors
from towpath.sinks.targets.search.client import Standing, indexes_of, translated
from towpath.sinks.targets.search.schema import (
    FLOOR_MEMO,
    Described,
    FieldSource,
    alias_body,
    field_at,
    index_body,
    index_name,
    is_own,
    next_alias,
    pieces,
    replication,
)

_log = structlog.get_logger("towpath.sinks.search")


@dataclass(frozen=True, slots=True)
class IndexWatch:
    """
    What is needed to notice that an index is another one, and to cure it.

    Attributes:
        file: Where to keep the ids, in the sink's own folder.
        repairs: Has rows read anew.
    """

    file: Path
    repairs: Repairs


class KnownIndexes:
    """The ids of one sink's indexes."""

    def __init__(self, watch: IndexWatch | None) -> None:
        """Describe where they are kept; without that, for as long as we run."""
        self._watch = watch
        self._ids = KnownIds(watch.file if watch else None)

    def recall(self) -> None:
        """Read what was known."""
        self._ids.recall()

    def loss(self, route: str, found: Standing | None) -> str | None:
        """Say why the index of a route cannot hold what was written, if so."""
        known = self._ids.of(route)
        if known is None:
            return None
        if found is None:
            return "its index was dropped"
        if known == found.id or known in found.follows:
            return None
        return f"{found.name} is not the index that was written"

    def ask(self, route: str, why: str) -> None:
        """
        Have the rows of a route read anew, and forget its index.

        Raises:
            UnavailableError: They are not known to be asked for; try again.
        """
        watch = self._watch
        is_asked = watch is not None and watch.repairs.request_all(route, why)
        _log.warning("index lost rows", route=route, why=why, asked_for_rows=is_asked)
        self._ids.forget(route)

    def learn(self, route: str, found: Standing) -> None:
        """Know an index from now on."""
        self._ids.learn(route, found.id)


_EXISTS: Final = "resource_already_exists_exception"


class Indexes:
    """What is known of each route's indexes, their floor included."""

    def __init__(
        self,
        client: OpenSearch,
        routes: tuple[Route, ...],
        source: FieldSource,
        options: SearchOptions,
        watch: IndexWatch | None = None,
    ) -> None:
        self._client = client
        self._routes = {route.name: route for route in routes}
        self._source = source
        self._options = options
        self._known = KnownIndexes(watch)
        self._fields: dict[str, frozenset[str]] = {}
        self._described: dict[str, Described] = {}
        self._left_out: dict[str, set[str]] = defaultdict(set)
        self._awaited: dict[str, frozenset[str]] = defaultdict(frozenset)
        self._behind: Mapping[str, Standing] = {}
        self._outdated: dict[str, tuple[str, ...]] = {}
        self.floors = Floors()
        self.may_make = True

    def recall(self) -> None:
        """Learn what was known of the indexes when the sink ran last."""
        self._known.recall()

    def look(self) -> None:
        """
        Find out which indexes there are.

        One that has vanished is made anew, and its rows are asked for; those of one
        that is another than before, too.

        Raises:
            ForeignIndexError: An alias is over several indexes.
            UnavailableError: The rows of a lost index are not known to be asked for.
        """
        names = [n for route in self._routes for n in self._both(route)]
        before, self._behind = self._behind, indexes_of(self._client, names)
        for route in self._routes:
            why = self._known.loss(route, self._behind.get(route))
            if why is not None:
                self._known.ask(route, why)
            if route in self._fields and (why or self._has_moved(route, before)):
                # Should it fail, the next batch sees to it.
                del self._fields[route]
                self.ensure(route)

    def aliases(self, route: str) -> tuple[str, ...]:
        """Return where a route's documents go."""
        following = next_alias(route)
        return (route, following) if following in self._behind else (route,)

    def behind(self, route: str) -> tuple[str, ...]:
        """Return the indexes that hold a route's documents."""
        return tuple(standing.name for standing in self.standing(route))

    def standing(self, route: str) -> tuple[Standing, ...]:
        """Return more of these indexes; the one that is being filled comes last."""
        return tuple(self._behind[n] for n in self._both(route) if n in self._behind)

    def known(self) -> tuple[str, ...]:
        """Return the routes whose indexes were looked at or made."""
        return tuple(self._fields)

    def prepare(self, changes: Sequence[Change]) -> Sequence[Change]:
        """
        See that every route of the changes has its index, with their columns.

        Returns:
            The changes, without columns that their table has dropped since.

        Raises:
            ShapeUnknownError: The relay has not announced the table, or a column, yet.
        """
        strange: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            if change.route not in self._fields:
                self.ensure(change.route)
            if self._unknown(change):
                strange[change.route].append(change)
        if strange:
            self._source.refresh()
        for route, told in strange.items():
            if self._source.described(self._routes[route]) != self._described[route]:
                self.ensure(route)
            self._await_announcement(route, told)
        return [self._without_dropped(c) for c in changes] if strange else changes

    def _unknown(self, change: Change) -> frozenset[str]:
        """Return the columns of a change that its index has no field for."""
        if change.row is None:
            return frozenset()
        return frozenset(change.row) - self._fields[change.route]

    def _is_older(self, change: Change) -> bool:
        """Tell whether a change was made before the announced shape held."""
        return change.position < self._described[change.route].since

    def _await_announcement(self, route: str, changes: Iterable[Change]) -> None:
        """
        Let a batch come again, once, that may have overtaken its announcement.

        After that, columns that nobody has announced are left to the index to refuse.
        """
        since = self._described[route].since
        newer = [self._unknown(c) for c in changes if not self._is_older(c)]
        names = frozenset().union(*newer) - self._awaited[route]
        if since and names:
            self._awaited[route] |= names
            message = f"columns of {route} are not announced yet: {', '.join(names)}"
            raise ShapeUnknownError(message)

    def _without_dropped(self, change: Change) -> Change:
        """Leave out columns that the table has dropped after the change."""
        unknown = self._unknown(change)
        if not unknown or not self._is_older(change):
            return change
        for name in sorted(unknown - self._left_out[change.route]):
            self._left_out[change.route].add(name)
            _log.warning(
                "column left out: the source no longer has it",
                route=change.route,
                column=name,
            )
        row = {n: v for n, v in (change.row or {}).items() if n not in unknown}
        return change._replace(
            row=row, unchanged=change.unchanged & self._fields[change.route]
        )

    def ensure(self, route: str) -> None:
        """
        Create the index of a route, or give it the fields that it lacks.

        Raises:
            ShapeUnknownError: The relay has not announced the table yet.
            KeylessTableError: The table has no primary key.
            DocumentFieldsError: The aggregate's events give its document no fields.
            ForeignIndexError: An index is there that no sink has made.
        """
        described = self._source.described(self._routes[route])
        with translated():
            if route not in self._behind:
                self._create(route, described)
            mappings = [self._fitted(index, described) for index in self.behind(route)]
            kept = [frozenset(mapping["properties"]) for mapping in mappings]
            for mapping in mappings:
                self.floors.learn(route, mapping.get("_meta", {}).get(FLOOR_MEMO))
            self.remember_floor(route)
        self._known.learn(route, self._behind[route])
        # While a rebuild fills an index, it lacks what the table has dropped before.
        self._fields[route] = frozenset(described.fields) | frozenset.intersection(
            *kept
        )
        self._described[route] = described

    def remember_floor(self, route: str) -> None:
        """Have every index of a route remember its floor, if there is one."""
        floor = self.floors.of(route)
        for index in self.behind(route) if floor is not None else ():
            found = self._client.indices.get_mapping(index=index)[index]["mappings"]
            memo = found.get("_meta", {})
            if memo.get(FLOOR_MEMO, "") < floor:
                body = {"_meta": {**memo, FLOOR_MEMO: floor}}
                self._client.indices.put_mapping(index=index, body=body)

    def _both(self, route: str) -> tuple[str, str]:
        return route, next_alias(route)

    def _has_moved(self, route: str, before: Mapping[str, Standing]) -> bool:
        """Tell whether other indexes stand behind a route than before."""
        return _ids(self._both(route), before) != _ids(self._both(route), self._behind)

    def _create(self, route: str, described: Described) -> None:
        if not self.may_make:
            message = f"{route} has no index yet, or has lost it"
            raise IndexGoneError(message)
        index = index_name(route)
        body = index_body(described.fields, self._options, {})
        try:
            self._client.indices.create(
                index=index, body={**body, "aliases": {route: alias_body()}}
            )
        except RequestError as error:
            if error.error != _EXISTS:
                raise
            message = f"the index {index} is there without its alias"
            raise ForeignIndexError(message) from error
        self._behind = {**self._behind, **indexes_of(self._client, (route,))}

    def _fitted(self, index: str, described: Described) -> dict[str, Any]:
        """Give an index what it lacks, and return its mapping of before."""
        found: dict[str, Any]
        found = self._client.indices.get_mapping(index=index)[index]["mappings"]
        if not is_own(found):
            message = f"no sink has made the index {index}"
            raise ForeignIndexError(message)
        self._widen(index, described, found["properties"])
        body = {"index": replication(self._options)}
        self._client.indices.put_settings(index=index, body=body)
        return found

    def _widen(
        self, index: str, described: Described, present: Mapping[str, Any]
    ) -> None:
        """Add fields; one of another type than the index has stays as it is."""
        lacking = [
            (path, piece)
            for path, piece in pieces(described.fields)
            if field_at(present, path) != field_at(described.fields, path)
        ]
        outdated = []
        for path, piece in lacking:
            try:
                self._client.indices.put_mapping(
                    index=index, body={"properties": piece}
                )
            except RequestError as error:
                if path.partition(".")[0] not in present:
                    message = f"the index {index} takes no field {path}: {error.error}"
                    raise SearchRefusedError(message) from error
                outdated.append(path)
        self._tell_outdated(index, tuple(outdated), described.name)

    def _tell_outdated(self, index: str, fields: tuple[str, ...], whose: str) -> None:
        """Say once that only a rebuild brings fields up to date."""
        if fields and self._outdated.get(index) != fields:
            _log.warning(
                "fields have another type by now: rebuild the index",
                index=index,
                fields=fields,
                of=whose,
            )
        self._outdated[index] = fields


def _ids(names: Iterable[str], behind: Mapping[str, Standing]) -> list[str | None]:
    return [behind[name].id if name in behind else None for name in names]
