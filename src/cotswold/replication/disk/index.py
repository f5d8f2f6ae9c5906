"""RocksDB as the block store's index: one flush for a group of writes, errors in our words.

Knows: RocksDB, its options and the text of its errors. Does not know: what keys and values mean.

There is no log beside (WAL): a group goes into one table in memory, which is written out, synced, before
`write` returns. RocksDB puts a table into its manifest by one record, so a group is on disk whole or not at
all. A flipped bit in a log would cost whatever stands behind it, of which nobody knows any more what it was;
in a table it costs a few values.

RocksDB refuses all writes after one has failed. Whatever failed, the database is opened anew for the next.

One that is damaged is begun anew: what is to be in it is written into ``FOLDER-new``, which takes its place
once it is on disk; what was there is ``FOLDER-damaged``, of which there is one, the last.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import rocksdict
from rocksdict import AccessType, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from cotswold.errors import DiskFullError, MachineError, StoreError
from cotswold.files.durable import is_full, sync_folder
from cotswold.replication.disk.corruption import BEGIN_EMPTY, RecordError
from cotswold.replication.disk.manifest import check_manifest, seal_manifest

MIB = 1 << 20
_MEMTABLE_BYTES = 64 * MIB
"""More than any group has, so that each is one table."""
_LOG_BYTES, _LOG_FILES = MIB, 4
"""Of RocksDB's own words."""
_SPARE_BYTES = 4 * MIB
"""What a group takes besides its contents, at most: tables, a new manifest, words."""
_DATA = "CURRENT", "*.sst"
_FULL = re.compile("No space left|Disk quota exceeded|Space limit reached|File too large", re.IGNORECASE)
_CORRUPT = re.compile("Corruption|checksum mismatch|No such file", re.IGNORECASE)


class CorruptError(Exception):
    """RocksDB cannot read something, because its bits are not those that it wrote."""


