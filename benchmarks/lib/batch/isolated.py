"""Isolated processes that compute the same patterns without any communication.

Knows: pipes, the clock. Does not know: clusters.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import torch

from cotswold.shards.core.permutation import PortionPermutation
from lib.batch.network import bunyip


class Alone:
    """Isolated processes of one thread each; `seconds` times a gradient over equal shares of the patterns."""

    def __init__(self, processes: int, samples: int, portion: int, sizes: tuple[int, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection[object, object]] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            words = (theirs, number, processes, samples, portion, sizes)
            process = context.Process(target=_serve, args=words, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def seconds(self) -> float:
        """Return the time of one gradient by all processes at once."""
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()
        return time.perf_counter() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.send(False)
        for process in self._processes:
            process.join()


def _serve(
    pipe: Connection[object, object],
    number: int,
    count: int,
    samples: int,
    portion: int,
    sizes: tuple[int, ...],
) -> None:
    torch.set_num_threads(1)
    work, dealing = bunyip(samples=samples, sizes=sizes), PortionPermutation(0, samples, portion)
    own = [dealing.samples_of(one) for one in range(number, dealing.portions, count)]
    gradient = torch.zeros_like(work.parameters)
    work.add(own[0], gradient)
    pipe.send(True)
    while pipe.recv():
        gradient.zero_()
        for one in own:
            work.add(one, gradient)
        pipe.send(True)
