"""Blocks of shared memory without a name: whoever has the descriptor maps the same bytes.

Knows: memfd, mmap, how much is kept for the next message. Does not know: sockets, what lies in a block.

A block is nobody's file: it needs no room in ``/dev/shm`` and ends with the processes that have it, however
they end. Linux only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from dataclasses import dataclass

LEAST_BYTES = 1 << 16
"""The size of the smallest block."""
BOUND = 1.5
"""A pool keeps at most this many times the bytes that were lent at once of late."""
PERIOD = 256
"""Messages over which the most bytes lent at once is taken: those of this period and of the one before."""
NAME = "cotswold message"
"""What ``/proc/PID/maps`` shows for such memory."""
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def is_supported() -> bool:
    """Whether this process can make shared memory; a sandbox may forbid it."""
    try:
        os.close(os.memfd_create(NAME))
    except (AttributeError, OSError):
        return False
    return True


@dataclass(frozen=True, eq=False)
class Block:
    """Memory that several processes map: ``memory`` is writable bytes, unmapped when nobody has it."""

    number: int
    memory: memoryview

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return self.memory.nbytes

    @classmethod
    def mapped(cls, number: int, descriptor: int, size: int) -> Block:
        """The memory behind a descriptor, which may be closed afterwards; raises OSError."""
        # not Python's mmap, which keeps a descriptor open for each until 3.13
        access = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, size, access, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            raise OSError(code := ctypes.get_errno(), os.strerror(code))
        array = (ctypes.c_char * size).from_address(address)
        weakref.finalize(array, _libc.munmap, address, size).atexit = False
        return cls(number, memoryview(array).cast("B"))

    @classmethod
    def new(cls, number: int, size: int) -> tuple[Block, int]:
        """A block of zeros and its descriptor, which the caller closes; raises OSError."""
        descriptor = os.memfd_create(NAME)
        try:
            os.ftruncate(descriptor, size)
            return cls.mapped(number, descriptor, size), descriptor
        except BaseException:
            os.close(descriptor)
            raise


class BlockPool:
    """Blocks that are lent, one a message, and used again, also for smaller messages.

    Kept are at most `BOUND` times the bytes that were lent at once in the last messages (`PERIOD`), sizes
    rounded up to a quarter of a power of two and `LEAST_BYTES`.
    """

    def __init__(self) -> None:
        self._free: list[Block] = []
        """The one that was used longest ago first."""
        self._lent: dict[int, tuple[Block, int]] = {}
        self._made = self._kept_bytes = self._lent_bytes = 0
        self._peaks = [0, 0]
        self._messages = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of all blocks, lent or free."""
        return self._kept_bytes

    def lend(self, count: int) -> tuple[Block, int | None]:
        """A block of at least ``count`` bytes, and the descriptor of a new one, which the caller closes."""
        wanted = rounded(count)
        fitting = [block for block in self._free if block.size >= wanted]
        if fitting:
            block, descriptor = min(fitting, key=lambda one: one.size), None
            self._free.remove(block)
        else:
            block, descriptor = Block.new(self._made, wanted)
            self._made += 1
            self._kept_bytes += wanted
        self._lent[block.number] = block, wanted
        self._lent_bytes += wanted
        self._messages += 1
        if self._messages % PERIOD == 0:
            self._peaks = [self._peaks[1], 0]
        self._peaks[1] = max(self._peaks[1], self._lent_bytes)
        return block, descriptor

    def give_back(self, number: int) -> None:
        """A lent block is free."""
        block, wanted = self._lent.pop(number)
        self._lent_bytes -= wanted
        self._free.append(block)

    def forget(self, number: int) -> None:
        """A free block is used no more."""
        (block,) = (one for one in self._free if one.number == number)
        self._free.remove(block)
        self._kept_bytes -= block.size

    def drop_surplus(self) -> list[int]:
        """Let go of free blocks beyond the bound, those first that were used longest ago; their numbers."""
        dropped = []
        while self._free and self._kept_bytes > BOUND * max(self._peaks):
            dropped.append(self._free[0].number)
            self.forget(dropped[-1])
        return dropped


def rounded(count: int) -> int:
    """The size of a block for ``count`` bytes.

    >>> rounded(1), rounded(65537), rounded(1 << 20), rounded((1 << 20) + 1)
    (65536, 81920, 1048576, 1310720)
    """
    count = max(count, LEAST_BYTES)
    step = 1 << (count - 1).bit_length() - 3
    return -(-count // step) * step
