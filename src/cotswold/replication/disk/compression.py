"""Contents of blocks, smaller where that is easily had.

Knows: LZ4, numcodecs' form of it (four bytes of length first). Does not know: files, checksums.

A few pieces of a block tell whether all of it is tried. LZ4 takes what is zero or repeats (new accumulators,
units that do nothing); over normal weights it passes at 14 GB/s, which would cost more than their checksum.
Zstandard would make normal random weights 0.92 of their size at 1 GB/s, with their bytes shuffled 0.85 at
0.5; Adagrad's accumulators 0.86, shuffled 0.76: a core's work for bytes that no disk lacks.
"""

from __future__ import annotations

from numcodecs import lz4

from cotswold.replication.disk.corruption import RecordError
from cotswold.replication.disk.records import Buffer

_PIECE_BYTES, _PIECES = 1024, 4
_WORTH = 0.75
"""What is not smaller by a quarter is left as it is."""
_LENGTH_BYTES = 4


def packed(contents: memoryview) -> Buffer:
    """The contents, raw bytes, or less; `unpacked` tells by the length."""
    if not contents.nbytes or _share(_pieces(contents)) > _WORTH:
        return contents
    found: bytes = lz4.compress(contents)
    return found if len(found) < contents.nbytes else contents


def unpacked(stored: bytes, size: int) -> memoryview:
    """The contents, of ``size`` bytes; raises RecordError for what was not packed from so many."""
    if len(stored) == size:
        return memoryview(stored)
    if int.from_bytes(stored[:_LENGTH_BYTES], "little") != size:
        raise RecordError(f"it is packed from another number of bytes than {size}")
    try:
        return memoryview(lz4.decompress(stored))
    except RuntimeError as error:
        raise RecordError(f"it cannot be unpacked ({error})") from error


def _pieces(contents: memoryview) -> bytes:
    step = max(_PIECE_BYTES, contents.nbytes // _PIECES)
    return b"".join(contents[at : at + _PIECE_BYTES] for at in range(0, contents.nbytes, step))


def _share(pieces: bytes) -> float:
    return len(lz4.compress(pieces)) / len(pieces)
