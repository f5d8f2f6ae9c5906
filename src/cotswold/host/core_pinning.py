"""Which core each of some processes is to stay on.

Knows: the affinity mask, NUMA nodes, cores that are threads of one core, cores that others have taken. Does
not know: what processes do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path


def dealt_cores(
    processes: int, root: Path = Path("/"), taken: Set[int | None] = frozenset()
) -> list[int | None]:
    """A core for each process, those of one NUMA node first, so that what they share is near to them.

    On a node whole cores come before the second threads of a core; the node with the most cores granted comes
    first. ``taken`` are left to others. None, to be left to the system, where there are more processes than
    cores, or no masks.
    """
    if not hasattr(os, "sched_getaffinity"):
        return [None] * processes
    granted = os.sched_getaffinity(0) - taken
    if processes > len(granted):
        return [None] * processes
    nodes = sorted(_nodes(granted, root), key=lambda cores: (-len(cores), min(cores)))
    order = [core for cores in nodes for core in _whole_first(cores, root)]
    return list(order[:processes])


@contextmanager
def claimed_cores(processes: int) -> Iterator[list[int | None]]:
    """As `dealt_cores`, but for cores that others on this host have claimed so.

    They are claimed until the block's end, or that of this process and its forks. On Linux alone.
    """
    taken: set[int | None] = set()
    while True:
        cores = dealt_cores(processes, taken=taken)
        with ExitStack() as claims:
            for core in cores:
                if core is not None and not _is_claimed_by(claims, core):
                    taken.add(core)
                    break
            else:
                yield cores
                return


def _is_claimed_by(claims: ExitStack, core: int) -> bool:
    """Whether nobody has claimed the core before: a name that ends with the processes that have it bound."""
    claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    try:
        claim.bind(f"\0cotswold core {core}")
    except OSError:
        return False
    return True


def stay_on(cores: Iterable[int | None]) -> None:
    """Keep this thread, and those that it starts, on these cores; None leaves it to the system."""
    wanted = {core for core in cores if core is not None}
    if wanted:
        os.sched_setaffinity(0, wanted)


@contextmanager
def staying_on(cores: Iterable[int | None]) -> Iterator[None]:
    """`stay_on` within the block. Memory that is written first there lies near to these cores."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {None}
    stay_on(cores)
    try:
        yield
    finally:
        stay_on(before)


def _nodes(granted: set[int], root: Path) -> list[set[int]]:
    """The granted cores of each NUMA node; all in one where the system names none."""
    lists = sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
    nodes = [found for path in lists if (found := granted & _listed(path.read_text()))]
    unnamed = granted.difference(*nodes)
    return nodes + ([unnamed] if unnamed else [])


def _whole_first(cores: set[int], root: Path) -> list[int]:
    place = root / "sys/devices/system/cpu"
    seen: set[int] = set()
    first: list[int] = []
    second: list[int] = []
    for core in sorted(cores):
        (second if core in seen else first).append(core)
        path = place / f"cpu{core}/topology/thread_siblings_list"
        seen |= _listed(path.read_text()) if path.exists() else {core}
    return first + second


def _listed(text: str) -> set[int]:
    """The numbers of a list such as the kernel writes.

    >>> sorted(_listed("0-2,8\\n"))
    [0, 1, 2, 8]
    """
    ends = [part.partition("-") for part in text.strip().split(",") if part]
    return {core for low, _, high in ends for core in range(int(low), int(high or low) + 1)}
