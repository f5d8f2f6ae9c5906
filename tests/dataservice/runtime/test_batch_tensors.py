"""Batches of a message are independent of each other."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from cotswold.data.loading.batching import Batch
from cotswold.dataservice.runtime.batch_tensors import batches_of
from cotswold.errors import MachineError
from cotswold.wire import BatchReply

SHAPE, COUNT = (2, 3, 1, 4), 3
"""Shape (y, x, channel, image) of each batch, and their number."""


def message(batches: int = COUNT, regress: bool = False) -> BatchReply:
    samples = np.arange(COUNT * 24, dtype=np.float32)
    labels = np.arange(COUNT * 4 * 2, dtype=np.float32) if regress else np.arange(COUNT * 4)
    buffers = bytearray(samples.tobytes()), bytearray(labels.tobytes())
    return BatchReply("s", 1, SHAPE, (4, 2) if regress else (4,), buffers, batches)


@pytest.mark.parametrize("is_lent", [True, False])
@pytest.mark.parametrize("regress", [True, False])
def test_batches_come_one_after_the_other_images_last(is_lent: bool, regress: bool) -> None:
    found = batches_of(message(regress=regress), 24, lambda array: is_lent)
    whole = torch.arange(COUNT * 24, dtype=torch.float32).reshape(COUNT, *SHAPE)
    for number, (samples, labels) in enumerate(found):
        assert torch.equal(samples, whole[number].permute(3, 2, 0, 1)) and samples.stride() == (1, 4, 12, 4)
        wanted = torch.arange(COUNT * 4 * (2 if regress else 1)).reshape(COUNT, 4, -1)[number]
        assert torch.equal(labels.reshape(4, -1), wanted.to(labels.dtype))


def test_each_batch_may_be_changed_in_place_and_kept_by_itself() -> None:
    weight, losses = torch.ones((), requires_grad=True), []
    found = batches_of(message(), 24)
    for samples, _ in found:
        samples.sub_(0.5)
        losses.append((weight * samples).sum())
        assert samples.untyped_storage().nbytes() == 24 * 4, "what is saved is one batch"
    (gradient,) = torch.autograd.grad(sum(losses, torch.zeros(())), [weight])
    assert gradient == sum(float(samples.sum()) for samples, _ in found)
    found[0][0].add_(weight)  # which a part of several views refuses


def test_borrowed_bytes_are_counted_while_any_samples_are_kept_and_labels_keep_nothing() -> None:
    ended: list[int] = []

    def is_lent(array: np.ndarray) -> bool:
        weakref.finalize(array, ended.append, array.nbytes)
        return True

    found: list[Batch] = batches_of(message(), 24, is_lent)
    labels = [each for _, each in found]
    kept = found[1][0]
    del found
    gc.collect()
    assert not ended
    del kept
    gc.collect()
    assert ended == [COUNT * 24 * 4] and len(labels) == COUNT


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_other_bytes_than_the_batches_have_are_an_error(batches: int) -> None:
    with pytest.raises(MachineError, match="s sent an invalid batch"):
        batches_of(message(batches), 24)
