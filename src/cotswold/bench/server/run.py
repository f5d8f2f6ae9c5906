"""What a parameter server does, beside ceilings: updates of shards, gradients from factors.

Knows: what a result holds. Does not know: the command line, plots, any operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cotswold.bench.case import some
from cotswold.bench.effort import QUICK, Effort
from cotswold.bench.kernels.run import ALLOCATOR, Leave, Say, in_processes, unheard
from cotswold.bench.measure import Document, document
from cotswold.host import granted_cores

_SECONDS, _QUICK_SECONDS = 3.0, 0.5
"""Of a replay."""


def measure_server(
    *,
    threads: Sequence[int] = (),
    only: Sequence[str] = (),
    match: str = "",
    quick: bool = False,
    trace: Path | None = None,
    command: str = "cotswold.bench.measure_server",
    say: Say = unheard,
    leave: Leave = unheard,
) -> Document:
    """What a server does, beside ceilings, as `cotswold bench server` measures it.

    With ``trace``, the directory of a run whose traffic was recorded, that is replayed, and nothing else is
    measured but what ``only`` names. Other arguments and errors are those of `measure_kernels`; UserError
    also where nothing was recorded.
    """
    from cotswold.bench.server import replaying
    from cotswold.bench.server.cases import GROUPS, cases, quick_cases

    chosen = []
    if trace is None or only:
        chosen = some(quick_cases() if quick else cases(), only, match, GROUPS)
    if trace is not None:
        chosen += replaying.cases(trace, _QUICK_SECONDS if quick else _SECONDS)
    counts, effort = list(threads) or [granted_cores(environ={})], QUICK if quick else Effort()
    head = document("server", command, dense_size=effort.dense_size, allocator=ALLOCATOR)
    return in_processes(head, chosen, counts, effort, say, leave)
