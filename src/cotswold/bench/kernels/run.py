"""Measurement of every operation with its peak and its baselines.

Knows: the measuring processes, the order, the fields of a result. Does not know: the command line, plots,
any operation.

A new process is started for each number of threads, so that PyTorch, NumPy and JAX all respect it. The
process keeps large blocks of freed memory, as `cotswold train` does, for all implementations alike.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from cotswold.bench.case import Case, select_cases
from cotswold.bench.effort import QUICK_EFFORT, Effort
from cotswold.bench.kernels.baseline_jax import with_jax
from cotswold.bench.measure import Document, document, rounded, threads_in_children
from cotswold.errors import MachineError
from cotswold.host import granted_cores

Say = Callable[[str], None]
Leave = Callable[[Document], None]
ALLOCATOR = "freed blocks of up to 512 MiB stay in the process, as in cotswold train"


def ignore_message(told: object) -> None:
    """Ignore messages."""


def measure_kernels(
    *,
    threads: Sequence[int] = (),
    only: Sequence[str] = (),
    match: str = "",
    quick: bool = False,
    command: str = "cotswold.bench.measure_kernels",
    say: Say = ignore_message,
    write: Leave = ignore_message,
) -> Document:
    """Measure every operation with its peak and baselines, as `cotswold bench kernels` does.

    Processes are started by `multiprocessing`, so a script needs ``if __name__ == "__main__":``.

    Args:
        threads: Numbers of threads, one run each; by default all cores.
        only: Groups to measure; by default all.
        match: Text that names must contain.
        quick: Use small shapes and few rounds, to try the command; do not quote the figures.
        command: Command that the result names.
        say: Called with each measurement's name.
        write: Called with the results so far.

    Returns:
        The results, as JSON values.

    Raises:
        UserError: If no measurement is left.
        MachineError: If a measuring process crashes.
    """
    from cotswold.bench.kernels.cases import GROUPS, cases, quick_cases

    chosen = select_cases(quick_cases() if quick else cases(), only, match, GROUPS)
    counts = list(threads) or [granted_cores(environ={})]
    return kernels(chosen, counts, QUICK_EFFORT if quick else Effort(), command, say, write)


def kernels(
    cases: Sequence[Case[Any]], threads: Sequence[int], effort: Effort, command: str, say: Say, leave: Leave
) -> Document:
    """Measure all cases for each number of threads; ``leave`` is called with the results so far."""
    head = document(
        "kernels",
        command,
        dense_size=effort.dense_size,
        jax=with_jax(),
        allocator=ALLOCATOR,
    )
    return run_in_processes(head, cases, threads, effort, say, leave)


def run_in_processes(
    head: Document,
    cases: Sequence[Case[Any]],
    threads: Sequence[int],
    effort: Effort,
    say: Say,
    leave: Leave,
) -> Document:
    """Complete a result that starts with ``head``: all cases, in a new process for each number of threads."""
    begun, rows = time.monotonic(), list[Document]()

    def so_far(complete: bool) -> Document:
        seconds = rounded(time.monotonic() - begun)
        return {**head, "complete": complete, "whole_seconds": seconds, "rows": rows}

    plan = [
        (count, one)
        for place, count in enumerate(threads)
        for one in cases
        if not (one.is_measured_once and place)
    ]
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
            ProcessPoolExecutor(1, spawn, initializer=_initialise_process, initargs=(count,)) as process,
        ):
            for case in (one for threads, one in plan if threads == count):
                done += 1
                word = "thread" if count == 1 else "threads"
                say(f"{done} of {len(plan)}, on {count} {word}: {case.group}, {case.name}")
                try:
                    rows = process.submit(_rows, case, effort).result()
                except BrokenProcessPool as error:
                    raise MachineError(
                        f"measuring {case.name} ({case.group}) ended its process, by a crash or by lack "
                        "of memory; earlier results are kept; use --only and --match for the rest"
                    ) from error
                yield count, rows


def _initialise_process(threads: int) -> None:
    """Set up a measuring process. JAX uses a thread per core that it may use, and has no other setting."""
    if with_jax() and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    import torch

    from cotswold.host import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)


def _rows(case: Case[Any], effort: Effort) -> list[Document]:
    return [row.as_dict() for row in case.run(effort)]
