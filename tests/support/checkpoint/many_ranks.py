"""Ranks as threads of one process, and ranks as processes.

Knows: how values are exchanged. Does not know: the work of the ranks.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from cotswold.host import Ranks

PATIENCE_SECONDS = 20
"""Seconds after which a waiting rank is alone."""

T = TypeVar("T")


class Thread:
    """One of several threads that meet at a barrier."""

    def __init__(self, rank: int, size: int, meeting: threading.Barrier, values: list[str]) -> None:
        self.rank, self.size = rank, size
        self._meeting, self._values = meeting, values
        self.gathered = 0

    def gather(self, value: object) -> list[Any]:
        self.gathered += 1
        self._values[self.rank] = json.dumps(value)
        self._meeting.wait(PATIENCE_SECONDS)
        found = [json.loads(each) for each in self._values]
        self._meeting.wait(PATIENCE_SECONDS)
        return found


def threads(size: int, work: Callable[[Ranks], T]) -> list[T | BaseException]:
    """Return the results or exceptions of ``size`` ranks; none may have skipped an exchange."""
    meeting, values = threading.Barrier(size), [""] * size
    ranks = [Thread(rank, size, meeting, values) for rank in range(size)]
    results: list[T | BaseException] = [RuntimeError("did not run")] * size

    def run(ranks: Thread) -> None:
        try:
            results[ranks.rank] = work(ranks)
        except BaseException as error:
            results[ranks.rank] = error

    running = [threading.Thread(target=run, args=(each,), name=f"rank {each.rank}") for each in ranks]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert len({each.gathered for each in ranks}) == 1
    return results


def returned(results: list[T | BaseException]) -> list[T]:
    """Return the results of all ranks; raise an exception of one of them."""
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return [each for each in results if not isinstance(each, BaseException)]


class Process:
    """One of several processes: rank 0 receives from each of the others and sends to all."""

    def __init__(self, rank: int, size: int, lines: list[socket.socket]) -> None:
        self.rank, self.size = rank, size
        self._files = [each.makefile("rw") for each in lines]

    def gather(self, value: object) -> list[Any]:
        if self.rank == 0:
            found = [value, *(self._heard(file) for file in self._files)]
            for file in self._files:
                self._tell(file, found)
            return found
        self._tell(self._files[0], value)
        told: list[Any] = self._heard(self._files[0])
        return told

    @staticmethod
    def _tell(file: Any, value: object) -> None:
        file.write(json.dumps(value) + "\n")
        file.flush()

    @staticmethod
    def _heard(file: Any) -> Any:
        line = file.readline()
        if not line:
            raise ConnectionError("a rank has died")
        return json.loads(line)


def processes(size: int, work: Callable[[Ranks], object]) -> list[int]:
    """Fork ``size`` ranks that exit with 0, or with 3 if ``work`` raises; return their process ids."""
    pairs = [socket.socketpair() for _ in range(size - 1)]
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            mine = [hub for hub, _ in pairs] if rank == 0 else [pairs[rank - 1][1]]
            for each in (end for pair in pairs for end in pair):
                if each not in mine:
                    each.close()
            try:
                work(Process(rank, size, mine))
            except BaseException:
                os._exit(3)
            os._exit(0)
        children.append(child)
    for each in (end for pair in pairs for end in pair):
        each.close()
    return children
