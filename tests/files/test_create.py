"""New files without replacement, made by several processes at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cotswold.files import create_file, replace_file, replacing


def test_a_file_for_its_user_alone_is_so_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []
    to_disk = os.fsync

    def fsync(file: int) -> None:  # before the file has its name
        modes.append(stat.S_IMODE(os.fstat(file).st_mode))
        to_disk(file)

    monkeypatch.setattr(os, "fsync", fsync)
    create_file(tmp_path / "secret", b"text", mode=0o600)
    assert modes[0] == 0o600 and stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_processes_of_two_hosts_with_the_same_number_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "name", os.link

    def late(*names: Path) -> None:  # the other one does all its work between our two steps
        monkeypatch.setattr(os, "link", link)
        create_file(path, b"the other's")
        link(*names)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(FileExistsError):
        create_file(path, b"ours")
    assert path.read_bytes() == b"the other's"
    assert [each.name for each in tmp_path.iterdir()] == ["name"]


def test_a_file_that_two_with_the_same_number_replace_at_once_is_that_of_one_of_them_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "name"
    with replacing(path) as file:
        file.write(b"half, ")
        replace_file(path, b"the other's")
        assert path.read_bytes() == b"the other's"
        file.write(b"ours")
    assert path.read_bytes() == b"half, ours"
    assert [each.name for each in tmp_path.iterdir()] == ["name"]
