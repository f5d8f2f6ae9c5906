"""Metadata store in one file of a local disk: SQLite.

Knows: one SQLite database; each row has a checksum, and a seal covers all rows. Does not know: the meaning of
keys, networks.

Several processes of a host may open the file: a transaction holds the only lock for writing. A commit is in
the synced write-ahead log, so it survives a power loss. A network file system will not do, as the processes
share memory.

The row of the empty key is the seal: the number of rows, the sum of their checksums, and the number of
transactions. It is compared with the rows whenever the file is opened, and so detects lost rows. SQLite takes
a damaged frame of the write-ahead log, and everything after it, for a transaction cut by a power loss. So a
separate file records the number of transactions after each of them: a database with fewer has lost some.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from cotswold.errors import DiskFullError, FormatError, MachineError, StoreError, UserError
from cotswold.files.checksum import crc32
from cotswold.files.durable import create_file, is_full
from cotswold.files.untrusted_json import describe_format_error
from cotswold.replication.metadata.interface import (
    Item,
    OutcomeUnknownError,
    Raw,
    checked_transaction,
    prefix_end,
)

APPLICATION = 0x43_6F_74_53
"""SQLite's identifier for the kind of file: "CotS"."""
FORMAT = 1
_FORMATS = 100
"""Upper bound of format numbers: a greater one is damage."""
_SEAL = struct.Struct("<QQQ")
_MODULUS = 1 << 64
NOTE = "-count"
"""Suffix of the file that records the number of transactions."""
_NOTE = struct.Struct("<QQ")
"""The number and its checksum."""
_TABLE = "CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB, checksum INTEGER) WITHOUT ROWID"
_INSERT = "INSERT OR REPLACE INTO state VALUES (?, ?, ?)"
_RETRY_REMEDY = "free some space and try again"
_FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)
"""Our own statements raise these too, but not with a sound schema."""
_READ_ONLY_CODES = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


