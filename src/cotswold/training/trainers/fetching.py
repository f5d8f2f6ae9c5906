"""Batches that data servers make, each fetched before the step that learns from it is decided on.

Knows: batches, their places. Does not know: who makes them, what is learnt.

Where the next batch does not come nothing has been done of its step, on no rank: what was learnt until then
can be saved.
"""

from __future__ import annotations

from collections.abc import Iterator

from cotswold.errors import MachineError
from cotswold.training.strategies.base import Batch, Batches


class Drawn(Iterator[Batch]):
    """The batches of a run, and whether one could not be drawn, so that its step has changed nothing."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self.failed = False

    def __next__(self) -> Batch:
        try:
            return next(self._batches)
        except Exception:
            self.failed = True
            raise


class Fetching(Iterator[Batch]):
    """The batches of a run in their order."""

    def __init__(self, batches: Batches) -> None:
        self._batches, self._iterator = batches, iter(batches)
        self._next: tuple[Batch, dict[str, object]] | None = None
        """What was fetched, and its place."""
        self.error: MachineError | None = None
        """Why the next batch does not come."""

    def fetch(self) -> bool:
        """Have the next batch here; whether it came."""
        if self._next is None:
            place = self._batches.state_dict()
            try:
                self._next = next(self._iterator), place
            except MachineError as error:
                self.error = error
        return self._next is not None

    @property
    def place(self) -> dict[str, object]:
        """That of the next batch which no step has had."""
        return self._batches.state_dict() if self._next is None else self._next[1]

    def __next__(self) -> Batch:
        if self.error is not None:
            raise self.error
        if self._next is None:
            return next(self._iterator)
        (batch, _), self._next = self._next, None
        return batch
