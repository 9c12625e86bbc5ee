"""
Folds a batch to the newest change per key, whatever the order of its changes.

From the newest change downwards, each column takes the newest value present, until a
full image or a delete is reached. Duplicates are harmless. Columns that every change of
the key left out remain ``unchanged``: the target still has them.

A partial change above a delete of the same batch and partition has no row to be merged
with: it is refused, and the delete remains.

Changes of different partitions are not merged: rows refetched for this sink arrive in a
separate topic, and adding partitions to a topic moves keys. The changes in between may
be in an earlier batch or in a later one; only the target shows which. A partial change
above a whole row or a delete from another partition is kept apart and applied after it.
A partial change above a partial change from another partition is refused, and its row
is refetched.

Changes below the floor of their route are dropped before merging: no change above a
floor depends on one below it.

Hot path: one pass over the batch, and no work for a key with one change.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from towpath.sinks.change import Change, EventRow, Floor, Refusal, Value
from towpath.sinks.key_text import key_text

ABSENT_ROW = "a partial change on a row that is absent or deleted"
OTHER_PARTITION = "a partial change above a partial one from another partition"


_Routed = TypeVar("_Routed", Change, EventRow)


class Folded(NamedTuple):
    """
    At most one change per route and key, and the changes that could not be merged.

    Attributes:
        below: The number of changes below their route's floor.
        after: Partial changes to be applied after ``changes``, which also contains
            changes of their keys.
    """

    changes: tuple[Change, ...]
    refused: tuple[Refusal, ...]
    below: int = 0
    after: tuple[Change, ...] = ()


def newest_per_key(changes: Iterable[Change], floors: Iterable[Floor] = ()) -> Folded:
    """Fold changes of any routes and partitions, in any order."""
    given = list(changes)
    above = changes_above(given, highest_per_route(floors))
    groups: dict[tuple[str, tuple[Value, ...]], list[Change]] = {}
    for change in above:
        group = groups.get((change[0], change[1]))
        if group is None:
            groups[change[0], change[1]] = [change]
        else:
            group.append(change)
    kept: list[Change] = []
    refused: list[Refusal] = []
    after: list[Change] = []
    for group in groups.values():
        if len(group) == 1:
            kept.append(group[0])
        else:
            for same in _by_key_text(group):
                _merge(same, kept, refused, after)
    below = len(given) - len(above)
    return Folded(tuple(kept), tuple(refused), below, tuple(after))


def by_route(items: Iterable[_Routed]) -> dict[str, list[_Routed]]:
    """Group changes or events by their route, in their order."""
    grouped: dict[str, list[_Routed]] = defaultdict(list)
    for item in items:
        grouped[item.route].append(item)
    return dict(grouped)


def highest_per_route(floors: Iterable[Floor]) -> dict[str, str]:
    """Return the highest floor of each route."""
    highest: dict[str, str] = {}
    for floor in floors:
        if floor.position > highest.get(floor.route, ""):
            highest[floor.route] = floor.position
    return highest


def changes_above(
    changes: Sequence[Change], floors: Mapping[str, str]
) -> Sequence[Change]:
    """Drop the changes below the floor of their route."""
    if not floors:
        return changes
    return [c for c in changes if c.position >= floors.get(c.route, "")]


def first_per_event(events: Iterable[EventRow]) -> tuple[EventRow, ...]:
    """Keep the first event of each id in a log."""
    first: dict[tuple[str, str], EventRow] = {}
    for event in events:
        first.setdefault((event.route, event.id), event)
    return tuple(first.values())


def _by_key_text(group: list[Change]) -> Iterable[list[Change]]:
    """Split changes of equal keys by the text of their key: 0.0 equals -0.0."""
    if not any(type(value) is float for value in group[0].key):
        return (group,)
    by_text: dict[str, list[Change]] = defaultdict(list)
    for change in group:
        by_text[key_text(change.key)].append(change)
    return by_text.values()


def _merge(
    group: list[Change], kept: list[Change], refused: list[Refusal], after: list[Change]
) -> None:
    """Merge the changes of one key, and add each result to one of the lists."""
    group.sort(key=_by_position, reverse=True)
    begin: int | None = 0
    while begin is not None:
        begin = _merge_from(group, begin, kept, refused, after)


def _merge_from(
    group: Sequence[Change],
    begin: int,
    kept: list[Change],
    refused: list[Refusal],
    after: list[Change],
) -> int | None:
    """
    Merge a key's changes, the newest first, from the index ``begin`` on.

    Returns:
        The index of an older change from another partition: it and the changes after it
        in the group are to be merged separately. None if all are merged.
    """
    newest = group[begin]
    if not newest.unchanged:
        kept.append(newest)
        return None
    values = dict(newest.row or {})
    missing = set(newest.unchanged)
    for at in range(begin + 1, len(group)):
        older = group[at]
        if missing and older.origin[:2] != newest.origin[:2]:
            merged = newest._replace(row=values, unchanged=frozenset(missing))
            if older.unchanged:
                refused.append(Refusal(merged, OTHER_PARTITION, needs_refetch=True))
                return at
            kept.append(older)
            after.append(merged)
            return None
        if older.row is None:
            # In position order, as a replay needs them.
            refused.extend(
                Refusal(change, ABSENT_ROW, needs_refetch=True)
                for change in reversed(group[begin:])
                if change.position > older.position
            )
            kept.append(older)
            return None
        for name in missing & older.row.keys():
            values[name] = older.row[name]
        missing -= older.row.keys()
        if not older.unchanged:
            break
    kept.append(newest._replace(row=values, unchanged=frozenset(missing)))
    return None


def _by_position(change: Change) -> tuple[str, bool, bool]:
    """
    Order by position.

    At equal positions, a delete and then a full image come first.
    """
    return change.position, change.row is None, not change.unchanged
