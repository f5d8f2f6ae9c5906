"""State in one file of a local disk: SQLite.

Knows: one SQLite database, in which every row has a checksum and all rows together have a seal. Does not
know: what keys mean, networks.

Several processes of a host may have the file open: a transaction holds the only lock for writing. What is
committed is in the write-ahead log and synced, so it outlives a power cut. A network file system will not do,
for the processes share memory.

The row of the empty key is the seal: how many rows there are, the sum of their checksums, and how many
transactions were done. It is compared with the rows whenever the file is opened, and tells of a row that is
gone. SQLite takes a damaged frame of the write-ahead log, and all that follow, for a transaction that a power
cut ended. So the number of transactions is noted in a file beside, after each of them: a state that has had
fewer has lost some.
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
from cotswold.replication.metadata.interface import Item, OutcomeUnknownError, Raw, after, checked

APPLICATION = 0x43_6F_74_53
"""SQLite's name for the kind of file: "CotS"."""
FORMAT = 1
_FORMATS = 100
"""Formats that there will be, at most: another number is damage."""
_SEAL = struct.Struct("<QQQ")
_MODULUS = 1 << 64
NOTE = "-count"
"""Behind the name of the file: that in which the number of transactions is noted."""
_NOTE = struct.Struct("<QQ")
"""The number, and its checksum."""
_TABLE = "CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB, checksum INTEGER) WITHOUT ROWID"
_INSERT = "INSERT OR REPLACE INTO state VALUES (?, ?, ?)"
_AGAIN = "free some space and try again"
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT)
"""Errors of our own statements too: with a sound schema they raise none."""
_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


class SqliteState:
    """The state in a file, which is made where there is none; only the thread that made this may use it.

    A process that is forked opens its own. ``busy_seconds``: for so long it waits for other processes. Raises
    UserError for a file of something else, FormatError where another version wrote it, StoreError for a
    damaged one, MachineError where it cannot be read and written.
    """

    def __init__(self, path: Path, *, busy_seconds: float = 5.0) -> None:
        self.path = path
        self._busy_seconds = busy_seconds
        self._is_unsettled = False
        """Whether the log may hold a transaction that nobody sees, but that a crash would bring to light."""
        self._done = 0
        """Transactions that the state has had, with that which is under way."""
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

    def __enter__(self) -> SqliteState:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, prefix: str, after: str = "", most: int | None = None) -> dict[str, str]:
        """As `State.read`."""
        if self._is_unsettled:
            self._settle()
        with self._errors("read"):
            self._check_place()
            found = self._rows(prefix.encode(), after.encode(), most)
        return {key.decode(): value.decode() for key, value in found if key}

    def transact(self, compare: Sequence[Item], put: Sequence[Item]) -> bool:
        """As `State.transact`; MachineError too where another process has kept the file for too long."""
        wanted = checked(compare, put)
        with self._writing():
            holds = all(self._value(key) == value for key, value in wanted.compare)
            if holds:
                self._put(wanted.put)
        return holds

    def close(self) -> None:
        """Let go of the file."""
        with suppress(sqlite3.Error):  # what was committed is on the disk, whatever becomes of the log
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
                raise self._damaged(f"no Cotswold writes format {version}")
            if version != FORMAT:
                raise FormatError(
                    f"{self.path} {describe_format_error(version, FORMAT)}; use the version that wrote it, "
                    "or name another file"
                )
            if self._database.execute("SELECT sql FROM sqlite_master").fetchall() != [(_TABLE,)]:
                raise self._damaged("its table is another")
            (mode,) = self._database.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise MachineError(f"{self.path} can have no write-ahead log; put it on a local disk")
            self._database.execute("PRAGMA synchronous = FULL")
            self._check_seal()
        with self._errors("written"):  # whoever cannot write is to be told at once
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("ROLLBACK")

    def _check_seal(self) -> None:
        for (said,) in self._database.execute("PRAGMA quick_check(1)"):
            if said != "ok":
                raise self._damaged(f"its structure is wrong ({' '.join(str(said).split())})")
        noted = _noted(self.path)  # before the rows are read: another process may do more
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
        """Rows whose keys begin so, and the seal where that is nothing; one statement, so one moment.

        Only those after ``last``, if that is something; no more than ``most``, and the seal."""
        end, start = after(prefix), last + b"\0" if last else b""
        bounds: list[object] = [max(prefix, start)]
        beyond = "" if end is None else "AND key < ?"
        bounds += [] if end is None else [end]
        rows = self._database.execute(
            f"SELECT key, value, checksum FROM state WHERE key >= ? {beyond} ORDER BY key LIMIT ?",
            (*bounds, -1 if most is None else most + (bounds[0] == b"")),
        )
        return [(key, self._sound(key, value, checksum)) for key, value, checksum in rows]

    def _value(self, key: bytes) -> bytes | None:
        row = self._database.execute("SELECT value, checksum FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else self._sound(key, *row)

    def _sound(self, key: object, value: object, checksum: object) -> bytes:
        if isinstance(key, bytes) and isinstance(value, bytes) and checksum == _checksum(key, value):
            return value
        raise self._damaged(f"the checksum of the key {_shown(key)} does not match")

    def _put(self, items: Sequence[Raw]) -> None:
        """In a transaction: these, and the seal that they make."""
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
        self._done = number + 1
        seal = _SEAL.pack(count, total % _MODULUS, self._done)
        self._database.execute(_INSERT, (b"", seal, _checksum(b"", seal)))

    def _settle(self) -> None:
        """Overwrite what a failed commit may have left in the log: else a crash might yet have it done."""
        with self._writing():
            self._put(())

    # --- errors ---

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction of the database, rolled back where anything raises."""
        try:
            with self._errors("written"):
                self._database.execute("BEGIN IMMEDIATE")
                self._check_place()
                yield
            self._commit()
            _note(self.path, self._done)
        except BaseException:
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            raise
        self._is_unsettled = False

    def _commit(self) -> None:
        try:
            with self._errors("written"):
                self._database.execute("COMMIT")
        except (DiskFullError, StoreError):
            self._is_unsettled = True
            raise
        except MachineError as error:
            self._is_unsettled = True
            raise OutcomeUnknownError(
                f"{error}; whether the last transaction is done shows when the state is read again"
            ) from error

    def _check_place(self) -> None:
        """Whoever opens the file later must find this very one."""
        if _identity(self.path) != self._file:
            raise MachineError(f"{self.path} was removed or replaced while it was in use; start again")

    def _damaged(self, why: str) -> StoreError:
        return StoreError(
            f"{self.path} is damaged: {why}; move it away with its -wal and start from a checkpoint"
        )

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Turn what SQLite says of the machine into a sentence; what it says of the program stays."""
        try:
            yield
        except UnicodeDecodeError as error:  # in what SQLite says of a damaged file, or hands on from it
            raise self._damaged("there is what is not text") from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.NotSupportedError):
                raise
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code in _FULL:
                raise DiskFullError(f"no room left to write {self.path}; {_AGAIN}") from error
            kind = code & 0xFF
            if kind in _DAMAGED:
                raise self._damaged(str(error)) from error
            if kind in _BUSY:
                raise MachineError(
                    f"another process has kept {self.path} locked for {self._busy_seconds:g} s; "
                    "end it, or wait until it has finished"
                ) from error
            if kind in _READ_ONLY:
                raise MachineError(
                    f"{self.path} cannot be {verb} ({error}); let this user write to it and its folder"
                ) from error
            name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
            raise MachineError(f"{self.path} cannot be {verb} ({error}, {name}); look at its disk") from error


