"""Batches that are fetched before their step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cotswold.errors import MachineError
from cotswold.training.strategies.base import Batch
from cotswold.training.trainers.prefetch import PeekableBatches


class _Lost:
    """Two batches, and then a loss of all servers."""

    waited_seconds, epoch_steps = 0.0, 2.0

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[Batch]:
        for number in range(2):
            self.given += 1
            yield Batch(torch.full((1,), float(number)), torch.zeros(1))
        raise MachineError("nobody makes batches")

    def state_dict(self) -> dict[str, object]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, object]) -> None:
        raise AssertionError(f"nothing is resumed: {state}")


def test_the_place_is_that_of_the_batch_that_no_step_has_had() -> None:
    found = PeekableBatches(_Lost())
    assert found.fetch() and found.fetch() and found.position == {"given": 0}
    assert next(found).inputs.item() == 0 and found.position == {"given": 1}
    assert next(found).inputs.item() == 1, "also one that nobody has fetched"


def test_a_request_after_the_last_batch_raises_the_same_error_again() -> None:
    found = PeekableBatches(_Lost())
    assert [next(found).inputs.item() for _ in range(2)] == [0, 1]
    assert not found.fetch() and found.error is not None
    for _ in range(2):
        with pytest.raises(MachineError, match="nobody makes batches"):
            next(found)
