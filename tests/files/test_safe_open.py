"""Only our regular files are opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cotswold.files import open_file, open_reading, read_bytes, real_folder, replace_file


@pytest.mark.parametrize(
    "flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_RDWR | os.O_CREAT]
)
def test_a_symbolic_link_is_refused_and_what_it_points_to_is_as_it_was(tmp_path: Path, flags: int) -> None:
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "link").symlink_to("thesis")
    with pytest.raises(OSError, match="symbolic link, which is not followed"):
        open_file(tmp_path / "link", flags)
    assert (tmp_path / "thesis").read_text() == "years of work"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_a_named_pipe_is_refused_without_waiting(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        open_file(tmp_path / "pipe", flags)


def test_a_folder_above_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    (tmp_path / "disk" / "file").write_bytes(b"1")
    with open_reading(tmp_path / "runs" / "file") as file:
        assert file.read() == b"1"


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_bytes(tmp_path / "file", 4)


def test_a_folder_that_is_a_link_is_refused_where_it_must_be_ours(tmp_path: Path) -> None:
    assert real_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError, match="symbolic link"):
        real_folder(tmp_path / "link")


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("years of work")
    (tmp_path / "link").symlink_to("thesis")
    replace_file(tmp_path / "link", b"new")
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert not (tmp_path / "link").is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "thesis"]
