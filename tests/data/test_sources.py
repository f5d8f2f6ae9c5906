from __future__ import annotations

import gzip
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.data.conftest import photograph, png, write_photographs

from cotswold.data import open_source
from cotswold.data.formats.image import BrokenImageError
from cotswold.errors import SourceError


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def idx(path: Path, array: NDArray[np.uint8]) -> None:
    data = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def mnist(folder: Path, suffix: str = "") -> NDArray[np.uint8]:
    images = np.random.default_rng(0).integers(0, 256, (30, 7, 5), dtype=np.uint8)
    idx(folder / f"train-images-idx3-ubyte{suffix}", images[:20])
    idx(folder / f"train-labels-idx1-ubyte{suffix}", np.arange(20, dtype=np.uint8) % 10)
    idx(folder / f"t10k-images-idx3-ubyte{suffix}", images[20:])
    idx(folder / f"t10k-labels-idx1-ubyte{suffix}", np.arange(10, dtype=np.uint8))
    return images


def cifar(path: Path, count: int, seed: int) -> NDArray[np.uint8]:
    records = np.random.default_rng(seed).integers(0, 10, (count, 3073), dtype=np.uint8)
    path.write_bytes(gzip.compress(records.tobytes()) if path.suffix == ".gz" else records.tobytes())
    return records


def test_a_folder_and_its_zip_hold_the_same_images_in_the_same_order(
    photographs: Path, tmp_path: Path
) -> None:
    files = {p.relative_to(photographs).as_posix(): p.read_bytes() for p in photographs.rglob("*.png")}
    folder = open_source(photographs, labels="folders")
    archive = open_source(zipped(tmp_path / "all.zip", files), labels="folders")
    assert [folder.name(i) for i in range(300)] == [archive.name(i) for i in range(300)] == sorted(files)
    assert folder.classes == archive.classes == ("hills", "lakes")
    assert [folder.label(i) for i in (0, 149, 150, 299)] == [0, 0, 1, 1]
    assert archive.label(299) == 1
    assert (np.asarray(folder.read(7)) == np.asarray(archive.read(7))).all()
    assert (np.asarray(folder.read(7)) == photograph(7)).all()


def test_hidden_files_texts_and_loops_are_passed_over(tmp_path: Path) -> None:
    write_photographs(tmp_path / "a", 2)
    (tmp_path / "README.txt").write_text("no image")
    (tmp_path / ".DS_Store").write_bytes(b"x")
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "._x.png").write_bytes(b"x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert len(open_source(tmp_path)) == 2


def test_include_and_exclude_choose_by_path_and_a_pattern_without_effect_is_an_error(
    photographs: Path,
) -> None:
    assert len(open_source(photographs, include=["hills/*"])) == 150
    assert len(open_source(photographs, exclude=["hills/*"])) == 150
    assert len(open_source(photographs, include=["*/00*"], exclude=["*/005*"])) == 90
    with pytest.raises(SourceError, match="'hill/\\*' matches none"):
        open_source(photographs, exclude=["hill/*"])
    with pytest.raises(SourceError, match="match no image"):
        open_source(photographs, exclude=["*"])
    with pytest.raises(SourceError, match="lists of patterns"):
        open_source(photographs, include="hills/*")


def test_top_folders_are_splits_where_they_are_called_so(tmp_path: Path) -> None:
    for name in ("train/cat", "val/cat", "test/dog", "other"):
        write_photographs(tmp_path / name, 1)
    source = open_source(tmp_path)
    assert {source.name(i): source.split_of(i) for i in range(4)} == {
        "other/0000.png": None,
        "test/dog/0000.png": "test",
        "train/cat/0000.png": "train",
        "val/cat/0000.png": "validation",
    }


def test_identity_follows_the_images_and_not_the_place(tmp_path: Path) -> None:
    write_photographs(tmp_path / "a", 3)
    write_photographs(tmp_path / "b", 3)
    first = open_source(tmp_path / "a").identity
    assert first == open_source(tmp_path / "b").identity
    (tmp_path / "b" / "0001.png").unlink()
    assert first != open_source(tmp_path / "b").identity


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.mkdir(), "is empty"),
        (lambda p: (p.mkdir(), (p / "a.txt").write_text("x")), "contains no images"),
        (lambda p: p.write_text("x"), "of an unknown kind"),
    ],
)
def test_missing_empty_and_unknown_sources_are_refused_with_a_remedy(
    make: object, says: str, tmp_path: Path
) -> None:
    make(tmp_path / "it")  # type: ignore[operator]  # a lambda of the table above
    with pytest.raises(SourceError, match=f"{says}.*give"):
        open_source(tmp_path / "it")


