"""Metadata in a file."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.replication.metadata_clients import KEYS, Place, played
from tests.support.replication.metadata_contract import StateContract

from cotswold.errors import CotswoldError, DiskFullError, FormatError, MachineError, StoreError, UserError
from cotswold.replication.metadata import OutcomeUnknownError, SqliteStore

KILLS = 8


class TestSqlite(StateContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return ("sqlite", str(tmp_path / "state % ?#.db"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_after_every_kill_all_of_a_transaction_is_there_or_nothing_and_none_that_was_reported_is_lost(
    path: Path,
) -> None:
    chance, reported = random.Random(5), 0
    for _ in range(KILLS):
        with played("fill", "sqlite", str(path)) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 200))]
            time.sleep(chance.random() / 1000)  # so that it is killed anywhere in a transaction
            writer.kill()
            lines += writer.stdout.read().splitlines()
        reported = max(reported, *(int(line) for line in lines if line))
        with SqliteStore(path) as state:
            found = state.read("")
        assert len(found) == KEYS and len(set(found.values())) == 1
        assert reported <= int(found["key/0"]) <= reported + 1
    assert reported > KILLS


@pytest.fixture
def filled(path: Path) -> bytes:
    """Return the file of a store with some keys, completely checkpointed."""
    with SqliteStore(path) as state:
        state.transact([], [(f"key/{at}", f"value {at} " + "x" * at * 3) for at in range(KEYS)])
    assert sorted(each.name for each in path.parent.iterdir()) == ["state.db", "state.db-count"]
    return path.read_bytes()


@pytest.mark.parametrize("sought", [b"value 7", b"key/7"])
def test_a_flipped_byte_is_told_with_its_key(path: Path, filled: bytes, sought: bytes) -> None:
    with SqliteStore(path) as state:
        state.transact([("key/7", None)], [])  # open, and all in order
        at = filled.index(sought)
        path.write_bytes(filled[:at] + bytes([filled[at] ^ 4]) + filled[at + 1 :])
        for _ in range(2):
            with pytest.raises(
                StoreError, match=r"state.db is damaged: the checksum of the key '[ko]ey/7' do"
            ):
                SqliteStore(path)


def test_whichever_byte_is_flipped_the_same_is_read_or_an_error_is_raised(
    tmp_path: Path, path: Path, filled: bytes
) -> None:
    with SqliteStore(path) as state:
        before = state.read("")
    chance, told = random.Random(7), 0
    for at in range(len(filled)):
        other = tmp_path / f"{at}.db"
        other.write_bytes(filled[:at] + bytes([filled[at] ^ 1 << chance.randrange(8)]) + filled[at + 1 :])
        try:
            with SqliteStore(other) as state:
                assert state.read("") == before, f"byte {at}"
        except (MachineError, UserError) as error:
            told += str(other) in str(error)
    assert told > 1000


def test_a_row_that_is_gone_is_told(path: Path, filled: bytes) -> None:
    other = sqlite3.connect(path)
    with other:
        other.execute("DELETE FROM state WHERE key = ?", (b"key/7",))
    other.close()
    with pytest.raises(StoreError, match="keys are missing or are too many"):
        SqliteStore(path)


def test_a_damaged_value_is_neither_compared_nor_replaced(path: Path, filled: bytes) -> None:
    with SqliteStore(path) as state:
        other = sqlite3.connect(path)
        with other:
            other.execute("UPDATE state SET value = ? WHERE key = ?", (b"no", b"key/7"))
        other.close()
        for compare, put in (([("key/7", "no")], []), ([], [("key/7", "1")])):
            with pytest.raises(StoreError, match=r"key '?key/7'? does not match; move it away"):
                state.transact(compare, put)
        with pytest.raises(StoreError, match="key/7"):
            state.read("key/")
        assert state.read("key/8") and state.transact([], [("key/8", "1")])


def fill(disk: Path) -> Path:
    """Fill the disk."""
    filler, free = disk / "filler", os.statvfs(disk)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    return filler


def test_on_a_full_disk_nothing_is_put_and_with_room_again_it_goes_on(disk: Path) -> None:
    with SqliteStore(disk / "state.db") as state:
        assert state.transact([], [("a", "1")])
        filler = fill(disk)
        for _ in range(2):
            with pytest.raises(DiskFullError, match=r"no room left to write .*state\.db; free some space"):
                state.transact([("a", "1")], [("a", "2"), ("b", "x" * 60_000)])
        filler.unlink()
        assert state.read("") == {"a": "1"}
        assert state.transact([("a", "1")], [("a", "2"), ("b", "x" * 60_000)])
        assert state.read("a") == {"a": "2"}


def test_on_a_full_disk_no_state_is_made(disk: Path) -> None:
    fill(disk)
    with pytest.raises(DiskFullError, match="no room left"):
        SqliteStore(disk / "state.db")
    assert [each.name for each in disk.iterdir()] == ["filler"]


def test_a_folder_that_cannot_be_written_to_is_told(disk: Path) -> None:
    SqliteStore(disk / "old.db").close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(
        MachineError, match=r"state\.db cannot be made: Read-only file system; name a file in"
    ):
        SqliteStore(disk / "state.db")
    with pytest.raises(MachineError, match=r"old\.db cannot be .*; let this user write to it and its folder"):
        SqliteStore(disk / "old.db")


def test_a_missing_folder_is_told(path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be made: No such file or directory; name a file"):
        SqliteStore(path.parent / "missing" / "state.db")


@pytest.mark.parametrize("contents", [b"", b"something else" * 400])
def test_a_file_of_something_else_is_refused_and_left(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    with pytest.raises(UserError, match="holds no state of controllers; name another file"):
        SqliteStore(path)
    assert path.read_bytes() == contents


def test_another_database_is_refused_and_left(path: Path) -> None:
    other = sqlite3.connect(path)
    with other:
        other.execute("CREATE TABLE state (key BLOB PRIMARY KEY, value BLOB)")
    other.close()
    contents = path.read_bytes()
    with pytest.raises(UserError, match="holds no state of controllers"):
        SqliteStore(path)
    assert path.read_bytes() == contents


def test_a_file_of_another_version_is_refused_by_its_number(path: Path, filled: bytes) -> None:
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 2")
    other.close()
    with pytest.raises(FormatError, match=r"a newer version of Cotswold \(format 2; this version reads 1\)"):
        SqliteStore(path)


def test_a_link_is_not_followed(path: Path, filled: bytes) -> None:
    link = path.parent / "link.db"
    link.symlink_to(path)
    with pytest.raises(UserError, match="links are not followed"):
        SqliteStore(link)


def test_a_transaction_waits_for_another_process_as_long_as_it_is_told(path: Path, filled: bytes) -> None:
    with SqliteStore(path, busy_seconds=0.2) as state:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(MachineError, match=r"has kept .*state\.db locked for 0\.2 s; end it") as caught:
            state.transact([], [("a", "1")])
        assert not isinstance(caught.value, OutcomeUnknownError) and len(state.read("")) == KEYS
        other.close()
        assert state.transact([], [("a", "1")])


def test_a_file_that_was_replaced_is_not_written_to(path: Path, filled: bytes) -> None:
    with SqliteStore(path) as state:
        path.rename(path.with_name("moved.db"))
        SqliteStore(path).close()
        for use in (lambda: state.read(""), lambda: state.transact([], [("a", "1")])):
            with pytest.raises(MachineError, match="was removed or replaced while it was in use"):
                use()


class _FailingCommits:
    """A connection whose commits fail with a disk error."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def execute(self, statement: str, words: tuple[bytes | int, ...] = ()) -> sqlite3.Cursor:
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._database.execute(statement, words)


