"""Conversion of data servers' messages to tensors.

Knows: buffers, shapes, types of numbers. Does not know: senders, requests.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from cotswold.data.loading.batching import Batch
from cotswold.errors import MachineError
from cotswold.wire import BatchReply


def batches_of(
    reply: BatchReply, sample_bytes: int, is_lent: Callable[[np.ndarray], bool] = lambda array: True
) -> list[Batch]:
    """The tensors of a message, each with separate storage.

    If ``is_lent`` accepts the array of samples, samples stay in the message's memory, which lives as long as
    any of these tensors. Otherwise they are copied; labels always are. Raises MachineError if the message is
    not batches of samples of ``sample_bytes`` bytes.
    """
    classes = len(reply.targets) == 1
    try:
        samples, labels = reply.buffers
        assert isinstance(samples, bytes | bytearray | memoryview), "the codec delivers buffers"
        assert isinstance(labels, bytes | bytearray | memoryview), "the codec delivers buffers"
        count = reply.batches
        if len(memoryview(samples).cast("B")) != sample_bytes * reply.shape[-1] * count:
            raise ValueError(f"{reply.shape} where samples have {sample_bytes} bytes")
        values = _array(samples, np.dtype(np.float32), (count, *reply.shape))
        kind = np.dtype(np.int64 if classes else np.float32)
        targets = _array(labels, kind, (count, *reply.targets))
        stays = values.flags.writeable and is_lent(values)
        parts = values.reshape(count, *reply.shape)
        return [
            (
                torch.from_numpy(part if stays else part.copy()).permute(3, 2, 0, 1),
                torch.from_numpy(target.copy()),
            )
            for part, target in zip(parts, targets.reshape(count, *reply.targets), strict=True)
        ]
    except (ValueError, RuntimeError) as error:
        raise MachineError(f"{reply.server} sent an invalid batch ({error}); use the same version") from error


def _array(buffer: bytes | bytearray | memoryview, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers in a contiguous buffer; every part of the array refers to the whole."""
    if len(memoryview(buffer).cast("B")) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{memoryview(buffer).nbytes} bytes for {shape}")
    return np.frombuffer(buffer, dtype)


def window_bytes(shape: tuple[int, int, int]) -> int:
    """Bytes of a sample (channel, y, x) in a batch."""
    return 4 * prod(shape)
