"""Compression of blocks, where it is cheap.

Knows: LZ4, numcodecs' form of it (four bytes of length first). Does not know: files, checksums.

Samples of a block decide whether to compress all of it. LZ4 shrinks zeros and repetitions (new accumulators,
inactive units). It skips normal weights at 14 GB/s, where trying would cost more than their checksum.
Zstandard would shrink normal random weights to 0.92 at 1 GB/s, with shuffled bytes to 0.85 at 0.5 GB/s;
Adagrad's accumulators to 0.86, shuffled to 0.76: a core's work for bytes that no disk lacks.
"""

from __future__ import annotations

from numcodecs import lz4

from cotswold.replication.disk.records import Buffer, RecordError

_PIECE_BYTES, _PIECES = 1024, 4
_MAX_RATIO = 0.75
"""Maximum ratio of compressed to raw size that is worth storing."""
_LENGTH_BYTES = 4


def compress(contents: memoryview) -> Buffer:
    """Return the contents, compressed if that is smaller; `decompress` recognises which by the length."""
    if not contents.nbytes or _changed_fraction(_pieces(contents)) > _MAX_RATIO:
        return contents
    found: bytes = lz4.compress(contents)
    return found if len(found) < contents.nbytes else contents


def decompress(stored: bytes, size: int) -> memoryview:
    """Return the contents, of ``size`` bytes; raises RecordError if the stored bytes do not match."""
    if len(stored) == size:
        return memoryview(stored)
    if int.from_bytes(stored[:_LENGTH_BYTES], "little") != size:
        raise RecordError(f"it was compressed from a size other than {size} bytes")
    try:
        return memoryview(lz4.decompress(stored))
    except RuntimeError as error:
        raise RecordError(f"it cannot be decompressed ({error})") from error


def _pieces(contents: memoryview) -> bytes:
    step = max(_PIECE_BYTES, contents.nbytes // _PIECES)
    return b"".join(contents[at : at + _PIECE_BYTES] for at in range(0, contents.nbytes, step))


def _changed_fraction(pieces: bytes) -> float:
    return len(lz4.compress(pieces)) / len(pieces)
