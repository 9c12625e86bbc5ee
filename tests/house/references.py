"""
The references between objects of the source, and the cycles that they form.

References are followed through attributes, slots, containers, partial functions, bound
methods and closures. A walk ends at classes, modules and objects of other code.
"""

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

# Objects that only contain others.
_CARRIERS: Final = (
    dict, list, tuple, set, frozenset, deque, defaultdict, OrderedDict,
    functools.partial, types.MappingProxyType, types.MethodType, types.FunctionType,
    types.CellType, types.GeneratorType,
)  # fmt: skip


def reference_graph(
    root: object, package: str = "towpath."
) -> dict[int, tuple[object, ...]]:
    """
    Return each of a package's objects that a root reaches, and its references, by id.

    The first object of an entry is the holder; the rest are the objects it refers to.
    """
    found: dict[int, tuple[object, ...]] = {}
    waiting = list(_nearest(root, package))
    while waiting:
        holder = waiting.pop()
        if id(holder) not in found:
            held = tuple(_nearest(holder, package))
            found[id(holder)] = (holder, *held)
            waiting += held
    return found


def cycles(found: Mapping[int, tuple[object, ...]]) -> list[list[str]]:
    """Return the class names in each cycle of two or more objects."""
    graph = {
        number: [id(held) for held in objects[1:] if id(held) != number]
        for number, objects in found.items()
    }
    return sorted(
        sorted(type(found[number][0]).__name__ for number in component)
        for component in components(graph)
        if len(component) > 1
    )


def components(graph: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Return the strongly connected components of a graph (Kosaraju's algorithm)."""
    order: list[int] = []
    seen: set[int] = set()
    for start in graph:
        order += _postorder(graph, start, seen)
    backwards: dict[int, list[int]] = {number: [] for number in graph}
    for number, others in graph.items():
        for other in others:
            backwards[other].append(number)
    seen = set()
    found = (list(_postorder(backwards, start, seen)) for start in reversed(order))
    return [component for component in found if component]


def _postorder(
    graph: Mapping[int, Iterable[int]], start: int, seen: set[int]
) -> Iterator[int]:
    """
    Yield the unseen nodes that are reachable from a start, each after its successors.
    """
    if start in seen:
        return
    seen.add(start)
    path = [(start, iter(graph[start]))]
    while path:
        number, others = path[-1]
        following = next((other for other in others if other not in seen), None)
        if following is None:
            path.pop()
            yield number
        else:
            seen.add(following)
            path.append((following, iter(graph[following])))


def _nearest(holder: object, package: str) -> Iterator[object]:
    """Yield the package's objects that a holder reaches through containers alone."""
    seen: set[int] = set()
    waiting = _referents(holder)
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if any(c.__module__.startswith(package) for c in type(one).__mro__):
            yield one
        elif type(one) in _CARRIERS:
            waiting += _referents(one)


def _referents(one: object) -> list[object]:
    """Return an object's references; for a function, without its module's globals."""
    if isinstance(one, types.FunctionType):
        return [*(one.__closure__ or ()), one.__defaults__, one.__kwdefaults__]
    return gc.get_referents(one)
