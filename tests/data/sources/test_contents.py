"""The identity of a source depends on the contents of all files read, not on sizes and times.

Knows: sources of every kind. Does not know: stores.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.test_sources import idx

import cotswold
from cotswold.data import Preparation, open_samples, prepare
from cotswold.data.sources import contents
from cotswold.errors import UserError


def image(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)  # a BMP always has as many bytes


def write_folder(root: Path, value: int) -> Path:
    for name in ("p/a/0.bmp", "p/b/1.bmp"):
        image(root / name, value)
    return root / "p"


def write_zip(root: Path, value: int) -> Path:
    folder = write_folder(root, value)
    with zipfile.ZipFile(root / "p.zip", "w") as archive:
        for path in sorted(folder.rglob("*.bmp")):
            archive.write(path, path.relative_to(folder))
    return root / "p.zip"


def large(value: int) -> np.ndarray[Any, Any]:
    """Return more bytes than a sample of a file's contents would cover, with one different byte."""
    array = np.zeros((1200, 64, 64), np.uint8)
    array[600, 30, 30] = value
    return array


def write_npy(root: Path, value: int) -> Path:
    np.save(root / "x.npy", large(value))
    return root / "x.npy"


def write_npz(root: Path, value: int) -> Path:
    np.savez(root / "x.npz", x=large(value), labels=np.arange(1200))
    return root / "x.npz"


def write_idx_images(root: Path, value: int) -> Path:
    (root / "i").mkdir(exist_ok=True)
    idx(root / "i" / "train-images-idx3-ubyte", large(value))
    idx(root / "i" / "train-labels-idx1-ubyte", np.zeros(1200, np.uint8))
    return root / "i"


def write_idx_labels(root: Path, value: int) -> Path:
    (root / "i").mkdir(exist_ok=True)
    idx(root / "i" / "train-images-idx3-ubyte", large(0))
    idx(root / "i" / "train-labels-idx1-ubyte", np.full(1200, value, np.uint8))
    return root / "i"


def write_cifar(root: Path, value: int) -> Path:
    records = np.zeros((1200, 3073), np.uint8)
    records[:, 0] = value
    (root / "data_batch_1.bin").write_bytes(records.tobytes())
    return root / "data_batch_1.bin"


def write_vectors(root: Path, value: int) -> Path:
    np.save(root / "v.npy", large(value).reshape(1200, -1))
    np.save(root / "v.labels.npy", np.zeros(1200, np.int64))
    return root / "v.npy"


def write_vector_labels(root: Path, value: int) -> Path:
    np.save(root / "v.npy", large(0).reshape(1200, -1))
    np.save(root / "v.labels.npy", np.full(1200, value))
    return root / "v.npy"


def write_vectors_npz(root: Path, value: int) -> Path:
    np.savez(root / "v.npz", x=large(value).reshape(1200, -1), labels=np.zeros(1200, np.int64))
    return root / "v.npz"


def write_frames(root: Path, value: int) -> Path:
    (root / "f").mkdir(exist_ok=True)
    np.save(root / "f" / "0.npy", large(value).reshape(1200, -1))
    np.save(root / "f" / "0.labels.npy", np.zeros(1, np.int64))
    return root / "f"


@pytest.mark.parametrize(
    ("write", "labels"),
    [
        (write_folder, "folders"),
        (write_zip, "folders"),
        (write_npy, "none"),
        (write_npz, "file"),
        (write_idx_images, "file"),
        (write_idx_labels, "file"),
        (write_cifar, "file"),
        (write_vectors, "file"),
        (write_vector_labels, "file"),
        (write_vectors_npz, "file"),
        (write_frames, "file"),
    ],
)
def test_one_changed_byte_gives_a_source_another_identity_though_sizes_and_names_stay(
    write: Callable[[Path, int], Path], labels: Any, tmp_path: Path
) -> None:
    source = write(tmp_path, 1)
    before = open_samples(source, labels=labels).identity
    assert open_samples(source, labels=labels).identity == before
    write(tmp_path, 2)
    assert open_samples(source, labels=labels).identity != before


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the names of files whose contents are read, with an empty cache that records files of
    any age.
    """
    monkeypatch.setenv("COTSWOLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(contents, "SETTLED_NS", -(10**12))
    read: list[str] = []
    hashed = contents._hashed

    def hear(name: str, path: str) -> tuple[bytes, int, bytes]:
        read.append(name)
        return hashed(name, path)

    monkeypatch.setattr(contents, "_hashed", hear)
    return read


def test_only_files_whose_size_times_or_inode_changed_are_read_again(
    counted: list[str], tmp_path: Path
) -> None:
    folder = write_folder(tmp_path, 1)
    before = open_samples(folder).identity
    assert sorted(counted) == ["a/0.bmp", "b/1.bmp"]
    counted.clear()
    assert open_samples(folder).identity == before and not counted
    about = (folder / "a/0.bmp").stat()
    image(folder / "a/0.bmp", 2)
    os.utime(folder / "a/0.bmp", ns=(about.st_atime_ns, about.st_mtime_ns))  # as programs do that keep dates
    assert open_samples(folder).identity != before
    assert counted == ["a/0.bmp"]


def test_a_file_that_has_just_changed_is_read_again_each_time(
    counted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "SETTLED_NS", 10**12)
    folder = write_folder(tmp_path, 1)
    for _ in range(2):
        assert open_samples(folder).identity
    assert len(counted) == 4


def test_a_damaged_record_is_as_if_there_were_none(counted: list[str], tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 1)
    before = open_samples(folder).identity
    (record,) = (tmp_path / "cache" / "sources").iterdir()
    content = bytearray(record.read_bytes())
    content[-1] ^= 1
    record.write_bytes(content)
    counted.clear()
    assert open_samples(folder).identity == before
    assert len(counted) == 2


def test_recheck_reads_all_files_again(counted: list[str], tmp_path: Path) -> None:
    source = write_vectors(tmp_path, 1)
    cotswold.prepare(source, tmp_path / "store", jobs=1, progress=False)
    counted.clear()
    cotswold.prepare(source, tmp_path / "store", jobs=1, progress=False)
    assert counted == []
    cotswold.prepare(source, tmp_path / "store", jobs=1, progress=False, recheck=True)
    assert counted == ["v.npy"]


def test_images_that_were_painted_over_are_not_taken_from_the_store_of_the_old_ones(tmp_path: Path) -> None:
    choices = Preparation((8, 8), whiten=False, per_image_standardise=False)
    prepare(open_samples(write_folder(tmp_path, 10)), tmp_path / "store", choices, jobs=1)
    with pytest.raises(UserError, match="already contains a store that differs in its samples"):
        prepare(open_samples(write_folder(tmp_path, 200)), tmp_path / "store", choices, jobs=1)


def test_parts_of_an_archive_are_sources_of_their_own(tmp_path: Path) -> None:
    zeros = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", x_one=zeros, x_two=zeros)
    one, two = (open_samples(tmp_path / "x.npz", include=[name]) for name in ("x_one", "x_two"))
    assert one.identity != two.identity