class SqliteStore:
    """Metadata in a file, which is created if missing; only the thread that created this object may use it.

    A forked process opens its own. ``busy_seconds``: time to wait for other processes. Raises UserError for a
    file of another kind, FormatError for one of another version, StoreError for a damaged one, MachineError
    if it cannot be read and written.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 5.0) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._is_uncertain = False
        """True if the log may hold a transaction that is invisible but that a crash would restore."""
        self._transactions = 0
        """Number of transactions, including the one in progress."""
        _make(path)
        self._file = _identity(path)
        with self._errors("read"):
            self._database = sqlite3.connect(
                f"file:{quote(str(path))}?mode=rw", uri=True, timeout=busy_seconds, isolation_level=None
            )
        try:
            self._open()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, prefix: str, start: str = "", limit: int | None = None) -> dict[str, str]:
        """See `MetadataStore.read`."""
        if self._is_uncertain:
            self._settle()
        with self._errors("read"):
            self._check_file()
            found = self._rows(prefix.encode(), start.encode(), limit)
        return {key.decode(): value.decode() for key, value in found if key}

    def transact(self, compare: Sequence[Item], put: Sequence[Item]) -> bool:
        """See `MetadataStore.transact`; raises MachineError also if the file stays locked."""
        wanted = checked_transaction(compare, put)
        with self._transaction():
            holds = all(self._value(key) == value for key, value in wanted.compare)
            if holds:
                self._put(wanted.put)
        return holds

    def close(self) -> None:
        """Close the file."""
        with suppress(sqlite3.Error):  # commits are durable in any case
            self._database.close()

    # --- opening ---

    def _open(self) -> None:
        with self._errors("read"):
            try:
                application = self._number("PRAGMA application_id")
            except sqlite3.DatabaseError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                    raise
                application = 0
            if application != APPLICATION:
                raise UserError(f"{self.path} holds no state of controllers; name another file")
            version = self._number("PRAGMA user_version")
            if not 0 < version <= _FORMATS:
                raise self._damaged(f"no version of Cotswold writes format {version}")
            if version != FORMAT:
                raise FormatError(
                    f"{self.path} {describe_format_error(version, FORMAT)}; use the version that wrote it, "
                    "or name another file"
                )
            if self._database.execute("SELECT sql FROM sqlite_master").fetchall() != [(_TABLE,)]:
                raise self._damaged("its table is a different one")
            (mode,) = self._database.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise MachineError(f"{self.path} can have no write-ahead log; put it on a local disk")
            self._database.execute("PRAGMA synchronous = FULL")
            self._check_seal()
        with self._errors("written"):  # fail early if it cannot be written
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("ROLLBACK")

    def _check_seal(self) -> None:
        for (said,) in self._database.execute("PRAGMA quick_check(1)"):
            if said != "ok":
                raise self._damaged(f"its structure is wrong ({' '.join(str(said).split())})")
        noted = _noted(self.path)  # before the rows are read: another process may add to them
        seal, count, total = b"", 0, 0
        for key, value in self._rows(b""):
            if key:
                count, total = count + 1, (total + _checksum(key, value)) % _MODULUS
            else:
                seal = value
        if len(seal) != _SEAL.size or _SEAL.unpack(seal)[:2] != (count, total):
            raise self._damaged("keys are missing or are too many")
        done = _SEAL.unpack(seal)[2]
        if done < noted:
            raise self._damaged(f"the last {noted - done} of its {noted} transactions are lost")

    def _number(self, pragma: str) -> int:
        (found,) = self._database.execute(pragma).fetchone()
        return int(found)

    # --- rows ---

    def _rows(self, prefix: bytes, last: bytes = b"", most: int | None = None) -> list[tuple[bytes, bytes]]:
        """Return rows with a key prefix, and the seal if the prefix is empty; one statement, so as of one
        moment.

        Only those after ``last``, if given; at most ``most``, and the seal.
        """
        end, start = prefix_end(prefix), last + b"\0" if last else b""
        bounds: list[object] = [max(prefix, start)]
        beyond = "" if end is None else "AND key < ?"
        bounds += [] if end is None else [end]
        rows = self._database.execute(
            f"SELECT key, value, checksum FROM state WHERE key >= ? {beyond} ORDER BY key LIMIT ?",
            (*bounds, -1 if most is None else most + (bounds[0] == b"")),
        )
        return [(key, self._verified(key, value, checksum)) for key, value, checksum in rows]

    def _value(self, key: bytes) -> bytes | None:
        row = self._database.execute("SELECT value, checksum FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else self._verified(key, *row)

    def _verified(self, key: object, value: object, checksum: object) -> bytes:
        if isinstance(key, bytes) and isinstance(value, bytes) and checksum == _checksum(key, value):
            return value
        raise self._damaged(f"the checksum of the key {_key_text(key)} does not match")

    def _put(self, items: Sequence[Raw]) -> None:
        """Inside a transaction: put these items and the resulting seal."""
        count, total, number = _SEAL.unpack(self._value(b"") or bytes(_SEAL.size))
        for key, value in items:
            before = self._value(key)
            if before is not None:
                count, total = count - 1, total - _checksum(key, before)
            if value is not None:
                count, total = count + 1, total + _checksum(key, value)
                self._database.execute(_INSERT, (key, value, _checksum(key, value)))
            elif before is not None:
                self._database.execute("DELETE FROM state WHERE key = ?", (key,))
        self._transactions = number + 1
        seal = _SEAL.pack(count, total % _MODULUS, self._transactions)
        self._database.execute(_INSERT, (b"", seal, _checksum(b"", seal)))

    def _settle(self) -> None:
        """Overwrite what a failed commit may have left in the log: a crash might still commit it."""
        with self._transaction():
            self._put(())

    # --- errors ---

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a database transaction, rolled back on any error."""
        try:
            with self._errors("written"):
                self._database.execute("BEGIN IMMEDIATE")
                self._check_file()
                yield
            self._commit()
            _note(self.path, self._transactions)
        except BaseException:
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            raise
        self._is_uncertain = False

    def _commit(self) -> None:
        try:
            with self._errors("written"):
                self._database.execute("COMMIT")
        except (DiskFullError, StoreError):
            self._is_uncertain = True
            raise
        except MachineError as error:
            self._is_uncertain = True
            raise OutcomeUnknownError(
                f"{error}; whether the last transaction is done shows when the state is read again"
            ) from error

    def _check_file(self) -> None:
        """Check that others who open the path would find this very file."""
        if _identity(self.path) != self._file:
            raise MachineError(f"{self.path} was removed or replaced while it was in use; start again")

    def _damaged(self, why: str) -> StoreError:
        return StoreError(
            f"{self.path} is damaged: {why}; move it away with its -wal and start from a checkpoint"
        )

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Convert SQLite's errors about the machine into sentences; those about the program stay."""
        try:
            yield
        except UnicodeDecodeError as error:  # in SQLite's text about a damaged file, or in its contents
            raise self._damaged("it contains invalid text") from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.NotSupportedError):
                raise
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code in _FULL_CODES:
                raise DiskFullError(f"no room left to write {self.path}; {_RETRY_REMEDY}") from error
            kind = code & 0xFF
            if kind in _DAMAGED:
                raise self._damaged(str(error)) from error
            if kind in _BUSY:
                raise MachineError(
                    f"another process has kept {self.path} locked for {self._busy_seconds:g} s; "
                    "end it, or wait until it has finished"
                ) from error
            if kind in _READ_ONLY_CODES:
                raise MachineError(
                    f"{self.path} cannot be {verb} ({error}); let this user write to it and its folder"
                ) from error
            name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
            raise MachineError(f"{self.path} cannot be {verb} ({error}, {name}); check its disk") from error


