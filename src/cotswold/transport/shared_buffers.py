"""Buffers of messages in memory that two processes of one host have mapped.

Knows: blocks of shared memory, how a process finds another's (``/proc``). Does not know: sockets, messages.

The sender writes into a block and tells its number; the receiver maps the block once and reads there. When
nothing refers to the bytes any more (no view, no tensor made of one), the receiver gives the block back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from collections import deque
from collections.abc import Sequence

from cotswold.errors import MachineError
from cotswold.host import Block
from cotswold.host.ipc.shared_memory import BlockPool, is_supported
from cotswold.transport.frames import Loan, MalformedError, places

LEAST_BYTES = 1 << 16
"""Shorter messages go through the socket."""


class Lender:
    """Blocks lent to one peer; to be closed."""

    def __init__(self) -> None:
        self._pool = BlockPool()
        self._descriptors: dict[int, int] = {}
        self._lent: dict[int, int] = {}

    @property
    def lent_bytes(self) -> int:
        """Bytes of messages that the peer has not given back."""
        return sum(self._lent.values())

    def lend(self, buffers: Sequence[memoryview]) -> Loan:
        """A block with copies of the buffers; raises OSError where there is no memory or descriptor left."""
        starts, count = places([one.nbytes for one in buffers])
        block, descriptor = self._pool.acquire(count)
        if descriptor is not None:
            self._descriptors[block.number] = descriptor
        for start, one in zip(starts, buffers, strict=True):
            block.memory[start : start + one.nbytes] = one
        self._lent[block.number] = count
        return Loan(block.number, self._descriptors[block.number], block.size)

    def give_back(self, number: int) -> None:
        """The peer reads a block no more; raises MalformedError where it had none of this number."""
        if self._lent.pop(number, None) is None:
            raise MalformedError("a block that was not lent was given back")
        self._pool.release(number)

    def drop_surplus(self) -> list[int]:
        """Blocks that are used no more, of which the peer has to be told."""
        dropped = self._pool.drop_surplus()
        for number in dropped:
            os.close(self._descriptors.pop(number))
        return dropped

    def close(self) -> None:
        """Let go of all; what the peer has mapped stays there."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._lent.clear()


class Borrower:
    """Blocks of the peer called ``name`` that are mapped here.

    In ``read`` it notes, with that name, blocks that nothing refers to any more.
    """

    def __init__(self, name: str, process: int, read: deque[tuple[str, int]]) -> None:
        self._name, self._process, self._read = name, process, read
        self._blocks: dict[int, Block] = {}

    def views(self, loan: Loan, sizes: Sequence[int]) -> list[memoryview]:
        """The buffers in a block; raises MalformedError where they are not there."""
        block = self._blocks.get(loan.number)
        if block is None:
            block = _mapped(self._process, loan)
            self._blocks[loan.number] = block
        starts, count = places(sizes)
        if count > block.size or loan.block_bytes != block.size:
            raise MalformedError("buffers reach beyond their block")
        # an object of this message's own, that lives as long as any view or tensor of it
        owner = (ctypes.c_char * count).from_buffer(block.memory)
        weakref.finalize(owner, self._read.append, (self._name, loan.number)).atexit = False
        whole = memoryview(owner).cast("B")
        return [whole[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def drop(self, number: int) -> None:
        """The peer uses a block no more."""
        self._blocks.pop(number, None)


class Probe:
    """A block by which a peer finds out whether it can map those of this process; to be closed."""

    SIZE = 4096

    def __init__(self) -> None:
        self.descriptor = -1
        wanted = os.environ.get("COTSWOLD_SHARED_MEMORY", "1") != "0"
        if wanted and is_supported():
            _, self.descriptor = Block.new(0, self.SIZE)

    @classmethod
    def is_mapped(cls, process: int, descriptor: int) -> bool:
        """Whether a process's block can be mapped here."""
        if descriptor < 0 or os.environ.get("COTSWOLD_SHARED_MEMORY", "1") == "0":
            return False
        try:
            _mapped(process, Loan(0, descriptor, cls.SIZE))
        except MalformedError:
            return False
        return True

    def close(self) -> None:
        """Nobody asks any more."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _mapped(process: int, loan: Loan) -> Block:
    """A block of a process of this host and user; raises MalformedError, MachineError without memory."""
    try:
        descriptor = os.open(f"/proc/{process}/fd/{loan.descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MalformedError(f"a block of shared memory cannot be opened: {error.strerror}") from error
    try:
        # beyond the end of its file memory can be mapped, but not read
        if not 0 < loan.block_bytes <= os.fstat(descriptor).st_size:
            raise MalformedError("a block of shared memory is too short")
        return Block.map(loan.number, descriptor, loan.block_bytes)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MachineError(
                f"no memory is left to read a message of {loan.block_bytes} bytes: free some, or spread what "
                "is kept over more processes and machines"
            ) from error
        raise MalformedError(f"a block of shared memory cannot be mapped: {error.strerror}") from error
    finally:
        os.close(descriptor)
