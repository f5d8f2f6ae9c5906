"""Stores of vectors and of frames: prepared, read, checked."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.data.conftest import files, write_photographs

from cotswold.data import (
    Preparation,
    Reader,
    Store,
    VectorPreparation,
    VectorTransform,
    open_source,
    open_vectors,
    prepare,
    stream,
    transform_from_state,
    verify_store,
)
from cotswold.data.preprocessing.vectors import Moments
from cotswold.data.store import layout as store_layout
from cotswold.data.store.layout import Chunk
from cotswold.errors import SourceError, StoreError, UserError
from cotswold.files import MalformedError

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(5, 3, (500, 4)) * [1, 10, 100, 0] + [0, 0, 1e6, 0.1]
Y = np.arange(500) % 7


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_VECTORS_MAX", 64)
    monkeypatch.setattr("cotswold.data.store.prepare._VECTORS_PER_JOB", 32)


def vectors(folder: Path, x: NDArray[np.generic] = X, y: NDArray[np.generic] = Y) -> Path:
    np.savez(folder / "a.npz", x=x, y=y)
    return folder / "a.npz"


def sequences(folder: Path, lengths: list[int], features: int = 3) -> dict[str, NDArray[np.float64]]:
    made = {}
    for number, length in enumerate(lengths):
        frames = RANDOM.normal(size=(length, features))
        made[f"{number:03d}.npy"] = frames
        folder.mkdir(exist_ok=True)
        np.save(folder / f"{number:03d}.npy", frames)
        np.save(folder / f"{number:03d}.labels.npy", np.array(number))
    return made


def test_every_vector_is_once_in_the_store_standardised_by_the_training_split(
    tmp_path: Path, small_shards: None
) -> None:
    source = open_vectors(vectors(tmp_path), labels="file")
    summary = prepare(source, tmp_path / "s", VectorPreparation(4), validation=0.2, test=0.1, jobs=1)
    store = Store(tmp_path / "s")
    assert store.splits == summary.splits == {"train": 350, "validation": 100, "test": 50}
    assert str(store.shape) == "4 x 1 x 1" and store.kind == "vectors" and store.outputs == 7
    assert any("1 of 4 features is constant" in note and note.endswith(": 3") for note in store.notes)
    transform = store.transform
    assert (
        isinstance(transform, VectorTransform)
        and transform.mean is not None
        and transform.deviation is not None
    )
    seen = []
    for split, count in store.splits.items():
        values = store.read(split, 0, count).reshape(count, 4)
        assert values.dtype == np.float32 and (values[:, 3] == 0).all()
        deviation = np.where(transform.deviation == 0, 1, transform.deviation)
        rows = values * deviation + transform.mean
        nearest = np.abs(X[None, :, 0] - rows[:, None, 0]).argmin(1)
        np.testing.assert_allclose(rows, X[nearest], rtol=1e-5, atol=1e-5)
        assert store.labels(split).tolist() == Y[nearest].tolist()
        seen += nearest.tolist()
    assert sorted(seen) == list(range(500))
    train = store.read("train", 0, 350).reshape(350, 4)[:, :3]
    np.testing.assert_allclose(train.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(0), 1, atol=1e-5)
    assert verify_store(tmp_path / "s") == []


def test_moments_are_stable_and_do_not_depend_on_how_rows_are_cut() -> None:
    rows = RANDOM.normal(1e9, 1, (1000, 3))
    whole = Moments.of(rows)
    parts = Moments.of(rows[:1]) | Moments.of(rows[1:700]) | Moments.of(rows[700:])
    np.testing.assert_allclose(parts.deviation, rows.std(0), rtol=1e-6)
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-14)
    assert (Moments.of(np.full((7, 1), 0.1)).deviation == 0).all()


def test_the_store_is_the_same_for_every_number_of_processes(tmp_path: Path, small_shards: None) -> None:
    source = open_vectors(vectors(tmp_path), labels="file")
    for jobs in (1, 2):
        prepare(source, tmp_path / str(jobs), VectorPreparation(4), jobs=jobs)
    assert files(tmp_path / "1") == files(tmp_path / "2")


@pytest.mark.parametrize(("dtype", "error"), [("float32", 1e-6), ("float16", 1e-3)])
def test_values_may_be_kept_as_they_are(dtype: str, error: float, tmp_path: Path) -> None:
    small = RANDOM.normal(size=(30, 5))
    preparation = VectorPreparation(5, standardise=False, dtype=dtype)  # type: ignore[arg-type]  # one of both
    prepare(open_vectors(vectors(tmp_path, small, Y[:30])), tmp_path / "s", preparation, validation=0)
    found = Store(tmp_path / "s").read("train", 0, 30).reshape(30, 5)
    np.testing.assert_allclose(found[found[:, 0].argsort()], small[small[:, 0].argsort()], rtol=error)
    assert Store(tmp_path / "s").read_stored("train", 0, 1).dtype == dtype


def test_a_number_too_large_for_the_store_is_named_with_a_remedy(tmp_path: Path) -> None:
    source = open_vectors(vectors(tmp_path, np.array([[1.0], [7e4], [2.0]]), Y[:3]))
    preparation = VectorPreparation(1, standardise=False, dtype="float16")
    with pytest.raises(SourceError, match=r"x\[1\] has a number that is too large for float16; standardise"):
        prepare(source, tmp_path / "s", preparation, validation=0, jobs=1)


def test_one_vector_of_one_feature_is_enough(tmp_path: Path) -> None:
    prepare(open_vectors(vectors(tmp_path, X[:1, :1], Y[:1])), tmp_path / "s", VectorPreparation(1), jobs=1)
    assert Store(tmp_path / "s").read("train", 0, 1).tolist() == [[[[0.0]]]]


def test_numbers_to_predict_go_with_their_vectors(tmp_path: Path) -> None:
    targets = np.stack([X[:, 0], -X[:, 0]], 1)
    prepare(open_vectors(vectors(tmp_path, X, targets), labels="file"), tmp_path / "s", VectorPreparation(4))
    store = Store(tmp_path / "s")
    assert (store.targets, store.outputs, store.classes) == (2, 2, ())
    transform = store.transform
    assert (
        isinstance(transform, VectorTransform)
        and transform.mean is not None
        and transform.deviation is not None
    )
    reader = Reader(store, "train", 50, seed=1)
    x, y = reader.next()
    reader.close()
    assert y.dtype == torch.float32 and y.shape == (50, 2)
    restored = x[:, 0, 0, 0] * transform.deviation[0] + transform.mean[0]
    torch.testing.assert_close(restored.float(), y[:, 0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y[:, 0], -y[:, 1])
    assert verify_store(tmp_path / "s") == []


@pytest.mark.parametrize("context", [0, 2])
def test_a_sample_is_a_frame_with_its_neighbours_across_shards_and_never_across_sequences(
    context: int, tmp_path: Path, small_shards: None
) -> None:
    made = sequences(tmp_path / "set", [5, 90, 1, 130, 40])
    source = open_vectors(tmp_path / "set", "frames", labels="file")
    preparation = VectorPreparation(3, "frames", context, standardise=False)
    prepare(source, tmp_path / "s", preparation, validation=0.2, test=0.2, jobs=1)
    store = Store(tmp_path / "s")
    assert store.kind == "frames" and store.shape.channels == 3 * (2 * context + 1)
    assert sum(store.splits.values()) == 266
    for split, count in store.splits.items():
        lengths, labels, start = store.lengths(split), store.labels(split), 0
        assert lengths is not None and lengths.sum() == count
        whole = store.read(split, 0, count)
        for length in lengths.tolist():
            sequence = made[f"{labels[start]:03d}.npy"]
            assert len(sequence) == length and len(set(labels[start : start + length])) == 1
            padded = np.pad(sequence, ((context, context), (0, 0)), mode="edge")
            expected = np.stack([padded[t : t + 2 * context + 1].reshape(-1) for t in range(length)])
            np.testing.assert_array_equal(whole[start : start + length, :, 0, 0], expected.astype(np.float32))
            start += length
        for first, last in ((0, 1), (count // 2, count), (count, count)):
            np.testing.assert_array_equal(store.read(split, first, last), whole[first:last])
    frame_bytes = sum(path.stat().st_size for path in (tmp_path / "s").rglob("samples/c/*/0/0/0"))
    assert 0 < frame_bytes < 1.5 * 266 * 3 * 4 + 4000, "frames are kept once"
    assert verify_store(tmp_path / "s") == []


def test_a_reader_of_frames_hands_out_joined_samples_and_goes_on(tmp_path: Path, small_shards: None) -> None:
    sequences(tmp_path / "set", [50, 70, 90])
    source = open_vectors(tmp_path / "set", "frames")
    prepare(source, tmp_path / "s", VectorPreparation(3, "frames", 1), validation=0, jobs=1)
    store = Store(tmp_path / "s")
    reader = Reader(store, "train", 10, seed=2)
    epoch = [x for x, _ in reader]
    state = reader.state_dict()
    together = torch.cat(epoch)[:, :, 0, 0].numpy()
    whole = store.read("train", 0, 210)[:, :, 0, 0]
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, whole.tolist()))
    resumed = Reader(store, "train", 10, seed=2)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert torch.equal(resumed.next()[0], reader.next()[0])
    reader.close()
    resumed.close()


def test_splits_are_of_whole_sequences_and_by_folders_where_these_are_called_so(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "set").mkdir(exist_ok=True)
        sequences(tmp_path / "set" / split, [10] * 10)
    source = open_vectors(tmp_path / "set", "frames")
    preparation = VectorPreparation(3, "frames", 5)
    named = prepare(source, tmp_path / "named", preparation, validation=0.2)
    assert named.splits == {"train": 80, "validation": 20, "test": 100}
    drawn = prepare(source, tmp_path / "drawn", preparation, splits="random", limit=7, validation=0.4)
    assert sum(drawn.splits.values()) == 70, "a limit counts sequences"
    assert all(count % 10 == 0 for count in drawn.splits.values())


def test_other_data_are_read_as_the_training_data_were(tmp_path: Path) -> None:
    sequences(tmp_path / "set", [20, 30])
    source = open_vectors(tmp_path / "set", "frames")
    prepare(source, tmp_path / "s", VectorPreparation(3, "frames", 2), validation=0)
    store = Store(tmp_path / "s")
    transform = transform_from_state(json.loads(json.dumps(store.transform.state())))
    batches = list(stream(source, transform, 16))
    assert torch.cat([indices for _, indices in batches]).tolist() == list(range(50))
    found = torch.cat([x for x, _ in batches]).numpy()[:, :, 0, 0]
    order = [np.abs(found - row).sum(1).argmin() for row in store.read("train", 0, 50)[:, :, 0, 0]]
    np.testing.assert_allclose(found[order], store.read("train", 0, 50)[:, :, 0, 0], rtol=1e-6)
    assert sorted(order) == list(range(50))
    with pytest.raises(
        UserError, match="learnt from frames of 3 features, but the source contains vectors of 4"
    ):
        stream(open_vectors(vectors(tmp_path)), transform, 16)
    write_photographs(tmp_path / "images", 1)
    with pytest.raises(UserError, match="learnt from frames, but the source contains images"):
        stream(open_source(tmp_path / "images"), transform, 16)


def test_a_preparation_for_other_data_is_refused(tmp_path: Path) -> None:
    source = open_vectors(vectors(tmp_path))
    with pytest.raises(UserError, match="for images, but the source contains vectors"):
        prepare(source, tmp_path / "s", Preparation())
    with pytest.raises(UserError, match="for 5 features, but the source has 4"):
        prepare(source, tmp_path / "s", VectorPreparation(5))
    for wrong in ({"context": 1}, {"features": 0}, {"dtype": "uint8"}, {"kind": "images"}):
        with pytest.raises(UserError):
            VectorPreparation(**{"features": 4, **wrong})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("field", ["mean", "deviation"])
@pytest.mark.parametrize("wrong", [None, [0.0], [0.0, float("nan")], "x"])
def test_a_transform_that_contradicts_itself_is_refused(field: str, wrong: object) -> None:
    state = VectorTransform(VectorPreparation(2), np.zeros(2), np.ones(2)).state()
    with pytest.raises(MalformedError, match="does not describe a transform"):
        transform_from_state({**state, field: wrong})


def test_damaged_lengths_are_found_and_the_store_is_opened_anew_elsewhere(tmp_path: Path) -> None:
    sequences(tmp_path / "set", [5, 6])
    source = open_vectors(tmp_path / "set", "frames")
    prepare(source, tmp_path / "s", VectorPreparation(3, "frames", 1), validation=0)
    again = pickle.loads(pickle.dumps(Store(tmp_path / "s")))
    assert again.read("train", 0, 11).shape == (11, 9, 1, 1)
    path = tmp_path / "s" / "arrays" / "train" / "lengths" / "c" / "0"
    content = bytearray(path.read_bytes())
    content[0] ^= 3
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"lengths/c/0 .* is damaged"):
        Store(tmp_path / "s").read("train", 0, 2)
    assert any("lengths/c/0" in finding for finding in verify_store(tmp_path / "s"))


def test_a_preparation_that_was_interrupted_goes_on_with_the_same_transform(
    tmp_path: Path, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_vectors(vectors(tmp_path), labels="file")
    whole = prepare(source, tmp_path / "whole", VectorPreparation(4), jobs=1)
    writing, left = store_layout.write_shard, iter(range(3))

    def until_the_disk_is_gone(*what: Any) -> Chunk:
        if next(left, None) is None:
            raise SourceError("the disk went away")
        return writing(*what)

    monkeypatch.setattr(store_layout, "write_shard", until_the_disk_is_gone)
    with pytest.raises(SourceError, match="went away"):
        prepare(source, tmp_path / "s", VectorPreparation(4), jobs=1)
    monkeypatch.undo()
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_VECTORS_MAX", 64)
    again = prepare(source, tmp_path / "s", VectorPreparation(4), jobs=1)
    assert again.reused == 3 * 64 and again.identity == whole.identity
    assert files(tmp_path / "s") == files(tmp_path / "whole")


def test_nothing_is_written_where_a_number_is_not_finite(tmp_path: Path) -> None:
    broken = X.copy()
    broken[123, 1] = np.nan
    with pytest.raises(SourceError, match=r"/\w+\.npz:x\[123\]: feature 1 is nan"):
        prepare(open_vectors(vectors(tmp_path, broken)), tmp_path / "s", VectorPreparation(4), jobs=1)
    assert not (tmp_path / "s").exists()
