"""What a parameter server does, beside ceilings: updates of shards, gradients from factors.

Knows: what a result holds. Does not know: the command line, plots, any operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotswold.bench.case import Case, some
from cotswold.bench.effort import QUICK, Effort
from cotswold.bench.kernels.run import ALLOCATOR, Leave, Say, in_processes, unheard
from cotswold.bench.measure import Document, document
from cotswold.errors import UserError
from cotswold.host import granted_cores
from cotswold.replication.controller.settings import MAX_COPIES

_SECONDS, _QUICK_SECONDS = 3.0, 0.5
"""Of a replay."""
_OF_COPIES = ("copies", "links")
"""Groups that are about numbers of copies."""


def measure_server(
    *,
    threads: Sequence[int] = (),
    only: Sequence[str] = (),
    match: str = "",
    quick: bool = False,
    trace: Path | None = None,
    copies: Sequence[int] = (),
    command: str = "cotswold.bench.measure_server",
    say: Say = unheard,
    leave: Leave = unheard,
) -> Document:
    """What a server does, beside ceilings, as `cotswold bench server` measures it.

    With ``trace``, the directory of a run whose traffic was recorded, that is replayed, and nothing else is
    measured but what ``only`` names; with ``copies`` servers that keep so many are, likewise, or of their two
    groups what ``only`` names. Other arguments and errors are those of `measure_kernels`; UserError also
    where nothing was recorded.
    """
    from cotswold.bench.server import replaying
    from cotswold.bench.server.cases import GROUPS, cases, quick_cases

    chosen: list[Case[Any]] = []
    every, groups = quick_cases() if quick else cases(), groups_of(only, copies)
    if trace is None or groups:
        chosen = [_with(one, copies) for one in some(every, groups, match, GROUPS)]
    if trace is not None:
        chosen += replaying.cases(trace, _QUICK_SECONDS if quick else _SECONDS)
    counts, effort = list(threads) or [granted_cores(environ={})], QUICK if quick else Effort()
    head = document("server", command, dense_size=effort.dense_size, allocator=ALLOCATOR)
    return in_processes(head, chosen, counts, effort, say, leave)


def groups_of(only: Sequence[str], copies: Sequence[int]) -> list[str]:
    """Those that are measured; all where it names none.

    >>> groups_of(["failover"], [1, 3]), groups_of(["push,copies"], [1, 3]), groups_of(["push"], [])
    (['failover', 'copies', 'links'], ['push', 'copies'], ['push'])
    """
    named = [each for words in only for each in words.split(",")]
    is_of_copies = not copies or not {*named}.isdisjoint(_OF_COPIES)
    return named if is_of_copies else [*named, *_OF_COPIES]


def _with(case: Case[Any], copies: Sequence[int]) -> Case[Any]:
    """The same, of these numbers of copies, where it is about copies and there are some."""
    if case.group not in _OF_COPIES or not copies:
        return case
    if not all(1 <= count <= MAX_COPIES for count in copies):
        raise UserError(f"copies {list(copies)}; a bucket has 1 to {MAX_COPIES}")
    return replace(case, subject=replace(case.subject, counts=tuple(sorted(set(copies)))))
