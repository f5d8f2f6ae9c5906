"""Batches as tensors, from the messages of data servers.

Knows: arrays in messages. Does not know: who asked for them, endpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from cotswold.data.making import Batch
from cotswold.errors import MachineError
from cotswold.server import messages as m


def batch_of(
    supplied: m.Supplied, sample_bytes: int, keep: Callable[[np.ndarray], np.ndarray] = lambda array: array
) -> Batch:
    """The tensors of a message: of the arrays in its memory, or what ``keep`` makes of them. Raises
    MachineError for what is no batch of samples of so many bytes."""
    classes = len(supplied.targets) == 1
    try:
        samples, labels = supplied.buffers
        assert isinstance(samples, bytes | bytearray | memoryview), "as messages are read"
        assert isinstance(labels, bytes | bytearray | memoryview), "as messages are read"
        if len(memoryview(samples).cast("B")) != sample_bytes * supplied.shape[-1]:
            raise ValueError(f"{supplied.shape} where samples have {sample_bytes} bytes")
        values = _tensor(samples, np.dtype(np.float32), supplied.shape, keep)
        targets = _tensor(labels, np.dtype(np.int64 if classes else np.float32), supplied.targets, keep)
        return values.permute(3, 2, 0, 1), targets
    except (ValueError, RuntimeError) as error:
        raise MachineError(f"{supplied.server} sent no batch ({error}); is it of another version?") from error


def _tensor(
    buffer: bytes | bytearray | memoryview,
    dtype: np.dtype,
    shape: tuple[int, ...],
    keep: Callable[[np.ndarray], np.ndarray],
) -> torch.Tensor:
    if len(memoryview(buffer).cast("B")) != prod(shape) * dtype.itemsize:
        raise ValueError(f"{memoryview(buffer).nbytes} bytes for {shape}")
    found = np.frombuffer(buffer, dtype).reshape(shape)
    return torch.from_numpy(keep(found) if found.flags.writeable else found.copy())


def window_bytes(shape: tuple[int, int, int]) -> int:
    """Bytes of a sample (channel, y, x) in a batch."""
    return 4 * prod(shape)
