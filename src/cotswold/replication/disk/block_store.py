"""Buckets on disk: a head and blocks each.

Knows: folders, locks, records, which blocks a bucket has. Does not know: what heads and blocks mean, threads.

A log-structured store (Chilimbi et al. 2014, section 3.3.3): contents are appended to files (`segments`) and
synced, then the heads, which say where they lie, go into an index (`database`), all of a group at once. So
whatever the index names is there, whole; what is not named was never written. Files of which the index names
nothing come free (`usage`).

The folder has `lock`, `format.json`, the index `db`, `seal` (`manifest`) and the files in `contents`. Every
checksum is verified whenever something is read.

    the index is found damaged                  what is done by the next write
    as the store is opened                      it is begun anew with the heads that can be had
    later: as it is read, written, reopened     it is begun anew with the heads that are in memory
    as a whole, as the store is opened          nothing: StoreError is raised
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
from cotswold.replication.disk.compression import unpacked
from cotswold.replication.disk.corruption import (
    BEGIN_WITHOUT_FORMAT,
    Damage,
    DamagedError,
    RecordError,
    Renewed,
)
from cotswold.replication.disk.index import CorruptError, Database
from cotswold.replication.disk.records import (
    HEADS,
    Block,
    BlockKey,
    Bucket,
    Head,
    Snapshot,
    block_key,
    bucket_of,
    head_key,
    head_of,
    head_record,
    verify,
)
from cotswold.replication.disk.segments import SEGMENT_BYTES, Segments
from cotswold.replication.disk.space_accounting import Usage, blocks_in
from cotswold.replication.disk.write_batch import Group

FORMAT = 1
CONTENTS = "contents"
"""The folder of a store with the files of contents; whoever reads alone changes nothing there."""
_FORMAT_BYTES_MAX = 4096


class BlockStore:
    """The buckets of one parameter server, in a folder; threads may share it.

    Opening makes the folder where there is none. Raises BusyError where another process has it, FormatError
    where another version wrote it, UserError for a folder of something else, MachineError for one that cannot
    be written, StoreError where the database's own files are damaged.
    """

    def __init__(
        self,
        folder: Path,
        segment_bytes: int = SEGMENT_BYTES,
        renewed: Callable[[Renewed], None] = lambda _: None,
    ) -> None:
        """``segment_bytes``: of a file of contents, at least. ``renewed`` hears of an index that was begun
        anew, on the thread that writes; it must ask nothing of the store."""
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
            """Why the index is to be begun anew."""
            self._load()
            self._opened = opened.pop_all()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, *snapshots: Snapshot) -> None:
        """Put buckets on disk, all of them or none; they are there when it returns.

        Blocks that a snapshot names replace those of their keys; other blocks of the bucket stay. One write
        of many megabytes is faster than many writes. Raises DiskFullError or MachineError: then each bucket
        is as it was or, where the disk failed too late to tell, as it should be; it can be tried again.
        """
        with self._mutex, self._disk_errors():
            self._recover_to_write()
            heads = self._written(snapshots)
            self._put(_records(heads))
            for name, head in heads.items():
                self._replace(name, head)
            self._segments.keep(self._usage.needed)

    def read(self, bucket: str) -> Bucket:
        """A bucket with all its blocks. Raises DamagedError, which has the sound ones; KeyError where there
        is no such bucket."""
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
                    stored = self._segments.read(place.segment, place.at, place.stored)
                    verify(block_key(bucket, block), place, stored)
                    blocks[block] = unpacked(stored, place.size)
                except RecordError as error:
                    damaged.append(Damage(bucket, block, str(error)))
        found = Bucket(head.index, head.head, blocks)
        if damaged:
            raise DamagedError(str(self.folder), tuple(damaged), found)
        return found

    def heads(self) -> Mapping[str, Head]:
        """The heads of all buckets, by name. Raises DamagedError, which has the sound ones."""
        with self._mutex:
            self._recover()
            heads, damaged = dict(self._heads), self._damaged_heads
        if damaged:
            raise DamagedError(str(self.folder), damaged, heads=heads)
        return heads

    def drop(self, bucket: str) -> None:
        """Forget a bucket, if there is one; raises as :meth:`write`."""
        with self._mutex, self._disk_errors():
            self._recover_to_write()
            key = head_key(bucket)
            self._put((), ((key, key + b"\0"),))
            self._replace(bucket, None)
            self._segments.keep(self._usage.needed)

    def close(self) -> None:
        """Let go of the folder. All that was written is on disk anyway."""
        with self._mutex:
            self._opened.close()

    def _written(self, snapshots: Iterable[Snapshot]) -> dict[str, Head]:
        """Heads whose blocks are on disk: those of snapshots, and of buckets that are in a file which is
        emptied."""
        group = Group(self._heads)
        for each in snapshots:
            group.add(each)
        emptied = self._usage.to_empty(self._segments.sizes, self._segments.current)
        for bucket, key in () if emptied is None else blocks_in(emptied, self._heads):
            group.move(bucket, key, self._stored)
        self._database.check_room(self._segments.room_for(group.size))
        return group.heads_at(self._segments.append(group.parts) if group.parts else [])

    def _stored(self, block: Block) -> bytes | None:
        """What is stored, whatever it is, its checksum goes with it; None where nothing can be read."""
        try:
            return self._segments.read(block.segment, block.at, block.stored)
        except RecordError:
            return None

    def _replace(self, bucket: str, head: Head | None) -> None:
        """The index has this of a bucket now, and that is sound."""
        self._usage.replaced(self._heads.pop(bucket, None), head)
        if head is not None:
            self._heads[bucket] = head
        self._damaged_heads = tuple(each for each in self._damaged_heads if each.bucket != bucket)

    def _disk_errors(self) -> AbstractContextManager[None]:
        return disk_errors(self.folder, MachineError, "free some space, what was written before is intact")

    def mend(self) -> None:
        """Begin the index anew if it was found damaged, as the next write would; raises as :meth:`write`."""
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
            self._load_again()

    def _recover_to_write(self) -> None:
        if self._index_damage is None:
            try:
                if self._database.recover_to_write():
                    self._load_again()
            except StoreError as error:
                self._index_damage = error
        if self._index_damage is not None:
            self._begin_anew(self._index_damage)

    def _begin_anew(self, why: StoreError) -> None:
        """An index of the heads that are known, and where some were not read of what else can be had."""
        if any(each.bucket is None for each in self._damaged_heads):
            self._salvage()
        self._database.begin_anew(_records(self._heads))
        lost, self._damaged_heads, self._index_damage = self._damaged_heads, (), None
        self._renewed(Renewed(str(self.folder), str(why), lost, len(self._heads)))

    def _salvage(self) -> None:
        """Heads from all tables of the index that can be opened."""
        known, named = self._heads, list[Damage]()
        self._heads = {}
        try:
            with self._database.salvaged() as found:
                for key, record in found.items(*HEADS):
                    self._load_head(key, record, named)
        except (CorruptError, StoreError):
            pass  # what could be had is there
        self._heads.update(known)
        new = {each.bucket: each for each in (*self._damaged_heads, *named) if each.bucket not in self._heads}
        self._damaged_heads = tuple(new.values())
        self._usage = Usage(self._heads.values(), 2 * self._segment_bytes)

    def _load_again(self) -> None:
        """What a write that failed has changed; where the index is damaged now, all that was known is so."""
        heads, damaged = self._heads, self._damaged_heads
        self._load()
        if self._index_damage is not None:
            new = (each for each in self._damaged_heads if each.bucket is not None)
            self._damaged_heads = *damaged, *(each for each in new if each.bucket not in heads)
            self._heads.update(heads)
            self._usage = Usage(self._heads.values(), 2 * self._segment_bytes)

    def _load(self) -> None:
        """Read all heads: forward, and where that ends too soon also backward, up to the damaged place."""
        self._heads, damaged = {}, list[Damage]()
        if isinstance(refusal := self._database.refusal, StoreError):
            self._index_damage = refusal
            damaged.append(Damage(None, None, str(refusal)))
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
                pass  # the same place, from behind
        self._damaged_heads = tuple(damaged)
        self._usage = Usage(self._heads.values(), 2 * self._segment_bytes)

    def _load_head(self, key: bytes, record: bytes, damaged: list[Damage]) -> None:
        bucket = None
        try:
            bucket = bucket_of(key)
            self._heads[bucket] = head_of(key, record)
        except RecordError as error:
            damaged.append(Damage(bucket, None, str(error)))


def _records(heads: Mapping[str, Head]) -> Iterable[tuple[bytes, bytes]]:
    """As they are in the index."""
    return ((head_key(name), head_record(head_key(name), head)) for name, head in heads.items())


def _check_folder(folder: Path) -> None:
    """Raise UserError for a folder in which somebody keeps something else, StoreError for a store that has
    lost its format."""
    names = {each.name for each in folder.iterdir()}
    if "format.json" not in names and names & {"db", CONTENTS, "seal"}:
        raise StoreError(f"{folder} is damaged (it has no format.json); {BEGIN_WITHOUT_FORMAT}")
    if names and "format.json" not in names and names != {"lock"}:
        raise UserError(f"{folder} is not empty and no block store; choose another folder")


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
        raise StoreError(f"{place} is damaged ({error}); {BEGIN_WITHOUT_FORMAT}") from error
    if found != FORMAT:
        raise FormatError(
            f"{folder} {describe_format_error(found, FORMAT)}; use the version that wrote it, or "
            "another folder"
        )
