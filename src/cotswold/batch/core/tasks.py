"""Tasks of a worker, and the operations on its sums.

Knows: grants, plans of reductions. Does not know: the execution of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cotswold.wire import Begin, Grant, Reduce

Values = TypeVar("Values")


class Sums(Protocol[Values]):
    """Operations on vectors of the parameters' length."""

    def zeros(self) -> Values:
        """Return a new sum of zeros."""
        ...

    def add(self, left: Values, right: Values) -> Values:
        """Add in place: return the sum in the memory of ``left``."""
        ...

    def parts(self, values: Values, server: str) -> tuple[tuple[int, ...], tuple[object, ...]]:
        """Return the numbers of a server's shards, and a buffer for each; the sum must not change
        afterwards."""
        ...


@dataclass(frozen=True)
class FetchTask:
    """Get the point: the fetches in order, then the commands."""

    begin: Begin


@dataclass(frozen=True)
class PortionTask(Generic[Values]):
    """Compute a portion and add its gradient to ``into`` (None without a gradient)."""

    grant: Grant
    into: Values | None


@dataclass(frozen=True)
class ReduceTask(Generic[Values]):
    """Reduce ``values`` by the plan; the first member's result becomes a new sum."""

    reduce: Reduce
    values: Values


Task = FetchTask | PortionTask[Values] | ReduceTask[Values]
