"""Measurement of a parameter server against its limits: updates of shards, gradients from factors.

Knows: the fields of a result. Does not know: the command line, plots, any operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotswold.bench.case import Case, select_cases
from cotswold.bench.effort import QUICK_EFFORT, Effort
from cotswold.bench.kernels.run import ALLOCATOR, Leave, Say, ignore_message, run_in_processes
from cotswold.bench.measure import Document, document
from cotswold.errors import UserError
from cotswold.host import granted_cores
from cotswold.replication.controller.settings import MAX_COPIES

_SECONDS, _QUICK_REPLAY_SECONDS = 3.0, 0.5
"""Seconds of a replay."""
_REPLICATION_GROUPS = ("copies", "links")
"""Groups about numbers of copies."""


def measure_server(
    *,
    threads: Sequence[int] = (),
    only: Sequence[str] = (),
    match: str = "",
    quick: bool = False,
    trace: Path | None = None,
    copies: Sequence[int] = (),
    command: str = "cotswold.bench.measure_server",
    say: Say = ignore_message,
    write: Leave = ignore_message,
) -> Document:
    """Measure a server against its limits, as `cotswold bench server` does.

    Args:
        threads: Numbers of threads, one run each; by default all cores.
        only: Groups to measure. With ``trace`` or ``copies``, no other groups are measured by default.
        match: Text that names must contain.
        quick: Use small sizes and few rounds.
        trace: Directory of a run with recorded traffic to replay.
        copies: Numbers of copies, for the two groups about replication.
        command: Command that the result names.
        say: Called with each measurement's name.
        write: Called with the results so far.

    Returns:
        The results, as JSON values.

    Raises:
        UserError: If no measurement is left, or there is no recorded traffic.
        MachineError: If a measuring process crashes.
    """
    from cotswold.bench.server import replay
    from cotswold.bench.server.cases import GROUPS, cases, quick_cases

    chosen: list[Case[Any]] = []
    every, groups = quick_cases() if quick else cases(), groups_of(only, copies)
    if trace is None or groups:
        chosen = [_with_copies(one, copies) for one in select_cases(every, groups, match, GROUPS)]
    if trace is not None:
        chosen += replay.cases(trace, _QUICK_REPLAY_SECONDS if quick else _SECONDS)
    counts, effort = list(threads) or [granted_cores(environ={})], QUICK_EFFORT if quick else Effort()
    head = document("server", command, dense_size=effort.dense_size, allocator=ALLOCATOR)
    return run_in_processes(head, chosen, counts, effort, say, write)


def groups_of(only: Sequence[str], copies: Sequence[int]) -> list[str]:
    """The groups to measure; all if it is empty.

    >>> groups_of(["failover"], [1, 3]), groups_of(["push,copies"], [1, 3]), groups_of(["push"], [])
    (['failover', 'copies', 'links'], ['push', 'copies'], ['push'])
    """
    named = [each for words in only for each in words.split(",")]
    is_of_copies = not copies or not {*named}.isdisjoint(_REPLICATION_GROUPS)
    return named if is_of_copies else [*named, *_REPLICATION_GROUPS]


def _with_copies(case: Case[Any], copies: Sequence[int]) -> Case[Any]:
    """The case with these numbers of copies, if it is about copies and there are any."""
    if case.group not in _REPLICATION_GROUPS or not copies:
        return case
    if not all(1 <= count <= MAX_COPIES for count in copies):
        raise UserError(f"copies {list(copies)}: a bucket has 1 to {MAX_COPIES}")
    return replace(case, subject=replace(case.subject, counts=tuple(sorted(set(copies)))))
