"""Stored form of a saved bucket in a block store; folders of saved buckets, independent of a server.

Knows: the encoding of head and numbers of a `SavedBucket`, block stores. Does not know: when anything is
saved, the owner of a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgpack

from cotswold.errors import DiskFullError, MachineError, UserError
from cotswold.files.durable import PARTIAL, DiskRemedy, disk_errors, is_full, sync_folder
from cotswold.replication.disk import (
    CONTENTS,
    BlockKey,
    BlockStore,
    Bucket,
    BucketSnapshot,
    Damage,
    DamagedError,
)
from cotswold.replication.replica.saved_bucket import SavedBucket
from cotswold.wire import DiskStateReply, Prepare
from cotswold.wire.codec import Packing, decode

_GROUP_BYTES = 32 << 20
_NEW = 1
"""Index of the blocks in a folder written at once."""


def snapshot_of(saved: SavedBucket, index: int) -> BucketSnapshot:
    """Return a bucket in its stored form; ``index`` orders its blocks against older ones."""
    blocks = {BlockKey(*key): _raw(buffer) for key, buffer in saved.numbers.items()}
    return BucketSnapshot(saved.bucket, index, _written_head(saved), blocks)


def saved_of(name: str, read: Bucket) -> SavedBucket:
    """Decode the stored bucket ``name``; raises ValueError for anything else."""
    try:
        header, *buffers = msgpack.unpackb(read.head)
        found, prepare = decode(msgpack.unpackb(header, strict_map_key=False), buffers)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"its head is not that of a bucket: {error}") from error
    if not isinstance(found, DiskStateReply) or not isinstance(prepare, Prepare) or prepare.change is None:
        raise ValueError("its head is not that of a bucket")
    if found.bucket != name:
        raise ValueError(f"its head is that of bucket {found.bucket}")
    numbers = {(key.vector, key.shard): contents for key, contents in read.blocks.items()}
    rank = found.incarnation, found.term, found.index
    return SavedBucket(name, *rank, prepare.change, prepare.names, numbers, found.members)


def write_saved(folder: Path, saved: Iterable[SavedBucket]) -> None:
    """Write buckets, each with all its numbers, into a new folder: completely, or not at all.

    A server can use the folder as its disk and resumes from these buckets. Raises UserError if the folder
    exists, MachineError if it cannot be written.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists; choose another folder")
    beside = folder.with_name(folder.name + PARTIAL)
    with disk_errors(folder, MachineError, DiskRemedy.REPEAT):
        shutil.rmtree(beside, ignore_errors=True)
        try:
            with BlockStore(beside) as store:
                for group in _groups(saved):
                    store.write(*group)
            beside.rename(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def read_saved(folder: Path) -> Iterator[SavedBucket]:
    """Yield all buckets of a folder, by name, each verified when it is read.

    Damaged ones are omitted and named by a DamagedError after the last. Raises as `BlockStore`; UserError if
    there is no such folder.
    """
    if not (folder / "format.json").is_file():
        raise UserError(f"{folder} has no saved buckets; name a folder that was saved")
    damaged = list[Damage]()
    with BlockStore(folder) as store:
        try:
            heads = store.heads()
        except DamagedError as error:
            heads = error.heads
            damaged += error.damaged
        for name in sorted(heads):
            try:
                found = saved_of(name, store.read(name))
            except DamagedError as error:
                damaged += error.damaged
            except ValueError as error:
                damaged.append(Damage(name, None, str(error)))
            else:
                yield found
    if damaged:
        raise DamagedError(str(folder), tuple(damaged))


@contextmanager
def linked_copy(folder: Path) -> Iterator[Path]:
    """Present a folder of buckets as another one, so that the original stays unchanged: its index is
    copied, its contents are linked read-only. Raises DiskFullError if the temporary folder has no room for
    the index."""
    with TemporaryDirectory(prefix="cotswold-verify-") as place:
        copy = Path(place) / folder.name
        try:
            for each in (folder, *sorted(folder.rglob("*"))):
                to = copy / each.relative_to(folder)
                if each == folder / CONTENTS:
                    to.symlink_to(each.absolute())
                elif folder / CONTENTS in each.parents:
                    continue
                elif each.is_dir():
                    to.mkdir()
                else:
                    shutil.copyfile(each, to)
        except OSError as error:
            if is_full(error):
                raise DiskFullError(
                    f"no room left in {place} for the index of {folder}; set TMPDIR to a folder with some"
                ) from error
            raise
        yield copy


def _groups(saved: Iterable[SavedBucket]) -> Iterator[list[BucketSnapshot]]:
    """Yield batches of a few buckets, so that not all are in memory."""
    group, count = list[BucketSnapshot](), 0
    for each in saved:
        group.append(snapshot_of(each, _NEW))
        count += group[-1].bytes
        if count >= _GROUP_BYTES:
            yield group
            group, count = [], 0
    if group:
        yield group


def _written_head(saved: SavedBucket) -> bytes:
    """Encode everything except numbers: two messages, in their wire form."""
    found = DiskStateReply(saved.bucket, "", *saved.recency, saved.members)
    prepare = Prepare(
        *(saved.bucket, saved.term, -1, saved.index, saved.index, saved.change, saved.vectors),
    )
    header, buffers = Packing(found, prepare).packed()
    packed: bytes = msgpack.packb([header, *buffers])
    return packed


def _raw(buffer: object) -> memoryview:
    assert isinstance(buffer, bytes | bytearray | memoryview), "numbers are bytes here"
    return memoryview(buffer)
