"""Check of RocksDB's manifest before RocksDB reads it.

Knows: the format of RocksDB's logs (blocks of 32 KiB; records of masked CRC-32C, length, kind), the file
`seal`. Does not know: the contents of records.

RocksDB takes a record that seems to end past the file for one cut by a crash, and omits it. So a flipped bit
in a length would silently restore an older state. Other flips make it (10.x) loop forever when it opens.
`seal` has the manifest's length after the last write. It is not synced: after a power loss it may have a
shorter length, which only detects less.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c

from cotswold.files.checksum import crc32
from cotswold.replication.disk.records import RecordError

_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_KINDS = (1, 2, 3, 4)
"""Full, first, middle, last."""
_MASK = 0xA282EAD8
_SEAL = struct.Struct("<IQ")
_SEAL_BYTES = 64


def check_manifest(database: Path) -> None:
    """Raise RecordError if the manifest of a closed database is damaged, missing, or shorter than it was;
    OSError if it cannot be read."""
    place = _path(database)
    content = place.read_bytes()
    sound = _checksummed_bytes(content)
    if sound < _sealed_bytes(database, place.name):
        raise RecordError(f"{place.name} is truncated")


def seal_manifest(database: Path) -> None:
    """Record the length of the manifest; raises OSError."""
    place = _path(database)
    said = _SEAL.pack(0, place.stat().st_size)[4:] + place.name.encode()
    file = os.open(database.with_name("seal"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        os.pwrite(file, (struct.pack("<I", crc32(said)) + said).ljust(_SEAL_BYTES, b"\0"), 0)
    finally:
        os.close(file)


def _path(database: Path) -> Path:
    current = (database / "CURRENT").read_bytes()
    name = current.decode("ascii", "replace").removesuffix("\n")
    place = database / name
    if not name.startswith("MANIFEST-") or "/" in name or not place.is_file():
        raise RecordError(f"CURRENT names no manifest: {name!r:.40}")
    return place


def _sealed_bytes(database: Path, name: str) -> int:
    """Return the recorded length of the manifest; 0 if unknown, as for a new one."""
    try:
        said = database.with_name("seal").read_bytes()[:_SEAL_BYTES].rstrip(b"\0")
        checksum, length = _SEAL.unpack_from(said)
    except (FileNotFoundError, struct.error):
        return 0
    is_sound = crc32(said[4:]) == checksum and said[_SEAL.size :] == name.encode()
    return length if is_sound else 0


def _checksummed_bytes(content: bytes) -> int:
    """Return the length of the complete records; raises RecordError for a damaged one."""
    at = 0
    while at < len(content):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _HEADER.size:
            at += left
            continue
        if at + _HEADER.size > len(content):
            break
        checksum, length, kind = _HEADER.unpack_from(content, at)
        end = at + _HEADER.size + length
        if length + _HEADER.size > left:
            raise RecordError(f"the record at byte {at} of the manifest is longer than its block")
        if end > len(content):
            break
        found = google_crc32c.value(content[at + _HEADER.size - 1 : end])
        masked = ((found >> 15 | found << 17) + _MASK) & 0xFFFFFFFF
        if kind not in _KINDS or masked != checksum:
            raise RecordError(f"the record at byte {at} of the manifest has a wrong checksum")
        at = end
    return min(at, len(content))
