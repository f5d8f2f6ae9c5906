"""Isolated processes that compute the same batches: no communication, no weight changes.

Knows: pipes, the clock, the work of a replica. Does not know: replicas, servers.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

import torch

from cotswold.host import keep_freed_memory
from cotswold.shards.core.permutation import samples_at
from cotswold.training.async_sgd.replica_task import build_replica_task


class IsolatedProcesses:
    """Processes of one thread each, which compute on request."""

    def __init__(self, processes: int, arguments: Mapping[str, str], batch: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection[object, object]] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, number, dict(arguments), batch), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def rate(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> float:
        """Return samples per second of all processes together; call ``meanwhile`` until they finish."""
        for pipe in self._pipes:
            pipe.send(seconds)
        rates: list[float] = []
        for pipe in self._pipes:
            while not pipe.poll(0):
                meanwhile()
            rates.append(float(str(pipe.recv())))
        return sum(rates)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.send(0.0)
        for process in self._processes:
            process.join()


def _serve(pipe: Connection[object, object], number: int, arguments: Mapping[str, str], batch: int) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    work = build_replica_task(**arguments)
    gradient, step = torch.zeros_like(work.parameters), number
    work.compute(range(batch), gradient)
    pipe.send(True)
    while seconds := pipe.recv():
        samples, began = 0, time.perf_counter()
        while (now := time.perf_counter()) < began + float(str(seconds)):
            gradient.zero_()
            start = step * batch % (work.samples - batch + 1)
            samples += work.compute(samples_at(0, work.samples, start, start + batch), gradient).samples
            step += 2
        pipe.send(samples / (now - began))
