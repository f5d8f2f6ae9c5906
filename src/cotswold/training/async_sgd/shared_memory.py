"""A module whose parameters and buffers are in memory shared by several processes of a host.

Knows: blocks of shared memory, the names and shapes of a module's tensors. Does not know: which process
writes.

There are no locks: a write to a tensor is visible to all processes. Linux only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cotswold.errors import MachineError, UserError
from cotswold.host import MemoryBlock

ALIGNED_BYTES = 64
"""The alignment of each tensor, one cache line."""


@dataclass(frozen=True)
class SharedMemoryLocation:
    """The location and content of the memory, as plain values for another process."""

    path: str
    """The block's descriptor in ``/proc``, valid while its process keeps it open."""
    size: int
    """The size in bytes."""
    tensors: str
    """A digest of names, types and shapes."""


class SharedParameters:
    """The parameters and buffers of a module in one block, followed by ``extra_bytes`` of zeros.

    The process that creates the block keeps its values; others `join` with a module of the same tensors,
    whose values are dropped. The memory is freed when the last process exits.
    """

    def __init__(self, module: nn.Module, extra_bytes: int = 0) -> None:
        """Move a module's tensors into shared memory.

        Raises MachineError if this host has no shared memory, UserError for tensors that cannot be shared.
        """
        size = _size(module) + extra_bytes
        try:
            block, self._descriptor = MemoryBlock.new(0, max(size, 1))
        except (AttributeError, OSError) as error:
            raise MachineError(f"{size} bytes of shared memory are not available: {error}") from error
        self.location = SharedMemoryLocation(
            f"/proc/{os.getpid()}/fd/{self._descriptor}", size, _digest(module)
        )
        self._lay(module, block, extra_bytes, keep=True)

    @classmethod
    def join(cls, module: nn.Module, place: SharedMemoryLocation) -> SharedParameters:
        """Attach a module to existing shared memory in another process.

        Raises UserError if the module has other tensors, MachineError if the memory no longer exists.
        """
        if _digest(module) != place.tensors:
            raise UserError(
                f"{type(module).__name__} has other parameters here than where they are shared; its factory "
                "must make the same module in every process"
            )
        try:
            descriptor = os.open(place.path, os.O_RDWR)
        except OSError as error:
            raise MachineError(f"the shared parameters are lost ({error.strerror}); start again") from error
        joined = cls.__new__(cls)
        joined._descriptor, joined.location = descriptor, place
        block = MemoryBlock.map(0, descriptor, place.size)
        joined.close()
        joined._lay(module, block, place.size - _size(module), keep=False)
        return joined

    def close(self) -> None:
        """Close the descriptor, so that no process can join; joined processes keep the memory."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lay(self, module: nn.Module, block: MemoryBlock, extra_bytes: int, *, keep: bool) -> None:
        self.module = module
        start = 0
        with torch.no_grad():
            for tensor in _tensors(module):
                stop = start + tensor.numel() * tensor.element_size()
                if stop > start:  # torch rejects empty buffers
                    view = torch.frombuffer(block.memory[start:stop], dtype=tensor.dtype).view(tensor.shape)
                    if keep:
                        view.copy_(tensor)
                    tensor.data = view
                start += _aligned(stop - start)
        self.extra = block.memory[start : start + extra_bytes]
        """The bytes after the tensors."""


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameters and buffers, each once."""
    yield from module.parameters()
    yield from module.buffers()


def _size(module: nn.Module) -> int:
    return sum(_aligned(each.numel() * each.element_size()) for each in _tensors(module))


def _aligned(count: int) -> int:
    return -(-count // ALIGNED_BYTES) * ALIGNED_BYTES


def _digest(module: nn.Module) -> str:
    named = [*module.named_parameters(), *module.named_buffers()]
    for name, each in named:
        if each.device.type != "cpu":
            raise UserError(f"{name} is on {each.device}; only the CPU's memory is shared: call .cpu()")
    told = [(name, str(each.dtype), list(each.shape)) for name, each in named]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
