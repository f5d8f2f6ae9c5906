from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from PIL import Image
from tests.data.conftest import KILLED, files, photograph, write_photographs
from tests.warm import PYTHON

from cotswold.data import Preparation, Store, as_image_transform, open_source, prepare
from cotswold.data.store.splits import Request, assign_splits
from cotswold.errors import BusyError, DiskFullError, SourceError, UserError

SMALL = Preparation((16, 20))


def test_a_store_holds_every_image_once_as_its_transform_makes_it(photographs: Path, store: Store) -> None:
    source = open_source(photographs)
    assert store.splits == {"train": 210, "validation": 60, "test": 30}
    transform = as_image_transform(store.transform)
    expected = {
        i: transform.restored(transform.stored(transform(source.read(i))[None]))[0]
        for i in range(len(source))
    }
    found = []
    for split, count in store.splits.items():
        for image in store.read(split, 0, count):
            distances = [float(np.abs(image - other).max()) for other in expected.values()]
            found.append(int(np.argmin(distances)))
            assert min(distances) < 0.02
    assert sorted(found) == list(range(300))


def test_labels_follow_their_images(photographs: Path, store: Store) -> None:
    source = open_source(photographs, labels="folders")
    request = Request(source.identity, True, store.transform.preparation, "random", 0.2, 0.1, 0, None)
    for split, order in assign_splits(source, request).items():
        assert store.labels(split).tolist() == [source.label(int(i)) for i in order]
    assert store.classes == ("hills", "lakes")


def test_the_store_is_the_same_for_every_number_of_processes(
    photographs: Path, tmp_path: Path, small_shards: None
) -> None:
    source = open_source(photographs)
    one = prepare(source, tmp_path / "one", SMALL, jobs=1)
    two = prepare(source, tmp_path / "two", SMALL, jobs=2)
    assert one.identity == two.identity
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_progress_ends_with_every_image_done(photographs: Path, tmp_path: Path, small_shards: None) -> None:
    seen: list[tuple[int, int]] = []
    prepare(open_source(photographs), tmp_path / "s", SMALL, jobs=1, progress=lambda *now: seen.append(now))
    assert seen[-1] == (300, 300) and sorted(seen) == seen and len(seen) > 10