def _make(path: Path) -> None:
    """An empty state, whole, where there is no file."""
    if _identity(path) is not None:
        return
    try:
        _note_of(path).unlink(missing_ok=True)  # it is of a state that is gone
        create_file(path, _empty())
    except FileExistsError:  # another process was faster
        pass
    except OSError as error:
        if is_full(error):
            raise DiskFullError(f"no room left to write {path} ({error.strerror}); {_AGAIN}") from error
        raise MachineError(
            f"{path} cannot be made: {error.strerror}; name a file in a folder that this user can write to"
        ) from error


def _empty() -> bytes:
    """The contents of the file of an empty state."""
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
    """So many transactions are done; where that cannot be noted, fewer are known to be."""
    with suppress(OSError):
        file = os.open(_note_of(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(file, _NOTE.pack(number, crc32(number.to_bytes(8, "little"))), 0)
        finally:
            os.close(file)


def _noted(path: Path) -> int:
    """How many transactions are known to be done; 0 where none was noted, as after a power cut. Raises
    StoreError for a note that is damaged, as the rest may be."""
    try:
        note = _note_of(path).read_bytes()
    except OSError:
        return 0
    if not any(note):  # a power cut may leave a file of zeros
        return 0
    number, checksum = _NOTE.unpack(note) if len(note) == _NOTE.size else (0, -1)
    if checksum != crc32(int(number).to_bytes(8, "little")):
        raise StoreError(
            f"{_note_of(path)} is damaged, which has the number of transactions of {path}: the state may be, "
            "too; move both away and recover it (cotswold cluster recover), or remove that file alone"
        )
    return int(number)


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another of its name; None where there is none."""
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
    """Of a row; the length keeps a key apart from its value."""
    return crc32(value, crc32(key, len(key)))


def _shown(key: object) -> str:
    return repr(os.fsdecode(key) if isinstance(key, bytes) else key)[:80]
