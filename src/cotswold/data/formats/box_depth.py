"""Bits of a channel in images whose parts are boxes: JPEG 2000, AVIF, HEIF.

Knows: boxes of ISO media files, JPEG 2000's size marker, configurations of AV1 and HEVC. Does not know:
Pillow, pixels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

_SIZE_MARKER = b"\xff\x4f\xff\x51"
_COMPONENTS_AT = 40
_CONTAINERS = {
    **dict.fromkeys((b"iprp", b"ipco", b"moov", b"trak", b"mdia", b"minf", b"stbl"), 0),
    b"meta": 4,
    b"stsd": 8,
    b"av01": 78,
    b"hvc1": 78,
}
"""Boxes that contain others, with the bytes of their own before the first one."""
_HEVC_LUMA, _HEVC_CHROMA = 17, 18


def boxed_bits(file: BinaryIO) -> int:
    """Return the largest number of bits of a channel; 8 if the file does not say.

    Args:
        file: A JPEG 2000, AVIF or HEIF file, open for reading from its start.
    """
    start = file.read(len(_SIZE_MARKER))
    end = file.seek(0, 2)
    if start == _SIZE_MARKER:
        return _jpeg_2000_bits(file, 0)
    return max(_bits_of(file, 0, end), default=8)


def _bits_of(file: BinaryIO, start: int, end: int) -> Iterator[int]:
    for kind, at, stop in _boxes(file, start, end):
        file.seek(at)
        if kind == b"jp2c":
            yield _jpeg_2000_bits(file, at)
        elif kind == b"av1C":
            flags = file.read(3)[2]
            yield (12 if flags & 0x20 else 10) if flags & 0x40 else 8
        elif kind == b"hvcC":
            content = file.read(_HEVC_CHROMA + 1)
            yield 8 + max(content[_HEVC_LUMA] & 7, content[_HEVC_CHROMA] & 7)
        elif kind in _CONTAINERS:
            yield from _bits_of(file, at + _CONTAINERS[kind], stop)


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the content of each box."""
    while start + 8 <= end:
        file.seek(start)
        size, kind = struct.unpack(">I4s", file.read(8))
        head = 8
        if size == 1:  # a size of 64 bits follows
            size, head = struct.unpack(">Q", file.read(8))[0], 16
        stop = min(start + size, end) if size else end
        if stop < start + head:
            return
        yield kind, start + head, stop
        start = stop


def _jpeg_2000_bits(file: BinaryIO, start: int) -> int:
    file.seek(start + _COMPONENTS_AT)
    (count,) = struct.unpack(">H", file.read(2))
    return max((each & 0x7F) + 1 for each in file.read(3 * count)[::3])