def test_whether_a_failed_commit_is_done_is_not_known_until_it_is_read_again(
    path: Path, filled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(path) as state:
        sound = state._database
        monkeypatch.setattr(state, "_database", _FailingCommits(sound))
        with pytest.raises(
            OutcomeUnknownError, match=r"cannot be written .*; whether the last transaction is"
        ):
            state.transact([], [("a", "1")])
        with pytest.raises(MachineError):
            state.read("a")
        monkeypatch.setattr(state, "_database", sound)
        seal = state._value(b"")
        assert state.read("a") == {}
        assert state._value(b"") != seal  # something was written over what the log may hold


def test_another_thread_may_not_use_it(path: Path) -> None:
    raised: list[BaseException] = []

    def use() -> None:
        try:
            state.read("")
        except sqlite3.ProgrammingError as error:
            raised.append(error)

    with SqliteStore(path) as state:
        thread = threading.Thread(target=use)
        thread.start()
        thread.join(10)
    assert len(raised) == 1 and not isinstance(raised[0], CotswoldError)


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_write_ahead_log_that_lost_its_end_is_damage_and_no_older_state(
    tmp_path: Path, left: float
) -> None:
    path, copied = tmp_path / "state.sqlite", tmp_path / "copied.sqlite"
    with SqliteStore(path) as state:
        for number in range(20):
            assert state.transact([], [(f"key {number}", "x" * 500)])
        for ending in ("", "-wal", "-count"):  # as a kill would leave it
            (tmp_path / f"copied.sqlite{ending}").write_bytes(
                (tmp_path / f"state.sqlite{ending}").read_bytes()
            )
    log = tmp_path / "copied.sqlite-wal"
    os.truncate(log, int(left * log.stat().st_size))
    with pytest.raises(StoreError, match=r"transactions are lost; move it away"):
        SqliteStore(copied)


def test_a_state_without_its_note_or_with_an_older_one_is_read(tmp_path: Path) -> None:
    path, note = tmp_path / "state.sqlite", tmp_path / "state.sqlite-count"
    with SqliteStore(path) as state:
        state.transact([], [("key", "1")])
    before = note.read_bytes()
    with SqliteStore(path) as state:
        state.transact([], [("key", "2")])
    for left in (before, b"", bytes(16), None):
        note.unlink() if left is None else note.write_bytes(left)
        with SqliteStore(path) as state:
            assert state.read("") == {"key": "2"}
    note.write_bytes(before[:8])
    with pytest.raises(StoreError, match=r"state\.sqlite-count is damaged"):
        SqliteStore(path)
    path.unlink()
    SqliteStore(path).close()  # another one, that has had fewer


def test_a_format_that_no_release_writes_is_damage(filled: bytes, path: Path) -> None:
    path.write_bytes(filled[:60] + (65281).to_bytes(4, "big") + filled[64:])
    with pytest.raises(StoreError, match="no version of Cotswold writes format 65281"):
        SqliteStore(path)
