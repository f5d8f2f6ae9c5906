"""Rows in files: their bytes, and their part of a checkpoint."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cotswold.checkpoint import Checkpoint, CheckpointManager
from cotswold.errors import CheckpointError, DiskFullError, MachineError
from cotswold.training.parameters.offload import aligned
from cotswold.training.parameters.offload.row_files import RowFiles
from cotswold.training.parameters.offload.sparse_memory import PAGE, Arena

SHAPES = {"less than a page": (4, 3, 7), "a few pages": (5, 5, 1001), "whole pages": (3, 2, PAGE // 4)}


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def rows(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RowFiles:
    """Return files of rows of random values, which are in memory and not written yet."""
    monkeypatch.setattr(aligned, "CHUNK_BYTES", 2 * PAGE)
    return filled(tmp_path / "rows", request.param)


def filled(folder: Path, shape: tuple[int, ...] = (5, 5, 1001)) -> RowFiles:
    folder.mkdir()
    files = RowFiles(folder, "filters", Arena(shape))
    files.arena.tensor.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    return files


def write_all(files: RowFiles) -> None:
    for row in range(files.arena.rows):
        files.write(row)


def saved(files: RowFiles, folder: Path, step: int = 1) -> CheckpointManager:
    checkpoints = CheckpointManager(folder)
    checkpoints.save(step, files.chunks(), {})
    return checkpoints


def test_what_was_written_is_read(rows: RowFiles) -> None:
    expected = rows.arena.tensor.clone()
    write_all(rows)
    rows.arena.tensor.fill_(torch.nan)
    for row in range(rows.arena.rows):
        rows.read(row)
    assert torch.equal(rows.arena.tensor, expected)


def test_where_no_file_can_be_written_past_the_cache_it_is_written_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aligned, "_direct", lambda path, flags: None)
    test_what_was_written_is_read(filled(tmp_path / "rows"))


def test_where_a_file_system_opens_past_its_cache_and_then_refuses_it_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, page = tmp_path / "file", torch.arange(4 * PAGE, dtype=torch.uint8)
    at = -page.data_ptr() % PAGE
    content = page.numpy().data[at : at + 2 * PAGE]
    aligned.create(path, b"", 2 * PAGE)
    asked = refusing_direct(monkeypatch)
    monkeypatch.setattr(aligned, "CHUNK_BYTES", PAGE)
    for flags, found in ((os.O_WRONLY, content), (os.O_RDONLY, memoryview(bytearray(2 * PAGE)))):
        asked.clear()
        with aligned.open_aligned(path, flags) as file:
            (file.write if flags == os.O_WRONLY else file.read)(found, 0)
        assert len(asked) == 1 and found == content


def refusing_direct(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let unbuffered descriptors open, but fail on use; return the tried ones."""
    past: list[int] = []
    asked: list[int] = []
    pwrite, preadv = os.pwrite, os.preadv

    def plain(path: Path, flags: int) -> int:
        past[:] = [os.open(path, flags)]
        return past[0]

    def check(file: int) -> None:
        if file in past:
            asked.append(file)
            raise OSError(errno.EINVAL, "Invalid argument")

    def write(file: int, content: memoryview, offset: int) -> int:
        check(file)
        return pwrite(file, content, offset)

    def read(file: int, targets: list[memoryview], offset: int) -> int:
        check(file)
        return preadv(file, targets, offset)

    monkeypatch.setattr(aligned, "_direct", plain)
    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "preadv", read)
    return asked


def test_a_descriptor_may_be_0(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[int] = []

    def write(file: int, content: memoryview, offset: int) -> int:
        files.append(file)
        return content.nbytes

    monkeypatch.setattr(os, "pwrite", write)
    aligned.AlignedFile(plain=5, direct=0).write(memoryview(bytes(PAGE)), 0)
    assert files == [0]


def test_another_error_past_the_cache_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = filled(tmp_path / "rows", SHAPES["whole pages"])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFullError):
        rows.write(0)


def test_a_row_is_a_file_that_the_library_of_the_format_reads(rows: RowFiles) -> None:
    write_all(rows)
    for row in range(rows.arena.rows):
        found = load_file(rows.folder / f"filters.{row:05d}.safetensors")["filters"]
        assert torch.equal(found, rows.arena.tensor[row : row + 1])


def test_a_checkpoint_of_rows_has_their_values_and_no_copy_of_them(rows: RowFiles, tmp_path: Path) -> None:
    write_all(rows)
    checkpoint = saved(rows, tmp_path / "checkpoints").latest().checkpoint
    assert checkpoint is not None
    assert torch.equal(checkpoint.read("filters"), rows.arena.tensor)
    inodes = {path.stat().st_ino for path in rows.folder.iterdir()}
    assert inodes == {path.stat().st_ino for path in checkpoint.path.glob("*.safetensors")}


def test_a_row_that_a_checkpoint_has_goes_to_a_new_file_when_it_changes(
    rows: RowFiles, tmp_path: Path
) -> None:
    write_all(rows)
    checkpoints, before = saved(rows, tmp_path / "checkpoints"), rows.arena.tensor.clone()
    rows.arena.tensor.mul_(2)
    write_all(rows)
    checkpoint = checkpoints.latest().checkpoint
    assert checkpoint is not None and torch.equal(checkpoint.read("filters"), before)


