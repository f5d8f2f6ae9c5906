"""Harmful sources: pipes, programs behind decoders, bombs. Each is named, and none blocks."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import struct
import subprocess
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from tests.data.conftest import write_photographs

from cotswold.data import Preparation, open_source, prepare
from cotswold.data.formats import array_files as number_files
from cotswold.data.formats.image import BrokenImageError, cut, open_image
from cotswold.data.sources.folder import walk_files
from cotswold.errors import SourceError

SMALL = Preparation((8, 8), whiten=False)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, listening, device])
def test_what_is_no_file_is_left_out_by_name_and_not_waited_for(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photographs(tmp_path / "in", 5)
    monkeypatch.chdir(tmp_path / "in")  # the name of a socket may not be long
    make(Path("x.png"))
    summary = prepare(open_source(tmp_path / "in"), tmp_path / "s", SMALL, validation=0, jobs=1)
    assert summary.broken_files == ("x.png: not a regular file",)
    assert summary.splits == {"train": 5}


@pytest.mark.parametrize("name", ["a.zip", "a.npy", "a.npz", "train-images-idx3-ubyte", "data_batch_1.bin"])
def test_a_pipe_as_a_source_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SourceError, match="regular file"):
        open_source(tmp_path / name)


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte.gz", "test_batch.bin"])
def test_a_pipe_among_the_files_of_a_known_set_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SourceError, match="regular file"):
        open_source(tmp_path)


def test_postscript_under_another_ending_never_reaches_ghostscript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "photo.jpg").write_bytes(script)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    ran = []
    monkeypatch.setattr(subprocess, "check_call", lambda *command, **_: ran.append(command))
    for file in (tmp_path / "photo.jpg", script):
        with pytest.raises(BrokenImageError, match="not an image of a known format"):
            cut("photo.jpg", open_image("photo.jpg", file), (8, 8), "rgb")
    assert not ran


@pytest.mark.parametrize(
    "kind", ["BMP", "GIF", "JPEG", "PPM", "PNG", "DDS", "ICO", "PCX", "SGI", "TGA", "TIFF", "WEBP"]
)
def test_every_kind_that_is_named_is_still_read(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (32, 32), (200, 10, 10)).save(tmp_path / "it", kind)
    pixels = cut("it", open_image("it", tmp_path / "it"), (4, 4), "rgb")
    assert pixels[..., 0].min() > 150


def gz_bomb(path: Path) -> Path:
    raw = bytes([0, 0, 8, 3]) + struct.pack(">3I", 30_000, 28, 28) + bytes(30_000 * 784)
    file = path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(raw, 9))
    return file


def npz_bomb(path: Path) -> Path:
    np.savez_compressed(path / "x.npz", images=np.zeros((30_000, 28, 28), np.uint8))
    return path / "x.npz"


def bin_bomb(path: Path) -> Path:
    (path / "data_batch_1.bin.gz").write_bytes(gzip.compress(bytes(3073 * 8000), 9))
    return path / "data_batch_1.bin.gz"


@pytest.mark.parametrize("make", [gz_bomb, npz_bomb, bin_bomb])
def test_a_bomb_is_refused_before_its_memory_is_taken(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(number_files, "UNPACKED_BYTES_MAX", 4 << 20)
    bomb = make(tmp_path)
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"unpacks to .* \(a decompression bomb\?\)"):
        prepare(open_source(bomb), tmp_path / "s", SMALL, jobs=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("make", [gz_bomb, npz_bomb])
def test_opening_a_packed_source_does_not_unpack_it_into_memory(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path)
    tracemalloc.start()
    assert len(open_source(path)) == 30_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_header_that_promises_more_than_there_is_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    whole = npz_bomb(tmp_path)
    with zipfile.ZipFile(whole) as archive:
        member = archive.read("images.npy").replace(b"(30000, 28, 28)", b"(30000, 99, 99)")
    with zipfile.ZipFile(tmp_path / "y.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", member)
    with pytest.raises(SourceError, match="is not an array of"):
        open_source(tmp_path / "y.npz")
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 1 << 31, 1 << 15, 1 << 15)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(head))
    with pytest.raises(SourceError, match="contains 0 bytes of values but its header says"):
        open_source(tmp_path / "train-images-idx3-ubyte.gz")


def test_images_without_pixels_are_refused_however_many_they_are(tmp_path: Path) -> None:
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", (1 << 32) - 1, 0, 28)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(head)
    with pytest.raises(SourceError, match="images without pixels"):
        open_source(tmp_path)


def test_a_header_of_an_array_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 8, 8), np.uint8))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole.replace(b"(4, 8, 8), }   ", b"(True, 8, 8), }"))
    with pytest.raises(SourceError, match=r"cannot be read as \.npy"):
        open_source(tmp_path / "a.npy")


def test_folders_that_may_not_be_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photographs(tmp_path / "in" / "a", 2)
    write_photographs(tmp_path / "in" / "locked", 2)
    real = os.scandir

    def scandir(path: str) -> object:  # permissions do not hold for root, as whom tests may run
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    source = open_source(tmp_path / "in")
    assert len(source) == 2
    (said,) = source.settle()
    assert said == f"1 folder cannot be read, and its contents are ignored: {tmp_path / 'in' / 'locked'}"
    assert len(list(walk_files(tmp_path / "in"))) == 2


def test_a_folder_of_folders_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    with pytest.raises(SourceError, match="contains no images"):
        open_source(tmp_path / "in")
    shutil.rmtree(tmp_path / "in")
