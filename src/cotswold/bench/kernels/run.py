"""Every operation beside its ceiling and its baselines.

Knows: the processes that measure, the order, what a result holds. Does not know: the command line, plots, any
operation.

For each number of threads a process of its own is started, so that PyTorch, NumPy and JAX all keep to it.
Large blocks of freed memory stay in it, as in `cotswold train`, for everybody whom it measures.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from cotswold.bench.case import Case, some
from cotswold.bench.effort import QUICK, Effort
from cotswold.bench.kernels.baseline_jax import with_jax
from cotswold.bench.measure import Document, document, rounded, threads_in_children
from cotswold.errors import MachineError
from cotswold.host import granted_cores

Say = Callable[[str], None]
Leave = Callable[[Document], None]
ALLOCATOR = "freed blocks of up to 512 MiB stay in the process, as in cotswold train"


def unheard(told: object) -> None:
    """For whoever wants to hear nothing meanwhile."""


def measure_kernels(
    *,
    threads: Sequence[int] = (),
    only: Sequence[str] = (),
    match: str = "",
    quick: bool = False,
    command: str = "cotswold.bench.measure_kernels",
    say: Say = unheard,
    leave: Leave = unheard,
) -> Document:
    """Every operation beside its ceiling and baselines, as `cotswold bench kernels` measures it.

    ``threads``: numbers of them, one run each, all cores by default. ``only``: groups. ``match``: a text in
    the name. ``quick``: small shapes and few rounds, to try it, not to quote. ``say`` hears what is measured,
    ``leave`` what is found so far. Processes are started by `multiprocessing`, so a script needs its
    ``if __name__ == "__main__":``. Raises UserError where nothing is left to measure, MachineError.
    """
    from cotswold.bench.kernels.cases import GROUPS, cases, quick_cases

    chosen = some(quick_cases() if quick else cases(), only, match, GROUPS)
    counts = list(threads) or [granted_cores(environ={})]
    return kernels(chosen, counts, QUICK if quick else Effort(), command, say, leave)


def kernels(
    cases: Sequence[Case[Any]], threads: Sequence[int], effort: Effort, command: str, say: Say, leave: Leave
) -> Document:
    """All cases on each number of threads; ``leave`` gets what there is whenever there is more."""
    head = document(
        "kernels",
        command,
        dense_size=effort.dense_size,
        jax=with_jax(),
        allocator=ALLOCATOR,
    )
    return in_processes(head, cases, threads, effort, say, leave)


def in_processes(
    head: Document,
    cases: Sequence[Case[Any]],
    threads: Sequence[int],
    effort: Effort,
    say: Say,
    leave: Leave,
) -> Document:
    """A result that begins with ``head``: cases, each number of threads in a process of its own."""
    begun, rows = time.monotonic(), list[Document]()

    def so_far(complete: bool) -> Document:
        seconds = rounded(time.monotonic() - begun)
        return {**head, "complete": complete, "whole_seconds": seconds, "rows": rows}

    plan = [(count, one) for place, count in enumerate(threads) for one in cases if not (one.once and place)]
    for number, (count, rest) in enumerate(_measured(plan, effort, say)):
        rows.extend({"threads": count, **row} for row in rest)
        leave(so_far(number + 1 == len(plan)))
    return so_far(complete=True)


def _measured(
    plan: Sequence[tuple[int, Case[Any]]], effort: Effort, say: Say
) -> Iterator[tuple[int, list[Document]]]:
    spawn, done = multiprocessing.get_context("spawn"), 0
    for count in dict.fromkeys(count for count, _ in plan):
        with (
            threads_in_children(count),
            ProcessPoolExecutor(1, spawn, initializer=_begin, initargs=(count,)) as process,
        ):
            for case in (one for threads, one in plan if threads == count):
                done += 1
                word = "thread" if count == 1 else "threads"
                say(f"{done} of {len(plan)}, on {count} {word}: {case.group}, {case.name}")
                try:
                    rows = process.submit(_rows, case, effort).result()
                except BrokenProcessPool as error:
                    raise MachineError(
                        f"measuring {case.name} ({case.group}) ended its process, by a crash or for want "
                        "of memory; what was measured before is kept, and --only and --match do the rest"
                    ) from error
                yield count, rows


def _begin(threads: int) -> None:
    """JAX takes a thread for every core that it may use, and no other advice."""
    if with_jax() and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch

    from cotswold.host import keep_freed_bytes

    keep_freed_bytes()
    torch.set_num_threads(threads)


def _rows(case: Case[Any], effort: Effort) -> list[Document]:
    return [row.as_dict() for row in case.run(effort)]