def test_a_damaged_zip_and_a_single_image_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(b"PK\3\4 not really")
    with pytest.raises(SourceError, match="cannot be read as a zip"):
        open_source(tmp_path / "bad.zip")
    with pytest.raises(SourceError, match="contains no images"):
        open_source(zipped(tmp_path / "text.zip", {"a.txt": b"x"}))
    (tmp_path / "one.png").write_bytes(png(Image.new("L", (2, 2))))
    with pytest.raises(SourceError, match="single image"):
        open_source(tmp_path / "one.png")


def test_a_damaged_member_of_a_zip_is_one_broken_image(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "all.zip",
        {"a.png": png(Image.fromarray(photograph(0))), "b.png": png(Image.new("L", (9, 9)))},
    )
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(data)
    source = open_source(path)
    with pytest.raises(BrokenImageError, match=r"a\.png"):
        source.read(0).load()
    assert source.read(1).size == (9, 9)


@pytest.mark.parametrize("labels", ["folder", "", None, 1, ["folders"]])
def test_labels_of_another_name_are_refused_instead_of_left_out(photographs: Path, labels: Any) -> None:
    with pytest.raises(SourceError, match='must be "none", "folders" or "file"'):
        open_source(photographs, labels=labels)


def test_no_name_is_not_the_folder_that_one_is_in() -> None:
    with pytest.raises(SourceError, match="name of the source is empty"):
        open_source("")


def test_labels_need_folders_or_a_file(photographs: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no label file"):
        open_source(photographs, labels="file")
    write_photographs(tmp_path, 1)
    with pytest.raises(SourceError, match="in no folder"):
        open_source(tmp_path, labels="folders")
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 3), np.uint8))
    with pytest.raises(SourceError, match="no folders"):
        open_source(tmp_path / "a.npy", labels="folders")
    with pytest.raises(SourceError, match="no labels"):
        open_source(tmp_path / "a.npy", labels="file")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_give_images_labels_and_splits(suffix: str, tmp_path: Path) -> None:
    images = mnist(tmp_path, suffix)
    source = open_source(tmp_path, labels="file")
    splits = [source.split_of(i) for i in range(30)]
    assert splits == ["test"] * 10 + ["train"] * 20
    assert (np.asarray(source.read(0)) == images[20]).all()
    assert (np.asarray(source.read(12)) == images[2]).all()
    assert [source.label(i) for i in (3, 10, 21)] == [3, 0, 1]
    assert source.classes == tuple("0123456789")
    single = open_source(tmp_path / f"train-images-idx3-ubyte{suffix}")
    assert len(single) == 20 and single.label(0) == -1


def test_damaged_idx_files_are_refused(tmp_path: Path) -> None:
    mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"train-images.*header"):
        open_source(tmp_path)
    path.write_bytes(b"\0\0\x0d\3")
    with pytest.raises(SourceError, match="not an idx file"):
        open_source(tmp_path)
    mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(SourceError, match="no label file"):
        open_source(tmp_path, labels="file")
    assert len(open_source(tmp_path)) == 30


def test_cifar_batches_give_images_labels_and_splits(tmp_path: Path) -> None:
    test, train = cifar(tmp_path / "test_batch.bin.gz", 3, 1), cifar(tmp_path / "data_batch_1.bin", 4, 0)
    source = open_source(tmp_path, labels="file")
    assert [source.split_of(i) for i in range(7)] == ["train"] * 4 + ["test"] * 3
    planes = test[2, 1:].reshape(3, 32, 32)
    assert (np.asarray(source.read(6)) == planes.transpose(1, 2, 0)).all()
    assert source.label(1) == train[1, 0] and source.classes[3] == "cat"
    (tmp_path / "data_batch_1.bin").write_bytes(b"x" * 3000)
    with pytest.raises(SourceError, match=r"data_batch_1\.bin does not consist of whole"):
        open_source(tmp_path)