class Database:
    """Keys and values in a folder, raw bytes; one thread at a time.

    Raises DiskFullError, StoreError for a damaged file on which all depends, MachineError for the rest.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]  # so says its stub
        self._open: Rdict | None = None
        self._has_failed = False
        self.refusal: MachineError | None = None
        """Why it is open for reading alone."""
        self._open_somehow()

    def recover(self) -> bool:
        """Open it anew if a write has failed, for reading alone where nothing else can be had.

        Returns whether it was opened, so that what is known of its content may be old.
        """
        if not self._has_failed:
            return False
        self.close()
        self._open_somehow()
        self._has_failed = False
        return True

    def recover_to_write(self) -> bool:
        """The same, and anew too where it is open for reading alone: there may be room again."""
        self._has_failed |= self.refusal is not None
        return self.recover()

    def begin_anew(self, puts: Iterable[tuple[bytes, bytes]]) -> None:
        """Have these and nothing else in a database of its own in the place of this one, which is moved
        aside; where that cannot be done all is as it was."""
        new = self._beside("new")
        puts = list(puts)
        shutil.rmtree(new, ignore_errors=True)
        self._check_free(sum(len(key) + len(value) for key, value in puts))
        with self._errors():
            written = Rdict(str(new), _options(is_new=True))
            for key, value in puts:
                written.put(key, value, self._write_options)
            written.flush(True)
            written.close()
            sync_folder(new)
            self.close()
            self._has_failed = True  # until it is open again
            self._swap(new)
        self.recover()

    @contextmanager
    def salvaged(self) -> Iterator[Database]:
        """A copy of all tables that can be opened, as if there were no others: what was in these is gone, so
        some of it is older. Raises CorruptError where nothing can be had."""
        place = self._beside("salvaged")
        copy = place / self._folder.name  # in a folder of its own, for the seal
        try:
            with self._errors():
                shutil.rmtree(place, ignore_errors=True)
                self._check_free(sum(each.stat().st_size for each in self._folder.iterdir()))
                shutil.copytree(self._folder, copy)
                Rdict.repair(str(copy), _options())
            found = Database(copy)
            try:
                yield found
            finally:
                found.close()
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _swap(self, new: Path) -> None:
        """A kill in between leaves the new one, and none in its place: `_open_somehow` goes on."""
        self._folder.with_name("seal").unlink(missing_ok=True)  # it is of the old manifest
        if self._folder.exists():
            shutil.rmtree(self._beside("damaged"), ignore_errors=True)
            self._folder.rename(self._beside("damaged"))
        new.rename(self._folder)
        sync_folder(self._folder.parent)

    def _beside(self, what: str) -> Path:
        return self._folder.with_name(f"{self._folder.name}-{what}")

    def _open_somehow(self) -> None:
        if not self._folder.exists() and self._beside("new").exists():
            with self._errors():
                self._swap(self._beside("new"))
        # a kill may have come before a new database had its first files
        if not any(any(self._folder.glob(each)) for each in _DATA):
            self._open, self.refusal = self._opened(AccessType.read_write(), _options(is_new=True)), None
            return
        try:
            check_manifest(self._folder)
        except (RecordError, FileNotFoundError) as error:
            raise self.damage(error) from error
        try:
            self._open, self.refusal = self._opened(AccessType.read_write(), _options()), None
            with suppress(OSError):  # without it an old seal tells nothing of the new manifest
                seal_manifest(self._folder)
        except CorruptError as error:
            # a table cannot be opened; values of others can be read
            self.refusal = self.damage(error)
            self._open = self._opened_to_read()
        except DiskFullError as error:
            self.refusal = error
            self._open = self._opened(AccessType.read_only(False), _options())

    def _opened_to_read(self) -> Rdict:
        try:
            return self._opened(AccessType.read_only(False), _options(is_paranoid=False))
        except CorruptError as error:
            raise self.damage(error) from error

    def damage(self, error: Exception) -> StoreError:
        """What cannot be read, as people are told of it."""
        return StoreError(f"{self._folder} is damaged ({error}); {BEGIN_EMPTY}")

    def write(self, puts: Iterable[tuple[bytes, bytes]], ranges: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Remove ``ranges`` (from the first key to before the second), then put; all of it or nothing, and on
        disk when it returns."""
        batch = WriteBatch(raw_mode=True)
        for start, stop in ranges:
            batch.delete_range(start, stop)
        for key, value in puts:
            batch.put(key, value)
        self.check_room(batch.size_in_bytes())
        try:
            with self._errors():
                self._readable().write(batch, self._write_options)
                self._readable().flush(True)
                seal_manifest(self._folder)
        except (CorruptError, RecordError) as error:  # found as tables were merged, or the manifest is read
            self._has_failed = True
            raise self.damage(error) from error
        except BaseException:
            self._has_failed = True
            raise

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; raises CorruptError."""
        with self._errors():
            found = self._readable().get(key)
        assert found is None or isinstance(found, bytes)
        return found

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All from a key to before another, in order; raises CorruptError where that cannot go on."""
        with self._errors():
            each = self._readable().iter()
            each.seek(start)
            while each.valid() and (key := each.key()) < stop:
                yield key, each.value()
                each.next()
            each.status()

    def items_backwards(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The same from the last to the first."""
        with self._errors():
            each = self._readable().iter()
            each.seek_for_prev(stop)
            while each.valid() and (key := each.key()) >= start:
                if key < stop:
                    yield key, each.value()
                each.prev()
            each.status()

    def close(self) -> None:
        """Let go of the files; everything that was written is on disk."""
        database, self._open = self._open, None
        if database is not None:
            # all that is worth keeping is on disk; what a failed write left in memory is not
            with suppress(Exception):
                database.cancel_all_background(True)
                database.close()

    def _readable(self) -> Rdict:
        if self._open is None:
            raise MachineError(f"{self._folder} is closed; open it again")
        return self._open

    def _opened(self, access: AccessType, options: Options) -> Rdict:
        with self._errors():
            return Rdict(str(self._folder), options, access_type=access)

    def check_room(self, wanted: int) -> None:
        """Raise DiskFullError before anything is begun that will not fit: cheaper than to fail. Raises too
        where nothing can be written."""
        if self.refusal is not None:
            raise self.refusal
        self._check_free(wanted)

    def _check_free(self, wanted: int) -> None:
        wanted += _SPARE_BYTES
        try:
            free = shutil.disk_usage(self._folder.parent).free
        except OSError as error:
            raise MachineError(
                f"{self._folder} cannot be reached: {error.strerror}; check its disk"
            ) from error
        if free < wanted:
            raise self._full(f"{free} bytes are free and {wanted} wanted")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """RocksDB raises plain exceptions: what they are is in their text."""
        try:
            yield
        except (MachineError, OSError) as error:
            if isinstance(error, OSError):
                raise self._machine_error(error.strerror or "", is_full(error)) from error
            raise
        except rocksdict.DbClosedError as error:
            raise MachineError(f"{self._folder} is closed; open it again") from error
        except Exception as error:
            # exactly Exception is RocksDB's; anything more special is a mistake of ours
            if type(error) is not Exception:
                raise
            text = " ".join(str(error).split())
            if _CORRUPT.search(text):
                raise CorruptError(text) from error
            raise self._machine_error(text, bool(_FULL.search(text))) from error

    def _machine_error(self, text: str, full: bool) -> MachineError:
        if full:
            return self._full(text)
        return MachineError(
            f"{self._folder} cannot be read or written ({text}); check its disk and its permissions"
        )

    def _full(self, text: str) -> DiskFullError:
        return DiskFullError(
            f"no room left to write {self._folder} ({text}); free some space, "
            "what was written before is intact"
        )


def _options(*, is_new: bool = False, is_paranoid: bool = True) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(is_new)
    options.set_paranoid_checks(is_paranoid)
    options.set_max_manifest_file_size(MIB)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_compression_type(DBCompressionType.none())
    options.set_bytes_per_sync(MIB)
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(_LOG_FILES)
    return options
