"""Folders of sockets are removed by their processes, or by others where these were killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cotswold.cluster.transport.folder import SocketFolder, remove_left_folders


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp") as short:  # paths of sockets are short
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        yield Path(short)


def test_a_folder_is_its_users_alone_and_is_removed(place: Path) -> None:
    folder = SocketFolder()
    assert folder.path.parent == place
    assert folder.path.stat().st_mode & 0o777 == 0o700
    remove_left_folders()
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
    remove_left_folders()
    assert [each.name for each in place.iterdir()] == ["cotswold-of-something-else"]
