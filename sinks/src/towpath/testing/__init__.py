"""
What the author of a sink tests it with: the contract that every sink keeps.

A test module subclasses ``ContractSuite`` and gives a fixture ``target`` that lends a
``SinkTarget``. Whatever is duplicated, reordered, replayed or split: the newest
position wins, a delete is remembered, and a row that lacks columns is merged and never
guessed. Nothing here imports pytest; it needs only to find the classes.
"""

from towpath.testing.changes import (
    READ,
    apply,
    at,
    floor,
    gone,
    label,
    live,
    order,
    sweep,
)
from towpath.testing.suite import ContractSuite
from towpath.testing.target import (
    LABELS,
    ORDERS,
    SinkTarget,
    StaticRelations,
    announced,
    lend,
    memory_target,
    normal,
    two_routes,
)

__all__ = [
    "LABELS",
    "ORDERS",
    "READ",
    "ContractSuite",
    "SinkTarget",
    "StaticRelations",
    "announced",
    "apply",
    "at",
    "floor",
    "gone",
    "label",
    "lend",
    "live",
    "memory_target",
    "normal",
    "order",
    "sweep",
    "two_routes",
]
