"""Checkpoints written in a thread while training continues.

Knows: one thread, a network filled in that thread. Does not know: the content of a state, when a checkpoint
is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from cotswold.checkpoint import TensorChunk
from cotswold.run import Recorder
from cotswold.training.flat_parameters import FlatParameters
from cotswold.training.models import network_tensors

VECTOR = "vector."
"""The prefix of names of vectors that a checkpoint stores in addition to the network's tensors."""


class AsyncCheckpointWriter:
    """Write checkpoints one after another; on exit wait for all of them.

    Only the writer's thread may use the network.
    """

    def __init__(self, recorder: Recorder, flat: FlatParameters) -> None:
        self._recorder, self._flat = recorder, flat
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._jobs: list[tuple[int | None, Future[Path]]] = []
        """Jobs with their checkpoint number; None for the best checkpoint."""

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is being written or has not been reported by `take`."""
        return bool(self._jobs)

    def save(
        self,
        number: int,
        point: Tensor,
        vectors: Mapping[str, Tensor],
        state: Mapping[str, object],
        more: Sequence[TensorChunk] = (),
    ) -> None:
        """Write a checkpoint of the network at ``point``, further vectors and more tensors, all constant."""
        pieces = chain(self._pieces(point, vectors), more)
        self._begin(number, self._recorder.prepare_save(number, pieces, state, f"sample {number}"))

    def save_best(self, number: int, point: Tensor) -> None:
        """Write the network at ``point`` as the best checkpoint."""
        state = {"position": {"phase": 0, "step": number, "total": number}}
        self._begin(
            None, self._recorder.prepare_save_best(number, self._pieces(point, {}), state, f"sample {number}")
        )

    def take(self) -> list[tuple[int, Path]]:
        """Return the checkpoints written since the last call; raises the errors of the writer thread."""
        done = [each for each in self._jobs if each[1].done()]
        self._jobs = self._jobs[len(done) :]
        return [(number, path) for number, job in done if (path := job.result()) and number is not None]

    def wait(self) -> list[tuple[int, Path]]:
        """Wait until all checkpoints are written, then return them as `take` does."""
        for _, job in self._jobs:
            job.exception()
        return self.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    def _begin(self, number: int | None, write: Callable[[], Path]) -> None:
        self._jobs.append((number, self._thread.submit(write)))

    def _pieces(self, point: Tensor, vectors: Mapping[str, Tensor]) -> Iterator[TensorChunk]:
        self._flat.vector.copy_(point)
        for name, tensor in network_tensors(self._flat.module).items():
            yield TensorChunk(name, tensor)
        for name, tensor in vectors.items():
            yield TensorChunk(f"{VECTOR}{name}", tensor)
