"""Assign processes to CPU cores.

Knows: the affinity mask, NUMA nodes, hyperthreads, cores claimed by others. Does not know: what processes do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path


def assign_cores(
    processes: int, root: Path = Path("/"), taken: Set[int | None] = frozenset()
) -> list[int | None]:
    """Assign a core to each process, filling one NUMA node first so that shared data is local.

    On a node, whole cores come before second hyperthreads; the node with the most granted cores comes first.
    Cores in ``taken`` are left out. None leaves a process to the system, if there are more processes than
    cores or no affinity masks.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [None] * processes
    granted = os.sched_getaffinity(0) - taken
    if processes > len(granted):
        return [None] * processes
    nodes = sorted(_nodes(granted, root), key=lambda cores: (-len(cores), min(cores)))
    order = [core for cores in nodes for core in _physical_cores_first(cores, root)]
    return list(order[:processes])


@contextmanager
def claimed_cores(processes: int) -> Iterator[list[int | None]]:
    """Assign cores as `assign_cores`, without those that other processes on this host have claimed.

    The claims last until the block ends, or until this process and its forks end. Linux only.
    """
    taken: set[int | None] = set()
    while True:
        cores = assign_cores(processes, taken=taken)
        with ExitStack() as claims:
            for core in cores:
                if core is not None and not _claim_core(claims, core):
                    taken.add(core)
                    break
            else:
                yield cores
                return


def _claim_core(claims: ExitStack, core: int) -> bool:
    """Claim a core by binding a socket name; false if another process has claimed it.

    The name vanishes with the processes that have the socket.
    """
    claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        claim.bind(f"\0cotswold core {core}")
    except OSError:
        return False
    return True


def pin_to(cores: Iterable[int | None]) -> None:
    """Pin this thread, and threads that it starts later, to these cores; None leaves it to the system."""
    wanted = {core for core in cores if core is not None}
    if wanted:
        os.sched_setaffinity(0, wanted)


@contextmanager
def pinned_to(cores: Iterable[int | None]) -> Iterator[None]:
    """Pin this thread as `pin_to` within the block; memory first written there is local to these cores."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {None}
    pin_to(cores)
    try:
        yield
    finally:
        pin_to(before)


def _nodes(granted: set[int], root: Path) -> list[set[int]]:
    """Granted cores of each NUMA node; all in one if the system names none."""
    lists = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    nodes = [found for path in lists if (found := granted & _parse_cpu_list(path.read_text()))]
    unnamed = granted.difference(*nodes)
    return nodes + ([unnamed] if unnamed else [])


def _physical_cores_first(cores: set[int], root: Path) -> list[int]:
    place = root / "sys/devices/system/cpu"
    seen: set[int] = set()
    first: list[int] = []
    second: list[int] = []
    for core in sorted(cores):
        (second if core in seen else first).append(core)
        path = place / f"cpu{core}/topology/thread_siblings_list"
        seen |= _parse_cpu_list(path.read_text()) if path.exists() else {core}
    return first + second


def _parse_cpu_list(text: str) -> set[int]:
    r"""Parse the kernel's list of numbers.

    >>> sorted(_parse_cpu_list("0-2,8\n"))
    [0, 1, 2, 8]
    """
    ends = [part.partition("-") for part in text.strip().split(",") if part]
    return {core for low, _, high in ends for core in range(int(low), int(high or low) + 1)}