@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("first", [False, True])
def test_npy_files_may_have_channels_first_last_or_none(
    channels: int | None, first: bool, tmp_path: Path
) -> None:
    shape = (5, 8, 6) if channels is None else (5, 8, 6, channels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    stored = images.transpose(0, 3, 1, 2) if first and channels else images
    np.save(tmp_path / "a.npy", stored)
    expected = images[3] if channels == 3 else images[3].reshape(8, 6)
    assert (np.asarray(open_source(tmp_path / "a.npy").read(3)) == expected).all()


@pytest.mark.parametrize("dtype", ["bool", "uint16", "float32", "float64", "int64"])
def test_npy_files_of_other_types_are_brought_to_eight_bits(dtype: str, tmp_path: Path) -> None:
    dark, light = {"bool": (0, 1), "uint16": (0, 65535), "int64": (0, 255)}.get(dtype, (0.0, 1.0))
    images = np.full((2, 4, 4), dark, dtype)
    images[1] = light
    np.save(tmp_path / "a.npy", images)
    source = open_source(tmp_path / "a.npy")
    assert np.asarray(source.read(0)).max() == 0 and np.asarray(source.read(1)).min() == 255


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((3, 4)), "shape"),
        (np.zeros((0, 4, 4)), "no images"),
        (np.zeros((3, 5, 6, 7)), "shape"),
        (np.full((3, 4, 4), -1.0), "scale them"),
        (np.zeros((3, 4, 4), complex), "type complex"),
    ],
)
def test_arrays_that_are_no_images_are_refused(array: NDArray[np.generic], says: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(SourceError, match=says):
        open_source(tmp_path / "a.npy").settle()


def test_npz_files_give_splits_and_the_labels_that_belong_to_them(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "x_train": random.integers(0, 256, (6, 4, 4), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": random.integers(0, 256, (3, 4, 4), dtype=np.uint8),
        "y_test": np.array([[2], [1], [0]]),
    }
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]  # its stub takes a name for a flag
    source = open_source(tmp_path / "a.npz", labels="file")
    assert [source.split_of(i) for i in range(9)] == ["test"] * 3 + ["train"] * 6
    assert [source.label(i) for i in range(9)] == [2, 1, 0, 0, 1, 2, 0, 1, 2]
    assert (np.asarray(source.read(3)) == arrays["x_train"][0]).all()


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch sprung",)


def test_an_npz_whose_names_do_not_tell_images_from_other_arrays_is_refused(tmp_path: Path) -> None:
    planes = np.zeros((5, 8, 8), np.uint8)
    np.savez(tmp_path / "one.npz", anything=planes)
    assert len(open_source(tmp_path / "one.npz")) == 5
    np.savez(tmp_path / "two.npz", depth=planes, masks=planes)
    with pytest.raises(SourceError, match=r"depth, masks\); name the right ones images, data or x"):
        open_source(tmp_path / "two.npz")
    assert len(open_source(tmp_path / "two.npz", include=["masks"])) == 5
    np.savez(tmp_path / "told.npz", images=planes, masks=planes)
    assert open_source(tmp_path / "told.npz").name(4) == "images[4]"
    assert len(open_source(tmp_path / "told.npz")) == 5


@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_nothing_in_an_array_file_is_unpickled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trap = np.array([Trap()], dtype=object)
    np.save(tmp_path / name, trap, allow_pickle=True) if name == "a.npy" else np.savez(
        tmp_path / name, x=trap
    )
    with pytest.raises(SourceError, match="cannot be read"):
        open_source(tmp_path / name)
    assert not (tmp_path / "sprung").exists()


def test_sources_travel_to_other_processes_without_their_open_files(
    photographs: Path, tmp_path: Path
) -> None:
    files = {f"{i}.png": png(Image.fromarray(photograph(i))) for i in range(3)}
    np.save(tmp_path / "a.npy", np.arange(48, dtype=np.uint8).reshape(3, 4, 4))
    for path in (zipped(tmp_path / "all.zip", files), tmp_path / "a.npy", photographs):
        source = open_source(path)
        expected = np.asarray(source.read(1))
        again = pickle.loads(pickle.dumps(source))
        assert (np.asarray(again.read(1)) == expected).all()
        assert again.identity == source.identity
