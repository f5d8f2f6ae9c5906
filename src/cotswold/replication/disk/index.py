"""RocksDB as the index of the block store: one flush per batch, and our own errors.

Knows: RocksDB, its options and the text of its errors. Does not know: the meaning of keys and values.

There is no write-ahead log. A batch goes into one table in memory, which is written out and synced before
`write` returns. RocksDB adds a table to its manifest by one record, so a batch is on disk completely or not
at all. A flipped bit in a log would cost everything behind it, without a trace of what it was; in a table it
costs a few values.

After a failed write, RocksDB refuses all further writes. So the next write reopens the database first.

A damaged database is rebuilt: its new contents are written to ``FOLDER-new``, which replaces it once it is on
disk. The old one becomes ``FOLDER-damaged``; only the last one is kept.
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
from cotswold.replication.disk.corruption import BEGIN_EMPTY
from cotswold.replication.disk.manifest import check_manifest, seal_manifest
from cotswold.replication.disk.records import RecordError

MIB = 1 << 20
_MEMTABLE_BYTES = 64 * MIB
"""More than any batch has, so that each is one table."""
_LOG_BYTES, _LOG_FILES = MIB, 4
"""Limits of RocksDB's own log."""
_RESERVE_BYTES = 4 * MIB
"""Maximum bytes of a batch in addition to its contents: tables, a new manifest, logs."""
_DATA = "CURRENT", "*.sst"
_DISK_FULL = re.compile("No space left|Disk quota exceeded|Space limit reached|File too large", re.IGNORECASE)
_CORRUPT = re.compile("Corruption|checksum mismatch|No such file", re.IGNORECASE)


class CorruptError(Exception):
    """Error: RocksDB cannot read something, as its bits are not those that it wrote."""