@pytest.mark.parametrize("broken", [[0], [3, 4, 5, 150, 299], list(range(0, 300, 3)), list(range(299))])
def test_broken_images_are_counted_named_and_leave_no_gap(
    broken: list[int], photographs: Path, tmp_path: Path, small_shards: None
) -> None:
    source = open_source(photographs, labels="folders")
    for index in range(300):
        path = tmp_path / "in" / source.name(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = (photographs / source.name(index)).read_bytes()
        path.write_bytes(data[: len(data) // 3] if index in broken else data)
    damaged = open_source(tmp_path / "in", labels="folders")
    plain = Preparation((40, 52), per_image_standardise=False, whiten=False, dtype="uint8")
    summary = prepare(damaged, tmp_path / "s", plain, validation=0 if len(broken) > 200 else 0.1, jobs=1)
    assert summary.broken == len(broken)
    assert {text.split(":")[0] for text in summary.broken_files} == {source.name(i) for i in broken}
    store = Store(tmp_path / "s")
    assert sum(store.splits.values()) == 300 - len(broken)
    originals = {photograph(i).tobytes(): i for i in range(300)}
    seen = []
    for split, count in store.splits.items():
        assert zarr.open_array(tmp_path / "s" / "arrays" / split / "samples").shape[0] == count
        stored = store.read_stored(split, 0, count).transpose(0, 2, 3, 1)
        for image, label in zip(stored, store.labels(split), strict=True):
            number = originals[np.ascontiguousarray(image).tobytes()]
            assert label == (number >= 150)
            seen.append(number)
    assert sorted(seen) == sorted(set(range(300)) - set(broken))
    store.verify()


def test_a_source_without_one_readable_image_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.jpg").write_bytes(b"no jpeg")
    for preparation in (SMALL, Preparation((4, 4), per_image_standardise=False, whiten=False)):
        with pytest.raises(SourceError, match=r"no training image.*[ab]\.jpg"):
            prepare(open_source(tmp_path / "in"), tmp_path / "s", preparation, jobs=1)
        assert not (tmp_path / "s").exists()


def test_a_source_that_goes_away_leaves_what_was_prepared(
    photographs: Path, tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(photographs)
    read, reads = source.read, iter(range(100))

    def until_it_goes(index: int) -> Image.Image:
        if next(reads, None) is None:
            raise SourceError("the zip cannot be read")
        return read(index)

    monkeypatch.setattr(source, "read", until_it_goes)
    plain = Preparation((16, 20), whiten=False)
    with pytest.raises(SourceError, match="cannot be read"):
        prepare(source, tmp_path / "s", plain, jobs=1)
    assert prepare(open_source(photographs), tmp_path / "s", plain, jobs=1).reused == 6 * 16


def test_a_shard_that_changed_since_it_was_finished_is_made_anew(
    photographs: Path, tmp_path: Path, small_shards: None
) -> None:
    source = open_source(photographs)
    whole = prepare(source, tmp_path / "whole", SMALL, jobs=1)
    command = [*PYTHON, "-c", KILLED, str(photographs), str(tmp_path / "s"), "7"]
    subprocess.run(command, check=False)
    shard = tmp_path / "s" / "arrays" / "train" / "samples" / "c" / "2" / "0" / "0" / "0"
    data = bytearray(shard.read_bytes())
    data[500] ^= 1
    shard.write_bytes(data)
    with (tmp_path / "s" / ".preparing" / "shards.jsonl").open("a") as file:
        file.write('{"key": "train/pic')  # cut short by the kill
    resumed = prepare(source, tmp_path / "s", SMALL, jobs=1)
    assert resumed.reused == 6 * 16
    assert resumed.identity == whole.identity


def test_a_full_disk_is_named_and_the_preparation_goes_on_afterwards(
    photographs: Path, tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(photographs)
    written = 0
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        nonlocal written
        written += "/c/" in str(target)
        if written > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DiskFullError, match="run the same command again"):
        prepare(source, tmp_path / "s", SMALL, jobs=1)
    monkeypatch.undo()
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 16)
    resumed = prepare(source, tmp_path / "s", SMALL, jobs=1)
    assert resumed.reused == 5 * 16
    assert resumed.identity == prepare(source, tmp_path / "whole", SMALL, jobs=1).identity


LIMITED = """
import resource, sys
from cotswold.data import Preparation, as_image_transform, open_source, prepare
from cotswold.errors import DiskFullError
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        prepare(open_source(sys.argv[1]), sys.argv[2], Preparation((16, 20)), jobs=2)
    except DiskFullError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_file_that_the_system_refuses_to_enlarge_counts_as_a_full_disk(
    photographs: Path, tmp_path: Path
) -> None:
    (tmp_path / "limited.py").write_text(LIMITED)
    command = [sys.executable, str(tmp_path / "limited.py"), str(photographs), str(tmp_path / "s")]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    assert said.stdout.startswith("no room left to write") and not said.stderr
    assert prepare(open_source(photographs), tmp_path / "s", SMALL, jobs=1).splits["train"] == 285


def test_two_processes_may_not_prepare_into_one_directory(photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    descriptor = os.open(tmp_path / "s", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another process is preparing"):
            prepare(open_source(photographs), tmp_path / "s", SMALL, jobs=1)
    finally:
        os.close(descriptor)


def test_preparing_again_does_nothing_and_preparing_otherwise_is_refused(
    photographs: Path, tmp_path: Path
) -> None:
    source = open_source(photographs)
    first = prepare(source, tmp_path / "s", SMALL, jobs=1)
    before = files(tmp_path / "s")
    again = prepare(source, tmp_path / "s", SMALL, jobs=1)
    assert again.identity == first.identity and again.reused == 300
    for other, says in (
        ({"preparation": Preparation((16, 24))}, r"size \(\[16, 20\], not \[16, 24\]\)"),
        ({"seed": 1}, r"seed \(0, not 1\)"),
        ({"source": open_source(photographs, include=["hills/*"])}, "its samples"),
    ):
        arguments = {"source": source, "out": tmp_path / "s", "preparation": SMALL, **other}
        with pytest.raises(UserError, match=says):
            prepare(**arguments, jobs=1)  # type: ignore[arg-type]  # from the table above
    assert files(tmp_path / "s") == before


def test_a_directory_that_holds_something_else_is_left_alone(photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(UserError, match="neither empty nor a store"):
        prepare(open_source(photographs), tmp_path, SMALL, jobs=1)
    with pytest.raises(UserError, match="is a file"):
        prepare(open_source(photographs), tmp_path / "mine", SMALL, jobs=1)
    assert files(tmp_path) == {"mine": b"precious"}


def test_an_unfinished_store_of_another_kind_is_not_mixed_with_this_one(
    photographs: Path, tmp_path: Path
) -> None:
    subprocess.run([*PYTHON, "-c", KILLED, str(photographs), str(tmp_path / "s"), "3"], check=False)
    with pytest.raises(UserError, match=r"unfinished.*seed"):
        prepare(open_source(photographs), tmp_path / "s", SMALL, seed=5, jobs=1)


def test_one_image_is_enough(tmp_path: Path) -> None:
    write_photographs(tmp_path / "in", 1)
    prepare(open_source(tmp_path / "in"), tmp_path / "s", Preparation((5, 3)))
    store = Store(tmp_path / "s")
    assert store.splits == {"train": 1}
    assert np.isfinite(store.read("train", 0, 1)).all()
    assert store.whiteness("train").images == 1


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (130, 70)])
@pytest.mark.parametrize("colour", ["rgb", "grey"])
def test_any_size_can_be_prepared_and_read_back(size: tuple[int, int], colour: str, tmp_path: Path) -> None:
    write_photographs(tmp_path / "in", 5)
    chosen = Preparation(size, colour)  # type: ignore[arg-type]  # from parametrize
    prepare(open_source(tmp_path / "in"), tmp_path / "s", chosen, validation=0.3)
    store = Store(tmp_path / "s")
    assert store.splits == {"train": 4, "validation": 1}
    assert store.read("train", 0, 4).shape == (4, 3 if colour == "rgb" else 1, *size)
    assert (store.shape.height, store.shape.width) == size


def test_images_of_all_kinds_in_one_folder_are_prepared_raise_on_all(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_photographs(folder, 4)
    Image.fromarray(photograph(9)).convert("L").save(folder / "grey.jpg")
    Image.fromarray(photograph(9)).convert("CMYK").save(folder / "print.jpg")
    Image.fromarray(photograph(9)).convert("P").save(folder / "palette.gif")
    Image.fromarray(photograph(9)).convert("RGBA").save(folder / "alpha.webp")
    (folder / "broken.png").write_bytes(b"broken")
    summary = prepare(open_source(folder), tmp_path / "s", SMALL)
    assert summary.broken == 1 and sum(summary.splits.values()) == 8


def test_the_manifest_says_how_the_store_was_made(store: Store) -> None:
    manifest = json.loads((store.path / "manifest.json").read_text())
    assert manifest["request"]["preparation"]["size"] == [24, 32]
    assert set(manifest["chunks"]) | {"manifest.json"} == set(files(store.path))
    described = json.loads((store.path / "arrays" / "train" / "samples" / "zarr.json").read_text())
    inner = described["codecs"][0]["configuration"]["codecs"]
    assert [codec["name"] for codec in inner] == ["bytes", "crc32c"]
