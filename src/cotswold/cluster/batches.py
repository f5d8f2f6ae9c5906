"""Messages of data servers as tensors.

Knows: buffers, shapes, types of numbers. Does not know: who sends them, what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import torch

from cotswold.data.making import Batch
from cotswold.errors import MachineError
from cotswold.server.messages import Supplied


def batches_of(
    supplied: Supplied, sample_bytes: int, keep: Callable[[np.ndarray], np.ndarray] = lambda array: array
) -> list[Batch]:
    """The tensors of a message: of the arrays in its memory, or what ``keep`` makes of them. Raises
    MachineError for what is no batches of samples of so many bytes."""
    classes = len(supplied.targets) == 1
    try:
        samples, labels = supplied.buffers
        assert isinstance(samples, bytes | bytearray | memoryview), "as messages are read"
        assert isinstance(labels, bytes | bytearray | memoryview), "as messages are read"
        count = supplied.batches
        if len(memoryview(samples).cast("B")) != sample_bytes * supplied.shape[-1] * count:
            raise ValueError(f"{supplied.shape} where samples have {sample_bytes} bytes")
        values = _tensor(samples, np.dtype(np.float32), (count, *supplied.shape), keep)
        kind = np.dtype(np.int64 if classes else np.float32)
        targets = _tensor(labels, kind, (count, *supplied.targets), keep)
        return list(zip(values.permute(0, 4, 3, 1, 2).unbind(), targets.unbind(), strict=True))
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