class Database:
    """Keys and values in a folder, as raw bytes; for one thread at a time.

    Raises DiskFullError, StoreError for damage to a file on which everything depends, MachineError otherwise.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._write_options = WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign,assignment]  # so says its stub
        self._open: Rdict | None = None
        self._has_failed = False
        self.refusal: MachineError | None = None
        """Why it is open read-only."""
        self._open_somehow()

    def recover(self) -> bool:
        """Reopen the database after a failed write; read-only if nothing else is possible.

        Returns True if it was reopened, so that the caller's knowledge of its contents may be outdated.
        """
        if not self._has_failed:
            return False
        self.close()
        self._open_somehow()
        self._has_failed = False
        return True

    def recover_to_write(self) -> bool:
        """Recover, and also reopen a read-only database: there may be room again."""
        self._has_failed |= self.refusal is not None
        return self.recover()

    def start_over(self, puts: Iterable[tuple[bytes, bytes]]) -> None:
        """Replace the database by a new one with exactly these entries, and move the old one aside; if
        that fails, nothing changes."""
        new = self._sibling_path("new")
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
            self._has_failed = True  # until it is reopened
            self._swap(new)
        self.recover()

    @contextmanager
    def moved_aside(self) -> Iterator[Database]:
        """Open a copy of all readable tables, without the others. Their entries are lost, so some values
        are older. Raises CorruptError if nothing can be read."""
        place = self._sibling_path("salvaged")
        copy = place / self._folder.name  # in its own folder, for the seal
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
        """After a kill in between, only the new database exists: `_open_somehow` completes the swap."""
        self._folder.with_name("seal").unlink(missing_ok=True)  # it belongs to the old manifest
        if self._folder.exists():
            shutil.rmtree(self._sibling_path("damaged"), ignore_errors=True)
            self._folder.rename(self._sibling_path("damaged"))
        new.rename(self._folder)
        sync_folder(self._folder.parent)

    def _sibling_path(self, name: str) -> Path:
        return self._folder.with_name(f"{self._folder.name}-{name}")

    def _open_somehow(self) -> None:
        if not self._folder.exists() and self._sibling_path("new").exists():
            with self._errors():
                self._swap(self._sibling_path("new"))
        # a killed process may have left a new database without its first files
        if not any(any(self._folder.glob(each)) for each in _DATA):
            self._open, self.refusal = (
                self._open_database(AccessType.read_write(), _options(is_new=True)),
                None,
            )
            return
        try:
            check_manifest(self._folder)
        except (RecordError, FileNotFoundError) as error:
            raise self.damage(error) from error
        try:
            self._open, self.refusal = self._open_database(AccessType.read_write(), _options()), None
            with suppress(OSError):  # an old seal does not mention the new manifest
                seal_manifest(self._folder)
        except CorruptError as error:
            # a table cannot be opened; values of others can be read
            self.refusal = self.damage(error)
            self._open = self._open_to_read()
        except DiskFullError as error:
            self.refusal = error
            self._open = self._open_database(AccessType.read_only(False), _options())

    def _open_to_read(self) -> Rdict:
        try:
            return self._open_database(AccessType.read_only(False), _options(is_paranoid=False))
        except CorruptError as error:
            raise self.damage(error) from error

    def damage(self, error: Exception) -> StoreError:
        """Return the error about damage, for people."""
        return StoreError(f"{self._folder} is damaged ({error})", remedy=BEGIN_EMPTY)

    def write(self, puts: Iterable[tuple[bytes, bytes]], ranges: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Delete ``ranges`` (first key to last, exclusive), then put; all or nothing, durable on return."""
        batch = WriteBatch(raw_mode=True)
        for start, stop in ranges:
            batch.delete_range(start, stop)
        for key, value in puts:
            batch.put(key, value)
        self.check_space(batch.size_in_bytes())
        try:
            with self._errors():
                self._readable().write(batch, self._write_options)
                self._readable().flush(True)
                seal_manifest(self._folder)
        except (CorruptError, RecordError) as error:  # found when tables were merged or the manifest was read
            self._has_failed = True
            raise self.damage(error) from error
        except BaseException:
            self._has_failed = True
            raise

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; raises CorruptError."""
        with self._errors():
            found = self._readable().get(key)
        assert found is None or isinstance(found, bytes)
        return found

    def items(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries from a key to another, exclusive, in order; raises CorruptError at damage."""
        with self._errors():
            each = self._readable().iter()
            each.seek(start)
            while each.valid() and (key := each.key()) < stop:
                yield key, each.value()
                each.next()
            each.status()

    def items_backwards(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the same from the last to the first."""
        with self._errors():
            each = self._readable().iter()
            each.seek_for_prev(stop)
            while each.valid() and (key := each.key()) >= start:
                if key < stop:
                    yield key, each.value()
                each.prev()
            each.status()

    def close(self) -> None:
        """Close the files; everything written is on disk."""
        database, self._open = self._open, None
        if database is not None:
            # everything worth keeping is on disk; what a failed write left in memory is not
            with suppress(Exception):
                database.cancel_all_background(True)
                database.close()

    def _readable(self) -> Rdict:
        if self._open is None:
            raise MachineError(f"{self._folder} is closed; open it again")
        return self._open

    def _open_database(self, access: AccessType, options: Options) -> Rdict:
        with self._errors():
            return Rdict(str(self._folder), options, access_type=access)

    def check_space(self, bytes_needed: int) -> None:
        """Raise DiskFullError before a write that will not fit, which is cheaper than to fail. Raises also
        if the database is read-only."""
        if self.refusal is not None:
            raise self.refusal
        self._check_free(bytes_needed)

    def _check_free(self, wanted: int) -> None:
        wanted += _RESERVE_BYTES
        try:
            free = shutil.disk_usage(self._folder.parent).free
        except OSError as error:
            raise MachineError(
                f"{self._folder} cannot be reached: {error.strerror}; check its disk"
            ) from error
        if free < wanted:
            raise self._disk_full_error(f"{free} bytes are free, {wanted} are needed")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert RocksDB's errors: it raises plain exceptions, whose kind is only in their text."""
        try:
            yield
        except (MachineError, OSError) as error:
            if isinstance(error, OSError):
                raise self._machine_error(error.strerror or "", is_full(error)) from error
            raise
        except rocksdict.DbClosedError as error:
            raise MachineError(f"{self._folder} is closed; open it again") from error
        except Exception as error:
            # exactly Exception is RocksDB's; any subclass is a mistake of ours
            if type(error) is not Exception:
                raise
            text = " ".join(str(error).split())
            if _CORRUPT.search(text):
                raise CorruptError(text) from error
            raise self._machine_error(text, bool(_DISK_FULL.search(text))) from error

    def _machine_error(self, text: str, full: bool) -> MachineError:
        if full:
            return self._disk_full_error(text)
        return MachineError(
            f"{self._folder} cannot be read or written ({text}); check its disk and its permissions"
        )

    def _disk_full_error(self, text: str) -> DiskFullError:
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
