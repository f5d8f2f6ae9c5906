from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.conftest import write_photographs

from cotswold.data import Preparation, Store, open_source, prepare
from cotswold.errors import StoreError, UserError
from cotswold.geometry import Box, MapShape


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Path:
    shutil.copytree(store.path, tmp_path / "copy")
    return tmp_path / "copy"


SHARD = "arrays/train/samples/c/0/0/0/0"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_window_is_what_a_slice_of_the_whole_would_be(data: st.DataObject, store: Store) -> None:
    start = data.draw(st.integers(0, 210))
    stop = data.draw(st.integers(start, 210))
    y, x = data.draw(st.integers(0, 23)), data.draw(st.integers(0, 31))
    box = Box((y, x), (data.draw(st.integers(y + 1, 24)), data.draw(st.integers(x + 1, 32))))
    whole = store.read("train", 0, 210)
    assert whole.dtype == np.float32
    assert (store.read("train", start, stop, box) == whole[start:stop, :, *box.slices]).all()


def test_large_images_are_cut_into_chunks_of_the_plane(tmp_path: Path) -> None:
    write_photographs(tmp_path / "in", 3)
    prepare(open_source(tmp_path / "in"), tmp_path / "s", Preparation((150, 200)), validation=0)
    array = zarr.open_array(tmp_path / "s" / "arrays" / "train" / "samples", mode="r")
    assert array.chunks[2:] == (50, 50) and array.shards is not None
    store = Store(tmp_path / "s")
    assert store.shape == MapShape(3, 150, 200)
    box = Box((40, 99), (101, 200))
    assert (store.read("train", 1, 3, box) == store.read("train", 0, 3)[1:, :, 40:101, 99:]).all()


def test_a_window_reads_the_chunks_that_it_touches_and_no_others(
    plain_store: Callable[..., Store], bytes_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 8)
    store = plain_store(16, (128, 192))  # chunks of 64 x 64
    store.read("train", 0, 1)
    bytes_read.clear()
    store.read("train", 0, 16, Box((60, 64), (128, 128)))
    assert len(bytes_read) == 6  # from each of two shards where its chunks are, and two of its six chunks
    assert 0 <= sum(bytes_read) - 16 * 128 * 64 < 300


def test_an_empty_window_has_no_pixels_and_reads_nothing(store: Store, bytes_read: list[int]) -> None:
    assert store.read("train", 3, 8, Box((24, 5), (24, 9))).shape == (5, 3, 0, 4)
    assert store.read("train", 3, 8, Box((30, 40), (30, 44))).shape == (5, 3, 0, 4)  # beyond the plane
    assert bytes_read == []
    with pytest.raises(UserError, match="200 to 211 are not in train"):
        store.read("train", 200, 211, Box((0, 0), (0, 0)))


def test_the_store_is_an_ordinary_zarr_group(store: Store) -> None:
    group = zarr.open_group(store.path / "arrays", mode="r")
    assert set(group.group_keys()) == {"train", "validation", "test"}
    assert group["test/samples"].shape == (30, 3, 24, 32)  # type: ignore[union-attr]  # an array, as its name says


def test_whiteness_is_measured_on_held_out_images(store: Store) -> None:
    measured = store.whiteness()
    assert measured.images == 60
    assert measured.deviation < 2 and measured.band == (2 / 24, 0.35)
    assert json.loads(json.dumps(measured.as_dict()))["colour_correlation"] < 0.15


def test_a_directory_without_a_manifest_is_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a finished store"):
        Store(tmp_path / "nothing")


def test_a_missing_or_shortened_chunk_is_found_on_opening_and_named(copy: Path) -> None:
    data = (copy / SHARD).read_bytes()
    (copy / SHARD).write_bytes(data[:-1])
    with pytest.raises(StoreError, match=f"chunk {SHARD} of .* bytes instead of"):
        Store(copy)
    (copy / SHARD).unlink()
    with pytest.raises(StoreError, match=f"chunk {SHARD} of .* is missing"):
        Store(copy)


@pytest.mark.parametrize("place", [0, 5000, -3, -30])
def test_a_flipped_bit_is_found_on_reading_and_named(place: int, copy: Path) -> None:
    data = bytearray((copy / SHARD).read_bytes())
    data[place] ^= 4
    (copy / SHARD).write_bytes(data)
    store = Store(copy)
    with pytest.raises(StoreError, match=f"chunk {SHARD} of .* is damaged"):
        store.read("train", 0, 10)
    with pytest.raises(StoreError, match=SHARD):
        store.verify()


def test_a_chunk_that_vanishes_after_opening_does_not_read_as_zeros(copy: Path) -> None:
    store = Store(copy)
    store.verify()
    (copy / SHARD).unlink()
    with pytest.raises(StoreError, match=SHARD):
        store.read("train", 0, 10)


def test_damaged_labels_and_descriptions_are_named(copy: Path) -> None:
    store = Store(copy)
    labels = copy / "arrays" / "train" / "labels" / "c" / "0"
    data = bytearray(labels.read_bytes())
    data[3] ^= 1
    labels.write_bytes(data)
    with pytest.raises(StoreError, match="train/labels/c/0"):
        store.labels("train")
    described = copy / "arrays" / "test" / "samples" / "zarr.json"
    described.write_text("x" * described.stat().st_size)
    with pytest.raises(StoreError, match=r"test/samples/zarr\.json"):
        Store(copy).read("test", 0, 1)


def test_an_altered_or_unreadable_manifest_is_refused(copy: Path) -> None:
    manifest = copy / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"samples": 210', '"samples": 209'))
    with pytest.raises(StoreError, match="was altered"):
        Store(copy)
    manifest.write_text(text[:100])
    with pytest.raises(StoreError, match="cannot be read"):
        Store(copy)
    manifest.write_text("{}")
    with pytest.raises(StoreError, match="not a manifest"):
        Store(copy)


def test_reading_what_is_not_there_is_the_callers_mistake(store: Store) -> None:
    with pytest.raises(UserError, match="no split 'tset'; it has train, validation, test"):
        store.read("tset", 0, 1)
    with pytest.raises(UserError, match="200 to 211 are not in train"):
        store.read("train", 200, 211)
    with pytest.raises(UserError, match="is not a window"):
        store.read("train", 0, 1, Box((0, 0), (25, 32)))


def test_black_images_are_written_like_any_other(plain_store: Callable[..., Store]) -> None:
    store = plain_store(1)
    assert (store.path / SHARD).exists()
    assert (store.read("train", 0, 1) == 0).all()
