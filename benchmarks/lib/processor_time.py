"""Processor time of processes and their threads, as counted by the kernel.

Knows: /proc. Does not know: what the threads do.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def thread_seconds(pid: int) -> dict[int, float]:
    """Return seconds on a core of each existing thread; empty for a process that has exited."""
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
        """Return the seconds of all threads of all processes."""
        return sum(sum(threads.values()) for threads in self._threads())

    def beside_the_busiest(self) -> float:
        """Return the seconds of all threads except the busiest of each process, which computes."""
        return sum(sum(threads.values()) - max(threads.values(), default=0.0) for threads in self._threads())

    def _threads(self) -> list[dict[int, float]]:
        return [
            {thread: now - before.get(thread, 0.0) for thread, now in thread_seconds(pid).items()}
            for pid, before in self._before.items()
        ]
