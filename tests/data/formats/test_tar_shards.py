"""Images in tar files: read in place, labelled by members or folders, split by the names of the files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cotswold.data import Preparation, open_samples, open_source, prepare
from cotswold.errors import SourceError, UnlabelledError


def picture(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def shard(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # the mode is a variable
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


def folder(root: Path, label: str = "cls") -> Path:
    """Return a folder of two training shards and a test shard, with labels cat and dog."""
    for split, count in (("train-0000", 6), ("train-0001", 6), ("test-0000", 4)):
        members: dict[str, bytes] = {}
        for number in range(count):
            name = ["cat", "dog"][number % 2]
            members[f"{number:04}.png"] = picture(10 * number)
            members[f"{number:04}.{label}"] = (
                f'{{"label": "{name}"}}' if label == "json" else name + "\n"
            ).encode()
        shard(root / f"{split}.tar", members)
    return root


@pytest.mark.parametrize("label", ["cls", "json", "txt"])
def test_shards_are_labelled_by_members_and_split_by_their_names(label: str, tmp_path: Path) -> None:
    source = open_source(folder(tmp_path / "in", label), labels="file")
    assert len(source) == 16 and source.classes == ("cat", "dog")
    assert source.name(5) == "test-0000.tar/0001.png" or source.name(5).startswith("train")
    assert {source.name(at).split("-")[0]: source.split_of(at) for at in range(16)} == {
        "test": "test",
        "train": "train",
    }
    by_name = {source.name(at): np.asarray(source.read(at))[0, 0, 0] for at in range(16)}
    assert by_name["train-0001.tar/0003.png"] == 30
    labels = {source.name(at): source.label(at) for at in range(16)}
    assert [labels[f"train-0000.tar/{at:04}.png"] for at in range(4)] == [0, 1, 0, 1]
    settings = Preparation((8, 8), whiten=False)
    summary = prepare(source, tmp_path / "store", settings, jobs=2, validation=0.25)
    assert summary.splits == {"train": 9, "validation": 3, "test": 4}


def test_numbers_are_class_numbers(tmp_path: Path) -> None:
    members = {"a.png": picture(1), "a.cls": b"0", "b.png": picture(2), "b.cls": b"2"}
    source = open_samples(shard(tmp_path / "a.tar", members), labels="file")
    assert source.kind == "images" and source.classes == ("0", "1", "2")
    assert source.labels(np.arange(2)).tolist() == [0, 2]


def test_one_tar_may_have_a_folder_for_each_class(tmp_path: Path) -> None:
    members = {f"{name}/{at}.png": picture(at) for name in ("cat", "dog") for at in range(2)}
    source = open_source(shard(tmp_path / "a.tar", members), labels="folders")
    assert source.classes == ("cat", "dog")
    assert [source.label(at) for at in range(4)] == [0, 0, 1, 1]


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnlabelledError, match=r"a\.tar/x\.png has no label x\.cls; add it"):
        open_source(shard(tmp_path / "a.tar", {"x.png": picture(1)}), labels="file")
    with pytest.raises(SourceError, match=r"b\.tar/x\.json has no field `label`"):
        open_source(shard(tmp_path / "b.tar", {"x.png": picture(1), "x.json": b"[]"}), labels="file")
    with pytest.raises(SourceError, match="contains no images"):
        open_source(shard(tmp_path / "c.tar", {"x.cls": b"1"}))
    with pytest.raises(SourceError, match="cannot be read as an uncompressed tar"):
        open_source(shard(tmp_path / "d.tar", {"x.png": picture(1)}, "w:gz"))
    source = open_source(shard(tmp_path / "e.tar", {"x.png": b"no image", "y.png": picture(1)}))
    summary = prepare(source, tmp_path / "store", Preparation((8, 8), whiten=False), validation=0, jobs=1)
    assert summary.broken == 1 and "e.tar/x.png" in summary.broken_files[0]


def test_a_text_beside_a_label_is_a_caption(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for at in range(4):
        members |= {f"{at}.png": picture(at), f"{at}.txt": b"one of %d" % at}
        members[f"{at}.json"] = b'{"label": "%s"}' % [b"cat", b"dog"][at % 2]
    source = open_source(shard(tmp_path / "a.tar", members), labels="file")
    assert source.classes == ("cat", "dog") and [source.label(at) for at in range(4)] == [0, 1, 0, 1]
