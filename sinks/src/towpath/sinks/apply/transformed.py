"""
Transform the rows of a folded batch. No I/O.

Rows are transformed after the fold, because a transform of a partial change needs the
columns that an earlier change of the batch has. A row that the sink must not have
becomes a delete at its position: the guard orders it among all other changes of its
key. If a partial change lacks columns that a transform needs, its row is refetched. A
change with a value that cannot be transformed is refused, as a target would refuse it.
"""

from towpath.sinks.change import (
    ALL_PRESENT,
    Change,
    Refusal,
    UnreadableError,
)
from towpath.sinks.changes.routing import Routes
from towpath.sinks.changes.transforms import LacksColumnsError
from towpath.sinks.fold import Folded


def transform(folded: Folded, routes: Routes) -> Folded:
    """Transform and route the rows of routes with transforms."""
    refused: list[Refusal] = []
    written = [_transformed(change, routes, refused) for change in folded.changes]
    # A change after one that was refused would be merged with an outdated row.
    before = {(one.change.route, one.change.key): one for one in refused}
    after: list[Change | None] = []
    for change in folded.after:
        earlier = before.get((change.route, change.key))
        if earlier is None:
            after.append(_transformed(change, routes, refused))
        else:
            refused.append(earlier._replace(change=change))
    return folded._replace(
        changes=tuple(filter(None, written)),
        refused=(*folded.refused, *refused),
        after=tuple(filter(None, after)),
    )


def _transformed(
    change: Change, routes: Routes, refused: list[Refusal]
) -> Change | None:
    """Return a change as the sink gets it; if it is refused, record why."""
    transforms = routes.transforms.get(change.route)
    routing = routes.routing(change.route)
    if change.row is None or transforms is None or routing is None:
        return change
    try:
        found = transforms.apply(change.row, change.unchanged)
        if found is None:
            return change._replace(row=None, unchanged=ALL_PRESENT)
        row, unchanged = routing.row(found.row), routing.names(found.unchanged)
    except LacksColumnsError as error:
        refused.append(Refusal(change, str(error), needs_refetch=True))
        return None
    except UnreadableError as error:
        refused.append(Refusal(change, str(error)))
        return None
    return change._replace(row=row, unchanged=unchanged)
