"""Checkpoints that are written in a thread, while whoever trains goes on.

Knows: one thread, a network that is filled where it is written. Does not know: what is in a state, when one
is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from cotswold.checkpoint import TensorChunk
from cotswold.run import Recorder
from cotswold.training.flat_parameters import FlatModule
from cotswold.training.models import network_tensors

VECTOR = "vector."
"""Before the names of vectors that a checkpoint has besides the network's tensors."""


class Saving:
    """One after the other; to be left in the end, when all are written. The network is the thread's alone."""

    def __init__(self, recorder: Recorder, flat: FlatModule) -> None:
        self._recorder, self._flat = recorder, flat
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._jobs: list[tuple[int | None, Future[Path]]] = []
        """With what checkpoints are numbered by; None for the best."""

    @property
    def is_busy(self) -> bool:
        """Whether one is being written, or was not told of."""
        return bool(self._jobs)

    def save(
        self,
        number: int,
        point: Tensor,
        vectors: Mapping[str, Tensor],
        state: Mapping[str, object],
    ) -> None:
        """Write a checkpoint of the network at ``point`` and of further vectors, which must not change."""
        pieces = self._pieces(point, vectors)
        self._begin(number, self._recorder.prepare_save(number, pieces, state, f"sample {number}"))

    def save_best(self, number: int, point: Tensor) -> None:
        """Write the network at ``point`` among the best."""
        state = {"position": {"phase": 0, "step": number, "total": number}}
        self._begin(
            None, self._recorder.prepare_save_best(number, self._pieces(point, {}), state, f"sample {number}")
        )

    def take(self) -> list[tuple[int, Path]]:
        """Checkpoints that are written since it was asked last; raises what writing raised."""
        done = [each for each in self._jobs if each[1].done()]
        self._jobs = self._jobs[len(done) :]
        return [(number, path) for number, job in done if (path := job.result()) and number is not None]

    def wait(self) -> list[tuple[int, Path]]:
        """The same, once all are written."""
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
