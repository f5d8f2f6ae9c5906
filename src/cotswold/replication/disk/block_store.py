"""Block store: buckets on disk, each with a head and blocks.

Knows: folders, locks, records, the blocks of each bucket. Does not know: the meaning of heads and blocks,
threads.

A log-structured store (Chilimbi et al. 2014, section 3.3.3). Contents are appended to files (`segments`) and
synced. Then the heads, which name their places, go into an index (`index`), all of a batch at once. So
everything that the index names exists completely, and anything else was never written. Files without live
blocks are reused (`space_accounting`).

The folder has `lock`, `format.json`, the index `db`, `seal` (`manifest`) and the files in `contents`. Every
read verifies checksums.

    the index is found damaged                  action of the next write
    when the store is opened                    rebuild it from the heads that can be read
    later: by a read, a write, a reopening      rebuild it from the heads in memory
    as a whole, when the store is opened        none: StoreError is raised
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

from cotswold.errors import FormatError, MachineError, StoreError, UserError
from cotswold.files.durable import create_file, disk_errors
from cotswold.files.lock import DirectoryLock
from cotswold.files.untrusted_json import MalformedError, describe_format_error, parse_object, take
from cotswold.replication.disk.compression import decompress
from cotswold.replication.disk.corruption import (
    EMPTY_FOLDER_REMEDY,
    Damage,
    DamagedError,
    RebuiltIndex,
)
from cotswold.replication.disk.index import CorruptError, Database
from cotswold.replication.disk.records import (
    HEADS,
    BlockKey,
    Bucket,
    BucketSnapshot,
    Head,
    RecordError,
    StoredBlock,
    block_key,
    bucket_of,
    head_key,
    head_of,
    head_record,
    verify,
)
from cotswold.replication.disk.segments import SEGMENT_BYTES, Segments
from cotswold.replication.disk.space_accounting import SpaceUsage, blocks_in
from cotswold.replication.disk.write_batch import WriteBatch

FORMAT = 1
CONTENTS = "contents"
"""Folder with the files of contents; a read-only user changes nothing there."""
_FORMAT_BYTES_MAX = 4096


class BlockStore:
    """Buckets of one parameter server, in a folder; thread-safe.

    Opening creates the folder if necessary. Raises BusyError if another process has it, FormatError if
    another version wrote it, UserError if it has other files, MachineError if it cannot be written,
    StoreError if the database's own files are damaged.
    """

    def __init__(
        self,
        folder: Path,
        segment_bytes: int = SEGMENT_BYTES,
        renewed: Callable[[RebuiltIndex], None] = lambda _: None,
    ) -> None:
        """``segment_bytes``: minimum size of a full file of contents. ``renewed`` is called, on the
        writing thread, after the index was rebuilt; it must not call the store."""
        self.folder, self._segment_bytes, self._renewed = folder, segment_bytes, renewed
        self._mutex = threading.Lock()
        with ExitStack() as opened, disk_errors(folder, MachineError, "free some space and start again"):
            folder.mkdir(parents=True, exist_ok=True)
            _check_folder(folder)
            opened.enter_context(DirectoryLock(folder, "server disk"))
            _check_format(folder)
            self._database = Database(folder / "db")
            opened.callback(self._database.close)
            self._segments = Segments(folder / CONTENTS, segment_bytes)
            opened.callback(self._segments.close)
            self._heads = dict[str, Head]()
            self._damaged_heads: tuple[Damage, ...] = ()
            self._index_damage: StoreError | None = None
            """Reason to rebuild the index."""
            self._load()
            self._resources = opened.pop_all()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, *snapshots: BucketSnapshot) -> None:
        """Write buckets to disk, all or none; they are durable on return.

        Blocks of a snapshot replace those with the same keys; other blocks of the bucket stay. One write of
        many megabytes is faster than many writes. Raises DiskFullError or MachineError: then each bucket is
        unchanged or, if the disk failed too late to tell, written; the write can be repeated.
        """
        with self._mutex, self._disk_errors():
            self._recover_to_write()
            heads = self._written(snapshots)
            self._put(_records(heads))
            for name, head in heads.items():
                self._replace(name, head)
            self._segments.keep_only(self._usage.used_segments)

    def read(self, bucket: str) -> Bucket:
        """Return a bucket with all its blocks. Raises DamagedError, which has the sound ones; KeyError if
        there is no such bucket."""
        with self._mutex:
            self._recover()
            key = head_key(bucket)
            try:
                record = self._database.get(key)
                if record is None:
                    raise KeyError(bucket)
                head = head_of(key, record)
            except (CorruptError, RecordError) as error:
                if isinstance(error, CorruptError):
                    self._index_damage = self._database.damage(error)
                raise DamagedError(str(self.folder), (Damage(bucket, None, str(error)),)) from error
            blocks, damaged = dict[BlockKey, memoryview](), list[Damage]()
            for block, place in head.blocks.items():
                try:
                    stored = self._segments.read(place.segment, place.offset, place.stored)
                    verify(block_key(bucket, block), place, stored)
                    blocks[block] = decompress(stored, place.size)
                except RecordError as error:
                    damaged.append(Damage(bucket, block, str(error)))
        found = Bucket(head.index, head.head, blocks)
        if damaged:
            raise DamagedError(str(self.folder), tuple(damaged), found)
        return found

    def heads(self) -> Mapping[str, Head]:
        """Return the heads of all buckets, by name. Raises DamagedError, which has the sound ones."""
        with self._mutex:
            self._recover()
            heads, damaged = dict(self._heads), self._damaged_heads
        if damaged:
            raise DamagedError(str(self.folder), damaged, heads=heads)
        return heads

    def drop(self, bucket: str) -> None:
        """Delete a bucket, if it exists; raises as `write`."""
        with self._mutex, self._disk_errors():
            self._recover_to_write()
            key = head_key(bucket)
            self._put((), ((key, key + b"\0"),))
            self._replace(bucket, None)
            self._segments.keep_only(self._usage.used_segments)

    def close(self) -> None:
        """Close the folder. Everything written is already on disk."""
        with self._mutex:
            self._resources.close()

    def _written(self, snapshots: Iterable[BucketSnapshot]) -> dict[str, Head]:
        """Append blocks and return their heads: those of the snapshots, and of buckets in a file that is
        compacted."""
        group = WriteBatch(self._heads)
        for each in snapshots:
            group.add(each)
        emptied = self._usage.segment_to_compact(self._segments.sizes, self._segments.current)
        for bucket, key in () if emptied is None else blocks_in(emptied, self._heads):
            group.move(bucket, key, self._stored)
        self._database.check_space(self._segments.room_for(group.size))
        return group.new_heads(self._segments.append(group.parts) if group.parts else [])

    def _stored(self, block: StoredBlock) -> bytes | None:
        """Return stored bytes unverified, as their checksum goes with them; None if they cannot be read."""
        try:
            return self._segments.read(block.segment, block.offset, block.stored)
        except RecordError:
            return None

    def _replace(self, bucket: str, head: Head | None) -> None:
        """Record the head that the index has now, which is sound."""
        self._usage.replace_head(self._heads.pop(bucket, None), head)
        if head is not None:
            self._heads[bucket] = head
        self._damaged_heads = tuple(each for each in self._damaged_heads if each.bucket != bucket)

    def _disk_errors(self) -> AbstractContextManager[None]:
        return disk_errors(self.folder, MachineError, "free some space, what was written before is intact")

    def mend(self) -> None:
        """Rebuild the index if it was found damaged, as the next write would; raises as `write`."""
        with self._mutex, self._disk_errors():
            self._recover_to_write()

    def _put(self, puts: Iterable[tuple[bytes, bytes]], ranges: Iterable[tuple[bytes, bytes]] = ()) -> None:
        try:
            self._database.write(puts, ranges)
        except StoreError as error:
            self._index_damage = error
            raise

    def _recover(self) -> None:
        if self._database.recover():
            self._reload()

    def _recover_to_write(self) -> None:
        if self._index_damage is None:
            try:
                if self._database.recover_to_write():
                    self._reload()
            except StoreError as error:
                self._index_damage = error
        if self._index_damage is not None:
            self._start_over(self._index_damage)

    def _start_over(self, why: StoreError) -> None:
        """Rebuild the index from the known heads; if some were unreadable, also from those that can be
        salvaged."""
        if any(each.bucket is None for each in self._damaged_heads):
            self._move_damaged()
        self._database.start_over(_records(self._heads))
        lost, self._damaged_heads, self._index_damage = self._damaged_heads, (), None
        self._renewed(RebuiltIndex(str(self.folder), str(why), lost, len(self._heads)))

    def _move_damaged(self) -> None:
        """Read heads from all tables of the index that can be opened."""
        known, named = self._heads, list[Damage]()
        self._heads = {}
        try:
            with self._database.moved_aside() as found:
                for key, record in found.items(*HEADS):
                    self._load_head(key, record, named)
        except (CorruptError, StoreError):
            pass  # keep what was read
        self._heads.update(known)
        new = {each.bucket: each for each in (*self._damaged_heads, *named) if each.bucket not in self._heads}
        self._damaged_heads = tuple(new.values())
        self._usage = SpaceUsage(self._heads.values(), 2 * self._segment_bytes)

    def _reload(self) -> None:
        """Reload after a failed write; if the index is damaged now, the known heads stay valid."""
        heads, damaged = self._heads, self._damaged_heads
        self._load()
        if self._index_damage is not None:
            new = (each for each in self._damaged_heads if each.bucket is not None)
            self._damaged_heads = *damaged, *(each for each in new if each.bucket not in heads)
            self._heads.update(heads)
            self._usage = SpaceUsage(self._heads.values(), 2 * self._segment_bytes)

    def _load(self) -> None:
        """Read all heads: forward, and if that ends early also backward, up to the damage."""
        self._heads, damaged = {}, list[Damage]()
        if isinstance(refusal := self._database.refusal, StoreError):
            self._index_damage = refusal
            damaged.append(Damage(None, None, refusal.cause))
        try:
            for key, record in self._database.items(*HEADS):
                self._load_head(key, record, damaged)
        except CorruptError as error:
            self._index_damage = self._database.damage(error)
            damaged.append(Damage(None, None, str(error)))
            try:
                for key, record in self._database.items_backwards(*HEADS):
                    self._load_head(key, record, damaged)
            except CorruptError:
                pass  # the same damage, from the other side
        self._damaged_heads = tuple(damaged)
        self._usage = SpaceUsage(self._heads.values(), 2 * self._segment_bytes)

    def _load_head(self, key: bytes, record: bytes, damaged: list[Damage]) -> None:
        bucket = None
        try:
            bucket = bucket_of(key)
            self._heads[bucket] = head_of(key, record)
        except RecordError as error:
            damaged.append(Damage(bucket, None, str(error)))


def _records(heads: Mapping[str, Head]) -> Iterable[tuple[bytes, bytes]]:
    """Return heads as records of the index."""
    return ((head_key(name), head_record(head_key(name), head)) for name, head in heads.items())


def _check_folder(folder: Path) -> None:
    """Raise UserError for a folder with other files, StoreError for a store without its format."""
    names = {each.name for each in folder.iterdir()}
    if "format.json" not in names and names & {"db", CONTENTS, "seal"}:
        raise StoreError(f"{folder} is damaged (it has no format.json)", remedy=EMPTY_FOLDER_REMEDY)
    if names and "format.json" not in names and names != {"lock"}:
        raise UserError(f"{folder} is not empty and not a block store; choose another folder")


def _check_format(folder: Path) -> None:
    """Write the format of a new store, or raise FormatError for that of another version."""
    place = folder / "format.json"
    try:
        content = place.read_bytes()[:_FORMAT_BYTES_MAX]
    except FileNotFoundError:
        create_file(place, json.dumps({"blocks": FORMAT}).encode())
        return
    try:
        found = take(parse_object(content), "blocks", int)
    except MalformedError as error:
        raise StoreError(f"{place} is damaged ({error})", remedy=EMPTY_FOLDER_REMEDY) from error
    if found != FORMAT:
        raise FormatError(
            f"{folder} {describe_format_error(found, FORMAT)}; use the version that wrote it, or "
            "another folder"
        )
