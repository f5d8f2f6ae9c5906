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

_SHOWN = 3
"""Messages, and ranks of each, that an error shows; of more it gives the number."""


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


class _Alone:
    rank, size = 0, 1

    def gather(self, value: object) -> list[Any]:
        return [value]


ALONE: Ranks = _Alone()
"""The one rank of a job in one process."""


@contextmanager
def raise_on_all(ranks: Ranks, otherwise: type[CotswoldError]) -> Iterator[None]:
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
    failed = {rank: each for rank, each in enumerate(found) if each is not None}
    if failed:
        kind, _ = next(iter(failed.values()))
        told = _told({rank: message for rank, (_, message) in failed.items()}, ranks.size)
        raise getattr(errors, kind, otherwise)(told) from failure


def _told(messages: dict[int, str], size: int) -> str:
    """One message of the ranks that failed; those that say the same are named together."""
    alike: dict[str, list[int]] = {}
    for rank, message in messages.items():
        alike.setdefault(message, []).append(rank)
    if [*alike.values()] == [[*range(size)]]:
        return next(iter(alike))
    shown = [f"{_named(who)}: {message}" for message, who in list(alike.items())[:_SHOWN]]
    more = [f"{len(alike) - _SHOWN} messages more"] if len(alike) > _SHOWN else []
    return "; ".join(shown + more)


def _named(who: list[int]) -> str:
    if len(who) > _SHOWN:
        return f"ranks {', '.join(map(str, who[:_SHOWN]))} and {len(who) - _SHOWN} more"
    return f"rank {who[0]}" if len(who) == 1 else f"ranks {', '.join(map(str, who[:-1]))} and {who[-1]}"


def _said(failure: BaseException) -> str:
    if isinstance(failure, CotswoldError):
        return str(failure)
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
