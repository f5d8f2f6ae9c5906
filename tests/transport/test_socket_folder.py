"""Folders of sockets are removed by their processes, or by others after a kill."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cotswold.errors import MachineError
from cotswold.processes.shutdown_notice import ShutdownNotice
from cotswold.transport.socket_folder import SocketFolder, remove_stale_folders


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as short:  # paths of sockets are short
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield Path(short)


def test_a_folder_is_its_users_alone_and_is_removed(place: Path) -> None:
    folder = SocketFolder()
    assert folder.path.parent == place
    assert folder.path.stat().st_mode & 0o777 == 0o700
    remove_stale_folders()
    assert folder.path.is_dir()  # its process lives
    folder.close()
    assert not list(place.iterdir())


def test_the_folder_of_a_process_that_was_killed_is_removed_by_others(place: Path) -> None:
    child = os.fork()
    if child == 0:
        SocketFolder()
        os._exit(9)
    os.waitpid(child, 0)
    (place / "cotswold-of-something-else").mkdir()
    assert len(list(place.iterdir())) == 2
    remove_stale_folders()
    assert [each.name for each in place.iterdir()] == ["cotswold-of-something-else"]


UNWRITABLE = "/proc"
"""A folder in which not even root can make another."""


@pytest.mark.parametrize("named", [UNWRITABLE, "/nowhere/at/all", ".", ""])
def test_the_next_folder_that_can_be_written_is_taken(
    place: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", named)
    folder = SocketFolder()
    assert folder.path.parent == Path("/tmp")
    folder.close()


@pytest.mark.parametrize("name", ["two words", "x" * 80])
def test_a_path_that_no_address_or_socket_can_have_is_passed_over(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (place / name).mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / name))
    folder = SocketFolder()
    assert folder.path.parent == Path("/tmp")
    folder.close()


def test_where_neither_the_runtime_folder_nor_tmp_can_be_written_tmpdir_is_taken(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", UNWRITABLE)
    monkeypatch.setenv("TMPDIR", str(place))
    make = tempfile.mkdtemp

    def made(prefix: str, dir: str) -> str:
        if dir == "/tmp":
            raise PermissionError(errno.EACCES, "Permission denied")
        return make(prefix=prefix, dir=dir)

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    folder = SocketFolder()
    assert folder.path.parent == place
    folder.close()
    with closing(ShutdownNotice()) as notice:
        assert notice.environ()["COTSWOLD_NOTICE"].startswith(f"{place}/cotswold-")
    held = SocketFolder()
    os.close(held._lock)  # as if its process were killed
    remove_stale_folders()
    assert not held.path.exists()
    monkeypatch.delenv("TMPDIR")
    with pytest.raises(MachineError, match=r"\(/proc: .*; /tmp: Permission denied\); set XDG_RUNTIME_DIR"):
        SocketFolder()
