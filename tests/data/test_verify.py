"""Damage to a store is found without training, and no contents make another file be read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.conftest import write_photographs

from cotswold.data import Preparation, Store, open_source, prepare, verify_store
from cotswold.data.store.manifest import checksum, chunk_of
from cotswold.errors import StoreError

SHARD = "arrays/train/samples/c/0/0/0/0"
LABELS = "arrays/validation/labels/c/0"


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Path:
    shutil.copytree(store.path, tmp_path / "copy")
    return tmp_path / "copy"


def flip(path: Path, place: int = 5) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def forge(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest and its checksum, like an attacker."""
    content = json.loads((store / "manifest.json").read_text())
    change(content)
    content["checksum"] = checksum(content)
    (store / "manifest.json").write_text(json.dumps(content))


def test_a_sound_store_has_no_findings_and_every_file_is_counted(store: Store) -> None:
    seen: list[tuple[int, int]] = []
    assert verify_store(store.path, lambda *now: seen.append(now)) == []
    files = sum(path.is_file() for path in store.path.rglob("*")) - 1  # the manifest
    assert seen == [(done, files) for done in range(1, files + 1)]


def test_every_damaged_file_is_a_finding_of_its_own(copy: Path) -> None:
    flip(copy / SHARD)
    (copy / LABELS).unlink()
    found = verify_store(copy)
    assert len(found) == 2
    assert any(SHARD in each and "damaged" in each for each in found)
    assert any(LABELS in each and "missing" in each for each in found)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 200_000, '{"a": 1}', "\0"])
def test_a_manifest_that_is_none_is_one_finding_and_no_traceback(text: str, copy: Path) -> None:
    (copy / "manifest.json").write_text(text)
    assert len(verify_store(copy)) == 1
    with pytest.raises(StoreError, match=r"manifest\.json"):
        Store(copy)


def test_what_is_no_store_is_one_finding(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        (found,) = verify_store(path)
        assert "not a finished store" in found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["chunks"].update({"../../x": [3, 0]}), "lists chunks that do not match"),
        (lambda m: m["chunks"].update({"/etc/passwd": [3, 0]}), "lists chunks that do not match"),
        (lambda m: m["chunks"].pop(SHARD), "lists chunks that do not match"),
        (lambda m: m["chunks"].update({SHARD: "x"}), "no valid size and checksum"),
        (lambda m: m["splits"].update({"../..": {"samples": 1, "shard": 1}}), "has an unknown split"),
        (lambda m: m["splits"]["train"].update(samples=10**15), "samples in shards"),
        (lambda m: m["splits"]["train"].update(shard=0), "samples in shards"),
        (lambda m: m["splits"]["train"].update(shard="8"), "str in the field 'shard'"),
        (lambda m: m.pop("classes"), "no field 'classes'"),
        (lambda m: m.update(classes=[1]), "where texts are required"),
        (lambda m: m.update(broken=[]), "'broken'"),
        (lambda m: m["transform"].pop("scale"), "does not describe a transform"),
        (lambda m: m["transform"].update(scale="x"), "does not describe a transform"),
        (lambda m: m["transform"]["whitening"].update(matrices=[1.0]), "does not describe a transform"),
        (lambda m: m["transform"]["preparation"].update(size="ab"), "does not describe a transform"),
        (lambda m: m["transform"]["preparation"].update(colour="green"), "does not describe a transform"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused_though_its_checksum_is_right(
    change: Callable[[dict[str, Any]], object], says: str, copy: Path
) -> None:
    forge(copy, change)
    with pytest.raises(StoreError, match=says):
        Store(copy)
    assert len(verify_store(copy)) == 1


def test_arrays_that_are_not_what_the_manifest_says_are_found(copy: Path) -> None:
    described = copy / "arrays/train/samples/zarr.json"
    described.write_text(described.read_text().replace("float16", "uint16"))

    def sealed(manifest: dict[str, Any]) -> None:
        manifest["chunks"]["arrays/train/samples/zarr.json"] = chunk_of(described)

    forge(copy, sealed)
    (found,) = verify_store(copy)
    assert "says uint16" in found
    with pytest.raises(StoreError, match="says uint16"):
        Store(copy).read("train", 0, 1)


def test_a_changed_description_of_the_same_length_is_found_before_it_is_used(copy: Path) -> None:
    described = copy / "arrays/train/samples/zarr.json"
    text = described.read_text()
    assert '"fill_value": 0' in text
    described.write_text(text.replace('"fill_value": 0', '"fill_value": 9'))
    with pytest.raises(StoreError, match=r"train/samples/zarr\.json"):
        Store(copy).read("train", 0, 1)


def test_labels_beyond_the_classes_are_found(tmp_path: Path) -> None:
    write_photographs(tmp_path / "in/only", 3)
    source = open_source(tmp_path / "in", labels="folders")
    prepare(source, tmp_path / "s", Preparation((4, 4), whiten=False), validation=0, jobs=1)
    forge(tmp_path / "s", lambda manifest: manifest["classes"].clear())
    (found,) = verify_store(tmp_path / "s")
    assert "3 labels in train" in found


@pytest.mark.parametrize("key", [SHARD, LABELS, "arrays/zarr.json", "manifest.json"])
def test_no_file_of_a_store_is_opened_through_a_link(key: str, copy: Path, tmp_path: Path) -> None:
    (copy / key).rename(tmp_path / "elsewhere")
    (copy / key).symlink_to(tmp_path / "elsewhere")
    assert any("symbolic link" in each for each in verify_store(copy))
    with pytest.raises(StoreError, match="symbolic link"):
        Store(copy)


@pytest.mark.parametrize("folder", ["arrays", "arrays/train", "arrays/train/samples/c/0"])
def test_no_folder_of_a_store_is_a_link(folder: str, copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / folder, tmp_path / "elsewhere")
    (copy / folder).symlink_to(tmp_path / "elsewhere")
    assert any("symbolic link" in each for each in verify_store(copy))
    with pytest.raises(StoreError, match="symbolic link"):
        Store(copy)


@pytest.mark.parametrize("key", [SHARD, "manifest.json"])
def test_a_pipe_in_a_store_is_refused_and_not_waited_for(key: str, copy: Path) -> None:
    (copy / key).unlink()
    os.mkfifo(copy / key)
    assert any("regular file" in each for each in verify_store(copy))
    with pytest.raises(StoreError, match="regular file"):
        Store(copy)


def test_a_store_that_is_reached_through_a_link_is_a_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").symlink_to(store.path)
    assert verify_store(tmp_path / "mine") == []
    assert np.array_equal(Store(tmp_path / "mine").read("test", 0, 1), store.read("test", 0, 1))