def _make(path: Path) -> None:
    """Create an empty, complete database if there is no file."""
    if _identity(path) is not None:
        return
    try:
        _note_of(path).unlink(missing_ok=True)  # it belongs to a lost database
        create_file(path, _empty())
    except FileExistsError:  # another process was faster
        pass
    except OSError as error:
        if is_full(error):
            raise DiskFullError(
                f"no room left to write {path} ({error.strerror}); {_RETRY_REMEDY}"
            ) from error
        raise MachineError(
            f"{path} cannot be made: {error.strerror}; name a file in a folder that this user can write to"
        ) from error


def _empty() -> bytes:
    """Return the contents of the file of an empty database."""
    made = sqlite3.connect(":memory:", isolation_level=None)
    try:
        made.execute(f"PRAGMA application_id = {APPLICATION}")
        made.execute(f"PRAGMA user_version = {FORMAT}")
        made.execute(_TABLE)
        seal = _SEAL.pack(0, 0, 0)
        made.execute(_INSERT, (b"", seal, _checksum(b"", seal)))
        contents = bytearray(made.serialize())
    finally:
        made.close()
    contents[18:20] = b"\2\2"  # read and written by a write-ahead log (SQLite's file format, section 1.3.3)
    return bytes(contents)


def _note_of(path: Path) -> Path:
    return path.with_name(path.name + NOTE)


def _note(path: Path, number: int) -> None:
    """Record the number of transactions; if that fails, the record stays lower."""
    with suppress(OSError):
        file = os.open(_note_of(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, _NOTE.pack(number, crc32(number.to_bytes(8, "little"))), 0)
        finally:
            os.close(file)


def _noted(path: Path) -> int:
    """Return the recorded number of transactions; 0 if there is none, as after a power loss. Raises
    StoreError for a damaged record, as the rest may be damaged too."""
    try:
        note = _note_of(path).read_bytes()
    except OSError:
        return 0
    if not any(note):  # a power loss may leave a file of zeros
        return 0
    number, checksum = _NOTE.unpack(note) if len(note) == _NOTE.size else (0, -1)
    if checksum != crc32(int(number).to_bytes(8, "little")):
        raise StoreError(
            f"{_note_of(path)} is damaged, which has the number of transactions of {path}: the state may be, "
            "too; move both away and recover it (cotswold cluster recover), or remove that file alone"
        )
    return int(number)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another of the same name; None if there is none."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read: {error.strerror}; let this user read its folder, or name another"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is no regular file, and links are not followed; name the file itself")
    return found.st_dev, found.st_ino


def _checksum(key: bytes, value: bytes) -> int:
    """Return the checksum of a row; the length separates the key from its value."""
    return crc32(value, crc32(key, len(key)))


def _key_text(key: object) -> str:
    return repr(os.fsdecode(key) if isinstance(key, bytes) else key)[:80]
