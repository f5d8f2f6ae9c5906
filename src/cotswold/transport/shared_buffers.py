"""Message buffers in memory that two processes of one host map.

Knows: blocks of shared memory, how a process finds another's (``/proc``). Does not know: sockets, messages.

The sender writes into a block and sends its number; the receiver maps the block once and reads there. When
no view and no tensor of the bytes is left, the receiver returns the block.
"""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from cotswold.errors import MachineError
from cotswold.host import MemoryBlock
from cotswold.host.ipc.shared_memory import BlockPool, is_supported
from cotswold.transport.frames import MalformedFrameError, SharedBlock, block_offsets

MIN_BYTES = 1 << 16
"""Shorter messages go through the socket."""


class BufferSender:
    """Blocks of shared memory for messages to one peer; must be closed."""

    def __init__(self) -> None:
        self._pool = BlockPool()
        self._descriptors: dict[int, int] = {}
        self._in_use: dict[int, int] = {}
        self._reserved: dict[int, MemoryBlock] = {}
        """Reserved blocks by the address of their memory."""

    @property
    def in_use_bytes(self) -> int:
        """Bytes of messages that the peer has not returned."""
        return sum(self._in_use.values())

    def reserve(self, count: int) -> memoryview:
        """Return a block's memory, to be sent or released; raise OSError if no memory or descriptor is
        left.
        """
        block = self._acquire(count)
        self._reserved[_address(block.memory)] = block
        return block.memory[:count]

    def release_reserved(self, memory: memoryview) -> None:
        """Release memory from `reserve`; no effect after it was sent."""
        block = self._reserved.pop(_address(memory), None)
        if block is not None:
            self.release(block.number)

    def place(self, buffers: Sequence[memoryview]) -> SharedBlock:
        """Copy the buffers into a block; raise OSError if no memory or descriptor is left.

        If the first buffer is the start of a reserved block, it stays there, and the others follow it.
        """
        starts, count = block_offsets([one.nbytes for one in buffers])
        block = self._reserved.get(_address(buffers[0])) if self._reserved else None
        written = 0
        if block is None or count > block.size:
            block = self._acquire(count)
        else:
            written = 1
            del self._reserved[_address(block.memory)]
            self._in_use[block.number] = count
        for start, one in zip(starts[written:], buffers[written:], strict=True):
            block.memory[start : start + one.nbytes] = one
        return SharedBlock(block.number, self._descriptors[block.number], block.size)

    def _acquire(self, count: int) -> MemoryBlock:
        block, descriptor = self._pool.acquire(count)
        if descriptor is not None:
            self._descriptors[block.number] = descriptor
        self._in_use[block.number] = count
        return block

    def release(self, number: int) -> None:
        """The peer is done with a block; raise MalformedFrameError if it has none of this number."""
        if self._in_use.pop(number, None) is None:
            raise MalformedFrameError("a block was returned that the peer does not have")
        self._pool.release(number)

    def drop_surplus(self) -> list[int]:
        """Remove unused blocks, and return their numbers for the peer."""
        dropped = self._pool.drop_surplus()
        for number in dropped:
            os.close(self._descriptors.pop(number))
        return dropped

    def close(self) -> None:
        """Release all blocks; the peer's mappings stay."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._in_use.clear()
        self._reserved.clear()


class BufferReceiver:
    """Blocks of the peer called ``name`` that are mapped here.

    Blocks that nothing refers to any more are appended to ``read``, with that name.
    """

    def __init__(self, name: str, process: int, read: deque[tuple[str, int]]) -> None:
        self._name, self._process, self._read = name, process, read
        self._blocks: dict[int, MemoryBlock] = {}

    def views(self, block: SharedBlock, sizes: Sequence[int]) -> list[memoryview]:
        """The buffers in a block; raise MalformedFrameError if they exceed it."""
        mapped = self._blocks.get(block.number)
        if mapped is None:
            mapped = _mapped(self._process, block)
            self._blocks[block.number] = mapped
        starts, count = block_offsets(sizes)
        if count > mapped.size or block.block_bytes != mapped.size:
            raise MalformedFrameError("buffers exceed their block")
        # an object of this message only, which lives as long as any view or tensor of it
        owner = (ctypes.c_char * count).from_buffer(mapped.memory)
        weakref.finalize(owner, self._read.append, (self._name, block.number)).atexit = False
        whole = memoryview(owner).cast("B")
        return [whole[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def drop(self, number: int) -> None:
        """The peer dropped a block."""
        self._blocks.pop(number, None)


class MemoryProbe:
    """A block by which a peer tests if it can map this process's memory; must be closed."""

    SIZE = 4096

    def __init__(self) -> None:
        self.descriptor = -1
        wanted = os.environ.get("COTSWOLD_SHARED_MEMORY", "1") != "0"
        if wanted and is_supported():
            _, self.descriptor = MemoryBlock.new(0, self.SIZE)

    @classmethod
    def is_mapped(cls, process: int, descriptor: int) -> bool:
        """True if a process's block can be mapped here."""
        if descriptor < 0 or os.environ.get("COTSWOLD_SHARED_MEMORY", "1") == "0":
            return False
        try:
            _mapped(process, SharedBlock(0, descriptor, cls.SIZE))
        except MalformedFrameError:
            return False
        return True

    def close(self) -> None:
        """Release the block."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def _mapped(process: int, block: SharedBlock) -> MemoryBlock:
    """Map a block of a process of this host and user; raise MalformedFrameError, or MachineError without
    memory."""
    try:
        descriptor = os.open(f"/proc/{process}/fd/{block.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MalformedFrameError(f"a block of shared memory cannot be opened: {error.strerror}") from error
    try:
        # memory beyond the end of the file can be mapped, but not read
        if not 0 < block.block_bytes <= os.fstat(descriptor).st_size:
            raise MalformedFrameError("a block of shared memory is too short")
        return MemoryBlock.map(block.number, descriptor, block.block_bytes)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MachineError(
                f"no memory is left to read a message of {block.block_bytes} bytes: free some, or spread the "
                "data over more processes and machines"
            ) from error
        raise MalformedFrameError(f"a block of shared memory cannot be mapped: {error.strerror}") from error
    finally:
        os.close(descriptor)
