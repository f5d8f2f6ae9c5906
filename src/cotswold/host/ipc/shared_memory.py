"""Anonymous blocks of shared memory: every process that has the descriptor maps the same bytes.

Knows: memfd, mmap, how much to keep for the next message. Does not know: sockets, a block's contents.

A block has no file name: it uses no space in ``/dev/shm``, and the kernel frees it when the processes that
have it end, even by a crash. Linux only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from dataclasses import dataclass

BLOCK_BYTES_MIN = 1 << 16
"""Size of the smallest block in bytes."""
BOUND = 1.5
"""Maximum size of a pool as a multiple of the peak of bytes in use at once in recent messages."""
PERIOD = 256
"""Number of messages in a period; the peak is that of this period and of the one before."""
NAME = "cotswold message"
"""Name of such memory in ``/proc/PID/maps``."""
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def is_supported() -> bool:
    """True if this process can create shared memory; a sandbox may forbid it."""
    try:
        os.close(os.memfd_create(NAME))
    except (AttributeError, OSError):
        return False
    return True


@dataclass(frozen=True, eq=False)
class MemoryBlock:
    """Memory that several processes map: ``memory`` is writable bytes, unmapped when no longer referenced."""

    number: int
    memory: memoryview

    @property
    def size(self) -> int:
        """Size of the block in bytes."""
        return self.memory.nbytes

    @classmethod
    def map(cls, number: int, descriptor: int, size: int) -> MemoryBlock:
        """Map the memory of a descriptor, which the caller may close afterwards; raises OSError."""
        # Python's mmap keeps a descriptor open for each map until 3.13.
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            raise OSError(code := ctypes.get_errno(), os.strerror(code))
        array = (ctypes.c_char * size).from_address(address)
        weakref.finalize(array, _libc.munmap, address, size).atexit = False
        return cls(number, memoryview(array).cast("B"))

    @classmethod
    def new(cls, number: int, size: int) -> tuple[MemoryBlock, int]:
        """Create a block of zeros and its descriptor, which the caller closes; raises OSError."""
        descriptor = os.memfd_create(NAME)
        try:
            os.ftruncate(descriptor, size)
            return cls.map(number, descriptor, size), descriptor
        except BaseException:
            os.close(descriptor)
            raise


class BlockPool:
    """Blocks of memory, one per message, that are reused, also for smaller messages.

    The pool keeps at most `BOUND` times the peak of bytes in use in the last messages (`PERIOD`). Sizes are
    rounded up to a quarter of a power of two, and to `BLOCK_BYTES_MIN`.
    """

    def __init__(self) -> None:
        self._free: list[MemoryBlock] = []
        """Free blocks, the least recently used first."""
        self._in_use: dict[int, tuple[MemoryBlock, int]] = {}
        self._created = self._allocated_bytes = self._in_use_bytes = 0
        self._peaks = [0, 0]
        self._messages = 0

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all blocks, in use or free."""
        return self._allocated_bytes

    def acquire(self, count: int) -> tuple[MemoryBlock, int | None]:
        """Return a block of at least ``count`` bytes; the caller must close a new block's descriptor."""
        wanted = block_size(count)
        fitting = [block for block in self._free if block.size >= wanted]
        if fitting:
            block, descriptor = min(fitting, key=lambda one: one.size), None
            self._free.remove(block)
        else:
            block, descriptor = MemoryBlock.new(self._created, wanted)
            self._created += 1
            self._allocated_bytes += wanted
        self._in_use[block.number] = block, wanted
        self._in_use_bytes += wanted
        self._messages += 1
        if self._messages % PERIOD == 0:
            self._peaks = [self._peaks[1], 0]
        self._peaks[1] = max(self._peaks[1], self._in_use_bytes)
        return block, descriptor

    def release(self, number: int) -> None:
        """Mark a block as free."""
        block, wanted = self._in_use.pop(number)
        self._in_use_bytes -= wanted
        self._free.append(block)

    def remove(self, number: int) -> None:
        """Remove a free block from the pool."""
        (block,) = (one for one in self._free if one.number == number)
        self._free.remove(block)
        self._allocated_bytes -= block.size

    def drop_surplus(self) -> list[int]:
        """Remove free blocks beyond the bound, the least recently used first; return their numbers."""
        dropped = []
        while self._free and self._allocated_bytes > BOUND * max(self._peaks):
            dropped.append(self._free[0].number)
            self.remove(dropped[-1])
        return dropped


def block_size(count: int) -> int:
    """Return the size of a block for ``count`` bytes.

    >>> block_size(1), block_size(65537), block_size(1 << 20), block_size((1 << 20) + 1)
    (65536, 81920, 1048576, 1310720)
    """
    count = max(count, BLOCK_BYTES_MIN)
    step = 1 << (count - 1).bit_length() - 3
    return -(-count // step) * step
