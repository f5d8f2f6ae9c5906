"""Sequences of frames from folders, zips and .npz files, and their concatenation."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cotswold.data import VectorSource, open_samples, open_vectors
from cotswold.data.sources.sequences import frames_of, lengths_of, neighbours
from cotswold.errors import SourceError

LENGTHS = [4, 1, 7]


def sequence(number: int) -> NDArray[np.float64]:
    """Return the frames (s, t) of sequence s."""
    length = LENGTHS[number]
    return np.stack([np.full(length, number), np.arange(length)], 1).astype(float)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["train/a", "train/b", "test/a"]):
        path = tmp_path / "set" / f"{name}/{number}.npy"
        path.parent.mkdir(parents=True)
        np.save(path, sequence(number))
    return tmp_path / "set"


def zipped(folder: Path) -> Path:
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in folder.rglob("*.npy"):
            archive.write(file, file.relative_to(folder).as_posix())
    return path


def every(source: VectorSource) -> list[list[float]]:
    found: list[list[float]] = source.rows(np.arange(len(source))).tolist()
    return found


def test_a_folder_and_its_zip_hold_the_same_sequences(folder: Path) -> None:
    for source in (open_samples(folder), open_samples(zipped(folder))):
        assert isinstance(source, VectorSource) and source.kind == "frames"
        assert source.lengths is not None and source.lengths.tolist() == [7, 4, 1]
        assert every(source) == np.concatenate([sequence(n) for n in (2, 0, 1)]).tolist()
        assert source.name(8) == "train/a/0.npy[1]"
        assert [source.split_of(i) for i in (0, 7)] == ["test", "train"]


def test_labels_are_the_parent_folder_or_lie_beside(folder: Path) -> None:
    by_folder = open_vectors(folder, "frames", labels="folders")
    assert by_folder.classes == ("a", "b")
    assert by_folder.labels(np.arange(12)).tolist() == [0] * 7 + [0] * 4 + [1]
    np.save(folder / "test/a/2.labels.npy", np.arange(7))
    np.save(folder / "train/a/0.labels.npy", np.array(5))
    np.save(folder / "train/b/1.labels.npy", np.array([2]))
    for path in (folder, zipped(folder)):
        beside = open_vectors(path, "frames", labels="file")
        assert beside.labels(np.arange(12)).tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 5, 5, 5, 2]
        assert len(beside) == 12, "labels are no sequences"


@pytest.mark.parametrize("labels", [np.arange(12), np.array([0, 1, 2])], ids=["a frame", "a sequence"])
def test_an_npz_says_the_lengths(labels: NDArray[Any], tmp_path: Path) -> None:
    frames = np.concatenate([sequence(n) for n in range(3)])
    np.savez(tmp_path / "s.npz", frames=frames, lengths=LENGTHS, labels=labels)
    source = open_samples(tmp_path / "s.npz", labels="file")
    assert source.kind == "frames" and source.lengths is not None and source.lengths.tolist() == LENGTHS
    expected = labels if len(labels) == 12 else np.repeat(labels, LENGTHS)
    assert source.labels(np.arange(12)).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"lengths": [4, 7]}, "sums to 11, but there are 12 frames"),
        ({"lengths": [4.0, 8.0]}, "one integer of at least 1 for each sequence"),
        ({"lengths": [12, 0]}, "one integer of at least 1"),
        ({"lengths": [12], "labels": np.arange(5)}, "has 5 labels for 12 frames"),
        ({"lengths": [12]}, "no array `labels`"),
        ({"lengths": [12], "frames": np.zeros(12)}, r"frames are \(n, features\)"),
    ],
)
def test_an_npz_that_contradicts_itself_is_refused(arrays: dict[str, Any], says: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", **{"frames": np.zeros((12, 2)), **arrays})
    with pytest.raises(SourceError, match=says):
        open_vectors(tmp_path / "s.npz", "frames", labels="file")


def test_what_is_wrong_with_one_sequence_is_named(folder: Path) -> None:
    with pytest.raises(SourceError, match=r"test/a/2\.npy has no label file"):
        open_vectors(folder, "frames", labels="file")
    for name, length in (("test/a/2", 3), ("train/a/0", 4), ("train/b/1", 1)):
        np.save(folder / f"{name}.labels.npy", np.arange(length))
    with pytest.raises(SourceError, match=r"2\.labels\.npy has 3 labels for 7 frames \(or give one for the"):
        open_vectors(folder, "frames", labels="file")
    np.save(folder / "train/b/1.npy", np.zeros((2, 5)))
    with pytest.raises(SourceError, match=r"train/b/1\.npy 5; give arrays with equally many columns"):
        open_vectors(folder, "frames")
    np.save(folder / "train/b/1.npy", np.array([None], object), allow_pickle=True)
    for path in (folder, zipped(folder)):
        with pytest.raises(SourceError, match=r"1\.npy contains Python objects"):
            open_vectors(path, "frames")
    np.save(folder / "train/b/1.npy", np.array([[0, np.nan]]))
    with pytest.raises(SourceError, match=r"train/b/1\.npy\[0\]: feature 1 is nan"):
        open_vectors(folder, "frames").settle()
    (folder / "train/b/1.npy").write_bytes(b"\x93NUMPY\1\0x\0{")
    with pytest.raises(SourceError, match="cannot be read"):
        open_vectors(folder, "frames")


def test_recomputed_frames_of_the_same_shape_are_another_source(folder: Path) -> None:
    before = open_vectors(folder, "frames").identity
    np.save(folder / "train/a/0.npy", sequence(0) + 1)
    assert open_vectors(folder, "frames").identity != before
    for label in (1, 2):
        for name in ("test/a/2", "train/a/0", "train/b/1"):
            np.save(folder / f"{name}.labels.npy", np.array(label))
        labelled = open_vectors(folder, "frames", labels="file").identity
        assert labelled != before
        before = labelled


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), context=st.integers(0, 6), data=st.data())
def test_neighbours_stay_in_their_sequence_and_repeat_its_ends(
    lengths: list[int], context: int, data: st.DataObject
) -> None:
    frames = [(s, t) for s, length in enumerate(lengths) for t in range(length)]
    at = data.draw(st.integers(0, len(frames) - 1))
    found = neighbours(np.array([at]), np.array(lengths), context)[0]
    s, t = frames[at]
    expected = [(s, min(max(t + d, 0), lengths[s] - 1)) for d in range(-context, context + 1)]
    assert [frames[index] for index in found] == expected


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8), seed=st.integers(0, 9))
def test_lengths_of_permuted_sequences_are_found_again(lengths: list[int], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths))
    assert lengths_of(frames_of(order, np.array(lengths)), np.array(lengths)).tolist() == [
        lengths[o] for o in order
    ]


def test_an_npz_may_have_arrays_for_each_split(tmp_path: Path) -> None:
    arrays = {
        "x_train": np.arange(10.0).reshape(5, 2),
        "length_train": np.array([2, 3]),
        "y_train": np.array([0, 1]),
        "x_test": np.arange(6.0).reshape(3, 2),
        "length_test": np.array([3]),
        "y_test": np.array([1]),
    }
    np.savez(tmp_path / "s.npz", **arrays)  # type: ignore[arg-type]  # numpy's stub means allow_pickle
    found = open_samples(tmp_path / "s.npz", labels="file")
    assert found.kind == "frames" and found.lengths is not None and found.lengths.tolist() == [3, 2, 3]
    assert found.splits_of(np.array([0, 3])) == ["test", "train"]
    assert found.labels(np.arange(8)).tolist() == [1, 1, 1, 0, 0, 1, 1, 1]


def test_a_length_for_each_row_makes_no_sequences(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", x=np.ones((4, 2)), length=np.arange(4), y=np.array([0, 1, 0, 1]))
    assert open_samples(tmp_path / "s.npz").kind == "vectors"
