"""What a worker is to do next, and the vectors that it adds up in.

Knows: grants, plans of reductions. Does not know: who does it, how.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from cotswold.wire import Begin, Grant, Reduce

Values = TypeVar("Values")


class Sums(Protocol[Values]):
    """Vectors as long as the parameters."""

    def zeros(self) -> Values:
        """A new sum."""
        ...

    def add(self, left: Values, right: Values) -> Values:
        """The sum, in the memory of ``left``."""
        ...

    def parts(self, values: Values, server: str) -> tuple[tuple[int, ...], tuple[object, ...]]:
        """The numbers of a server's shards, and a buffer for each; the sum does not change any more."""
        ...


@dataclass(frozen=True)
class FetchTask:
    """Get the point: the fetches in their order, then the commands."""

    begin: Begin


@dataclass(frozen=True)
class PortionTask(Generic[Values]):
    """Compute a portion, and add its gradient to ``into`` (None where none is wanted)."""

    grant: Grant
    into: Values | None


@dataclass(frozen=True)
class ReduceTask(Generic[Values]):
    """Reduce ``values`` by the plan; what the first member has then is a sum of its own."""

    reduce: Reduce
    values: Values


Task = FetchTask | PortionTask[Values] | ReduceTask[Values]
