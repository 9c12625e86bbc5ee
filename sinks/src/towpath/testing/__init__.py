"""
The contract that every sink fulfills, as tests for the author of a sink.

A test module subclasses ``ContractSuite`` and provides a fixture ``target`` that yields
a ``SinkTarget``. The contract holds under any duplication, reordering, replay or split:
the newest position wins, a delete is remembered, and a partial row is merged without
guessing a value. Nothing here imports pytest; pytest only has to find the classes.
"""

from towpath.testing.suite import ContractSuite
from towpath.testing.target import (
    LABELS,
    ORDERS,
    READ,
    SinkTarget,
    StaticRelations,
    announced,
    apply,
    at,
    floor,
    gone,
    label,
    lend,
    live,
    memory_target,
    normal,
    order,
    sweep,
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
