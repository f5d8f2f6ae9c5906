"""Operations that succeed on all ranks, or raise on all of them.

Knows: every rank must join every exchange, also a rank that failed. Does not know: how values travel between
processes, what the ranks do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from cotswold import errors
from cotswold.errors import CotswoldError, MachineError

_MAX_NAMED = 3
"""Maximum number of messages, and of ranks per message, in an error; the rest is counted."""


class Ranks(Protocol):
    """The processes of one job. Every rank calls the same methods in the same order.

    An exchange waits as long as the slowest rank writes or reads its part of a checkpoint, minutes for large
    ones. If a rank has died, it raises.
    """

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def gather(self, value: object) -> list[Any]:
        """Gather a JSON-serialisable value of every rank, in rank order, on every rank.

        Tuples may come back as lists.
        """
        ...


class _SingleRank:
    rank, size = 0, 1

    def gather(self, value: object) -> list[Any]:
        return [value]


ALONE: Ranks = _SingleRank()
"""The only rank of a job with one process."""


@contextmanager
def raise_on_all(ranks: Ranks, otherwise: type[CotswoldError]) -> Iterator[None]:
    """Make a block that every rank executes succeed on all ranks, or raise on all of them.

    The error names the ranks that failed. It has the class of the first failure, or ``otherwise`` if that is
    none of Cotswold's. A single process raises the original error. The block itself must not wait for other
    ranks.
    """
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:  # the others must learn of an interrupt, too
        failure = error
    found = ranks.gather(None if failure is None else [type(failure).__name__, *_describe(failure)])
    if failure is not None and (ranks.size == 1 or not isinstance(failure, Exception)):
        raise failure
    failed = {rank: each for rank, each in enumerate(found) if each is not None}
    if failed:
        kind, _, remedy = next(iter(failed.values()))
        raised: type[CotswoldError] = getattr(errors, kind, otherwise)
        if issubclass(raised, MachineError) and all(each[2] == remedy for each in failed.values()):
            causes = _combine_messages({rank: cause for rank, (_, cause, _) in failed.items()}, ranks.size)
            raise raised(causes, remedy=remedy) from failure
        messages = {rank: "; ".join(filter(None, each[1:])) for rank, each in failed.items()}
        raise raised(_combine_messages(messages, ranks.size)) from failure


def _combine_messages(messages: dict[int, str], size: int) -> str:
    """Combine the messages of the ranks that failed; ranks with equal messages share one."""
    alike: dict[str, list[int]] = {}
    for rank, message in messages.items():
        alike.setdefault(message, []).append(rank)
    if [*alike.values()] == [[*range(size)]]:
        return next(iter(alike))
    shown = [f"{_format_ranks(who)}: {message}" for message, who in list(alike.items())[:_MAX_NAMED]]
    more = [f"{len(alike) - _MAX_NAMED} more messages"] if len(alike) > _MAX_NAMED else []
    return "; ".join(shown + more)


def _format_ranks(ranks: list[int]) -> str:
    if len(ranks) > _MAX_NAMED:
        return f"ranks {', '.join(map(str, ranks[:_MAX_NAMED]))} and {len(ranks) - _MAX_NAMED} more"
    return (
        f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    )


def _describe(failure: BaseException) -> tuple[str, str]:
    """Return the cause and the remedy of a failure."""
    if isinstance(failure, MachineError):
        return failure.cause, failure.remedy
    if isinstance(failure, CotswoldError):
        return str(failure), ""
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__, ""
