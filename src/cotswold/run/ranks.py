"""Ranks that do one thing together: all of them succeed, or all of them raise.

Knows: that every rank must take part in every exchange, also the one that failed. Does not know: how values
travel between processes, what the ranks do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from cotswold import errors
from cotswold.errors import CotswoldError

_NAMED = 3
"""Failures that a message tells; of more it gives the number."""


class Ranks(Protocol):
    """The processes of one job. Every rank calls the same methods in the same order.

    An exchange waits for as long as the slowest rank writes or reads its part of a checkpoint, minutes for
    large ones; where a rank has died it raises.
    """

    @property
    def rank(self) -> int:
        """Which of them this process is, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def gather(self, value: object) -> list[Any]:
        """The values of all ranks, in their order, for every rank; what JSON holds (tuples may come back as
        lists)."""
        ...

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.gather(None)


class _Alone(Ranks):
    rank, size = 0, 1

    def gather(self, value: object) -> list[Any]:
        return [value]


ALONE: Ranks = _Alone()
"""The one rank of a job in one process."""


@contextmanager
def together(ranks: Ranks, otherwise: type[CotswoldError]) -> Iterator[None]:
    """What every rank does in this block succeeds on all of them, or raises on all of them.

    The error names the rank that failed and is of its class, or ``otherwise`` where that is none of
    Cotswold's. A process alone raises what was raised. The block itself must not wait for other ranks.
    """
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:  # the others wait to hear of an interrupt, too
        failure = error
    found = ranks.gather(None if failure is None else [type(failure).__name__, _said(failure)])
    if failure is not None and (ranks.size == 1 or not isinstance(failure, Exception)):
        raise failure
    failed = [(rank, *each) for rank, each in enumerate(found) if each is not None]
    if failed:
        told = "; ".join(f"rank {rank}: {message}" for rank, _, message in failed[:_NAMED])
        more = f"; and {len(failed) - _NAMED} ranks more" if len(failed) > _NAMED else ""
        kind = getattr(errors, failed[0][1], otherwise)
        raise kind(told + more) from failure


def _said(failure: BaseException) -> str:
    if isinstance(failure, CotswoldError):
        return str(failure)
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
