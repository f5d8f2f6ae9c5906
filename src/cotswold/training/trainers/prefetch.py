"""Batches of data servers, each fetched before the decision to take its step.

Knows: batches, their positions. Does not know: who makes batches, what is trained.

If the next batch does not arrive, no rank has begun its step, so the training until then can be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cotswold.errors import MachineError
from cotswold.training.strategies.base import Batch, Batches


class MonitoredBatches(Iterator[Batch]):
    """The batches of a run; ``has_failed`` is True after a batch could not be drawn.

    ``on_batch`` is called with each batch before its step uses it.
    """

    def __init__(self, batches: Iterator[Batch], on_batch: Callable[[Batch], None] | None = None) -> None:
        self._batches, self._on_batch = batches, on_batch
        self.has_failed = False

    def __next__(self) -> Batch:
        try:
            batch = next(self._batches)
        except Exception:
            self.has_failed = True
            raise
        if self._on_batch is not None:
            self._on_batch(batch)
        return batch


class PeekableBatches(Iterator[Batch]):
    """The batches of a run in order, with one batch of lookahead."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self._iterator = batches, iter(batches)
        self._next: tuple[Batch, dict[str, object]] | None = None
        """The fetched batch and its position."""
        self.error: MachineError | None = None
        """The error that prevents the next batch."""

    def fetch(self) -> bool:
        """Fetch the next batch; return True if it is available."""
        if self._next is None:
            place = self._batches.state_dict()
            try:
                self._next = next(self._iterator), place
            except MachineError as error:
                self.error = error
        return self._next is not None

    @property
    def position(self) -> dict[str, object]:
        """The position of the next batch that no step has used."""
        return self._batches.state_dict() if self._next is None else self._next[1]

    def __next__(self) -> Batch:
        if self.error is not None:
            raise self.error
        if self._next is None:
            return next(self._iterator)
        (batch, _), self._next = self._next, None
        return batch
