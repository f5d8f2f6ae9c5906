"""Processor time of processes and their threads, as the kernel counts it.

Knows: /proc. Does not know: what the threads do.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def thread_seconds(pid: int) -> dict[int, float]:
    """Seconds on a core of each thread that is there; none for a process that is gone."""
    found = {}
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


class Used:
    """Processor time of some processes since this was made."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._before = {pid: thread_seconds(pid) for pid in pids}

    def seconds(self) -> float:
        """Of all threads of all processes."""
        return sum(sum(threads.values()) for threads in self._threads())

    def beside_the_busiest(self) -> float:
        """Of all threads but the busiest one of each process, which is the one that computes."""
        return sum(sum(threads.values()) - max(threads.values(), default=0.0) for threads in self._threads())

    def _threads(self) -> list[dict[int, float]]:
        return [
            {thread: now - before.get(thread, 0.0) for thread, now in thread_seconds(pid).items()}
            for pid, before in self._before.items()
        ]
