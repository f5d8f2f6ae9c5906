"""Storage of a replica's vectors: this process's memory, or a device.

Knows: tensors, copies between a device and memory. Does not know: the meaning of a vector, messages,
servers.

Steps are taken on the device of the parameters. Messages use this process's memory: that of the parameters
if they are there, otherwise copies.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cotswold.shards.runtime.arithmetic import Array, is_finite

Buffer = bytes | bytearray | memoryview


class VectorMemory(Protocol):
    """Operations on vectors ``(size,)`` in one place."""

    def write(self, part: Tensor, buffer: Buffer) -> None:
        """Write a message's buffer into a part of a vector; the buffer is not read afterwards."""
        ...

    def read(self, vector: Tensor) -> Array:
        """The numbers of a vector for messages. They stay valid as long as the vector does, or until two
        more vectors were given."""
        ...

    def is_finite(self, vector: Tensor) -> bool:
        """True if all numbers are finite, and the sum of their squares in their own type, too."""
        ...


class HostVectors:
    """Vectors in this process's memory, which messages use directly."""

    def write(self, part: Tensor, buffer: Buffer) -> None:
        """See `VectorMemory.write`."""
        numbers = part.numpy()
        numbers[:] = np.frombuffer(buffer, numbers.dtype)

    def read(self, vector: Tensor) -> Array:
        """The vector's own memory."""
        found: Array = vector.numpy()
        return found

    def is_finite(self, vector: Tensor) -> bool:
        """See `VectorMemory.is_finite`."""
        return is_finite(vector.numpy())


class DeviceVectors:
    """Vectors on a device, like ``like``. The results of `read` are in pinned memory, which CUDA accesses
    directly. The input of `write` need not be: its copy passes through the driver's pinned memory."""

    def __init__(self, like: Tensor) -> None:
        is_cuda = like.device.type == "cuda"
        self._buffers = [torch.empty(like.shape, dtype=like.dtype, pin_memory=is_cuda) for _ in range(2)]
        """Two buffers, used in turn: the newer one last."""
        self._dtype = self._buffers[0].numpy().dtype

    def write(self, part: Tensor, buffer: Buffer) -> None:
        """See `VectorMemory.write`."""
        numbers = np.frombuffer(buffer, self._dtype)
        part.copy_(torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy()))

    def read(self, vector: Tensor) -> Array:
        """A copy in host memory."""
        self._buffers.reverse()
        found: Array = self._buffers[-1].copy_(vector).numpy()
        return found

    def is_finite(self, vector: Tensor) -> bool:
        """See `VectorMemory.is_finite`."""
        norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        return norm * norm < float(torch.finfo(vector.dtype).max)


def vectors_like(parameters: Tensor) -> VectorMemory:
    """Storage on the device of these parameters."""
    return HostVectors() if parameters.device.type == "cpu" else DeviceVectors(parameters)
