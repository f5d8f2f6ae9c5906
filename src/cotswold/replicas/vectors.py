"""Where the vectors of a replica are: in this process's memory, or on a device.

Knows: tensors, copies between a device and memory. Does not know: what a vector means, messages, servers.

Steps are taken where the parameters are. What goes into messages and comes from them is memory of this
process: where the parameters are there too it is theirs, otherwise numbers are copied.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cotswold.shards.runtime.arithmetic import Array, is_finite

Buffer = bytes | bytearray | memoryview


class Vectors(Protocol):
    """What is done with vectors ``(size,)`` that are all in one place."""

    def put(self, part: Tensor, buffer: Buffer) -> None:
        """Write what came in a message into a part of a vector; the buffer is not read afterwards."""
        ...

    def give(self, vector: Tensor) -> Array:
        """The numbers of a vector for messages; they stay as they are as long as the vector does, or until
        two others were given."""
        ...

    def is_finite(self, vector: Tensor) -> bool:
        """Whether all numbers are finite, and so is the sum of their squares in their own type."""
        ...


class HostVectors:
    """Vectors in this process's memory, which messages are made of."""

    def put(self, part: Tensor, buffer: Buffer) -> None:
        """As `Vectors.put`."""
        numbers = part.numpy()
        numbers[:] = np.frombuffer(buffer, numbers.dtype)

    def give(self, vector: Tensor) -> Array:
        """The vector's own memory."""
        found: Array = vector.numpy()
        return found

    def is_finite(self, vector: Tensor) -> bool:
        """As `Vectors.is_finite`."""
        return is_finite(vector.numpy())


class DeviceVectors:
    """Vectors on a device, each as ``like`` is. Those that are given lie in memory that CUDA reaches by
    itself (pinned); what is put needs not, for its copy passes through such memory of the driver's."""

    def __init__(self, like: Tensor) -> None:
        is_cuda = like.device.type == "cuda"
        self._given = [torch.empty(like.shape, dtype=like.dtype, pin_memory=is_cuda) for _ in range(2)]
        """In turn: the newer one last."""
        self._dtype = self._given[0].numpy().dtype

    def put(self, part: Tensor, buffer: Buffer) -> None:
        """As `Vectors.put`."""
        numbers = np.frombuffer(buffer, self._dtype)
        part.copy_(torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy()))

    def give(self, vector: Tensor) -> Array:
        """A copy."""
        self._given.reverse()
        found: Array = self._given[-1].copy_(vector).numpy()
        return found

    def is_finite(self, vector: Tensor) -> bool:
        """As `Vectors.is_finite`."""
        norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
        return norm * norm < float(torch.finfo(vector.dtype).max)


def vectors_like(parameters: Tensor) -> Vectors:
    """Those that are where these parameters are."""
    return HostVectors() if parameters.device.type == "cpu" else DeviceVectors(parameters)