def test_a_row_that_no_checkpoint_has_is_written_over(tmp_path: Path) -> None:
    rows = filled(tmp_path / "rows")
    write_all(rows)
    before = sorted(path.stat().st_ino for path in rows.folder.iterdir())
    rows.arena.tensor.mul_(2)
    write_all(rows)
    assert sorted(path.stat().st_ino for path in rows.folder.iterdir()) == before


def test_a_row_whose_checkpoint_is_gone_is_written_over_again(tmp_path: Path) -> None:
    rows = filled(tmp_path / "rows")
    for step in range(1, 4):  # two checkpoints are kept
        write_all(rows)
        saved(rows, tmp_path / "checkpoints", step)
        rows.arena.tensor.add_(1)
    files = list(tmp_path.rglob("*.safetensors"))
    assert len({path.stat().st_ino for path in files}) == 2 * rows.arena.rows


def test_rows_taken_up_from_a_checkpoint_of_rows_are_its_files(rows: RowFiles, tmp_path: Path) -> None:
    write_all(rows)
    checkpoint = saved(rows, tmp_path / "checkpoints").latest().checkpoint
    assert checkpoint is not None
    (tmp_path / "again").mkdir()
    again = RowFiles(tmp_path / "again", "filters", Arena(tuple(rows.arena.tensor.shape)))
    again.load(checkpoint)
    for row in range(again.arena.rows):
        again.read(row)
    assert torch.equal(again.arena.tensor, rows.arena.tensor)
    assert all(path.stat().st_nlink == 3 for path in again.folder.iterdir())


def test_rows_taken_up_from_a_checkpoint_of_one_piece_are_copied(rows: RowFiles, tmp_path: Path) -> None:
    checkpoints = CheckpointManager(tmp_path / "checkpoints")
    checkpoints.save(1, {"filters": rows.arena.tensor}, {})
    checkpoint = checkpoints.latest().checkpoint
    assert checkpoint is not None
    (tmp_path / "again").mkdir()
    again = RowFiles(tmp_path / "again", "filters", Arena(tuple(rows.arena.tensor.shape)))
    again.load(checkpoint, at_once=2)
    for row in range(again.arena.rows):
        again.read(row)
    assert torch.equal(again.arena.tensor, rows.arena.tensor)


def test_a_checkpoint_is_a_copy_where_files_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = filled(tmp_path / "rows")
    write_all(rows)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refused)
    checkpoint = saved(rows, tmp_path / "checkpoints").latest().checkpoint
    assert checkpoint is not None and torch.equal(checkpoint.read("filters"), rows.arena.tensor)


def test_a_flipped_bit_in_a_row_is_found_when_its_checkpoint_is_opened(tmp_path: Path) -> None:
    rows = filled(tmp_path / "rows")
    write_all(rows)
    checkpoints = saved(rows, tmp_path / "checkpoints")
    path = rows.folder / "filters.00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    with pytest.raises(CheckpointError, match="checksum is not the one"):
        checkpoints.latest()


def test_a_row_that_is_dropped_leaves_its_neighbours_as_they_are(tmp_path: Path) -> None:
    rows = filled(tmp_path / "rows")
    expected = rows.arena.tensor.clone()
    rows.arena.drop(2)
    kept = [row for row in range(rows.arena.rows) if row != 2]
    assert torch.equal(rows.arena.tensor[kept], expected[kept])
    assert int((rows.arena.tensor[2] == 0).sum()) > 0


def test_a_flipped_bit_anywhere_in_a_row_is_found_when_it_is_read(rows: RowFiles) -> None:
    write_all(rows)
    path = next(iter(sorted(rows.folder.iterdir())))
    whole = path.read_bytes()
    for place in (0, 11, len(whole) - rows.row_bytes, len(whole) - 3, len(whole) // 2):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(
            MachineError, match=rf"{path.name} is damaged: .* resume from the last checkpoint"
        ):
            rows.read(0)
    path.write_bytes(whole)
    rows.read(0)


def test_rows_that_were_taken_up_by_links_are_verified_when_they_are_read(tmp_path: Path) -> None:
    checkpoint = saved_and_read(tmp_path)
    again = RowFiles(tmp_path / "again", "filters", Arena((5, 5, 1001)))
    again.folder.mkdir()
    again.load(checkpoint)
    again.read(2)
    path = sorted(again.folder.iterdir())[2]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(MachineError, match=rf"{path.name} is damaged"):
        again.read(2)


def saved_and_read(folder: Path) -> Checkpoint:
    rows = filled(folder / "rows")
    write_all(rows)
    found = saved(rows, folder / "checkpoints").latest().checkpoint
    assert found is not None
    return found


def test_a_row_is_neither_read_nor_written_through_a_link(tmp_path: Path) -> None:
    rows = filled(tmp_path / "rows")
    write_all(rows)
    path = sorted(rows.folder.iterdir())[0]
    mine = tmp_path / "mine"
    path.rename(mine)
    before = mine.read_bytes()
    path.symlink_to(mine)
    with pytest.raises(MachineError, match="it is a symbolic link, which is not followed"):
        rows.read(0)
    rows.arena.tensor[0] = 5
    rows.write(0)
    assert mine.read_bytes() == before and not path.is_symlink()
