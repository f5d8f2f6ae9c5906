"""Vectors from .npy, .npz and idx files."""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cotswold.data import (
    Source,
    VectorPreparation,
    VectorSource,
    open_samples,
    open_vectors,
    prepare,
)
from cotswold.errors import SourceError

X = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 4


def every(source: VectorSource) -> NDArray[np.float64]:
    return source.rows(np.arange(len(source)))


def marks(source: VectorSource) -> list[Any]:
    found: list[Any] = source.labels(np.arange(len(source))).tolist()
    return found


def idx(path: Path, array: NDArray[Any], code: int) -> None:
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(head + array.astype(array.dtype.newbyteorder(">")).tobytes())


def test_an_npy_with_labels_beside_is_read_by_row(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "x.labels.npy", Y)
    source = open_vectors(tmp_path / "x.npy", labels="file")
    assert (len(source), source.features, source.kind) == (20, 3, "vectors")
    np.testing.assert_array_equal(source.rows(np.array([7, 2, 7])), X[[7, 2, 7]])
    assert source.name(7) == "x.npy[7]"
    assert source.classes == ("0", "1", "2", "3") and marks(source) == Y.tolist()
    assert marks(open_vectors(tmp_path / "x.npy")) == [-1] * 20


@pytest.mark.parametrize(
    "names", [("x", "y"), ("data", "labels"), ("arr_0", "arr_1"), ("features", "target")]
)
def test_an_npz_says_by_names_and_shapes_what_is_what(names: tuple[str, str], tmp_path: Path) -> None:
    arrays: dict[str, Any] = {names[0]: X, names[1]: Y}
    np.savez(tmp_path / "a.npz", **arrays)
    source = open_samples(tmp_path / "a.npz", labels="file")
    assert isinstance(source, VectorSource) and source.targets == 0
    np.testing.assert_array_equal(every(source), X)
    assert marks(source) == Y.tolist()


def test_arrays_of_an_npz_that_are_named_as_splits_are_those(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X[:15], y_train=Y[:15], x_test=X[15:], y_test=Y[15:])
    source = open_vectors(tmp_path / "a.npz", labels="file")
    assert [source.split_of(i) for i in (0, 4, 5, 19)] == ["test", "test", "train", "train"]
    assert marks(source) == [*Y[15:], *Y[:15]]


@pytest.mark.parametrize(("code", "dtype"), [(0x08, "u1"), (0x0B, "i2"), (0x0D, "f4"), (0x0E, "f8")])
def test_idx_of_two_dimensions_and_any_type_is_vectors(code: int, dtype: str, tmp_path: Path) -> None:
    array = (X * 20 + 100).astype(dtype)
    idx(tmp_path / "train-vectors-idx2-float", array[:12], code)
    idx(tmp_path / "train-labels-idx1-ubyte", Y[:12].astype("u1"), 0x08)
    idx(tmp_path / "test-vectors-idx2-float", array[12:], code)
    idx(tmp_path / "test-labels-idx1-ubyte", Y[12:].astype("u1"), 0x08)
    source = open_samples(tmp_path, labels="file")
    assert isinstance(source, VectorSource)
    np.testing.assert_array_equal(every(source), np.concatenate([array[12:], array[:12]]))
    assert marks(source) == [*Y[12:], *Y[:12]] and source.split_of(0) == "test"


@pytest.mark.parametrize(
    ("labels", "classes", "first"),
    [
        (np.array(["b", "a", "c", "b"] * 5), ("a", "b", "c"), 1),
        (np.array([b"b", b"a"] * 10), ("a", "b"), 1),
        (np.array([1, -1] * 10), ("-1", "1"), 1),
        (np.array([5, 3] * 10), ("0", "1", "2", "3", "4", "5"), 5),
        (np.array([10**9, 7] * 10), ("7", "1000000000"), 1),
        (np.array([[2], [0]] * 10), ("0", "1", "2"), 2),
    ],
    ids=["texts", "bytes", "negative", "from 0", "large", "a column"],
)
def test_labels_are_numbers_from_0_or_names(
    labels: NDArray[Any], classes: tuple[str, ...], first: int, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=labels)
    source = open_vectors(tmp_path / "a.npz", labels="file")
    assert source.classes == classes and source.label(0) == first


@pytest.mark.parametrize("shape", [(20,), (20, 1), (20, 2)])
def test_floats_are_numbers_to_predict(shape: tuple[int, ...], tmp_path: Path) -> None:
    targets = np.random.default_rng(1).normal(size=shape)
    np.savez(tmp_path / "a.npz", x=X, y=targets)
    source = open_vectors(tmp_path / "a.npz", labels="file")
    assert source.classes == () and source.targets == (shape[1] if len(shape) > 1 else 1)
    np.testing.assert_allclose(marks(source), targets.reshape(20, -1), rtol=1e-6)
    assert " for each sample" in source.settle()[0]


def test_kinds_are_told_by_shapes(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", X)
    np.save(tmp_path / "images.npy", np.zeros((3, 4, 5), np.uint8))
    np.savez(tmp_path / "images.npz", x=np.zeros((3, 4, 5), np.uint8), y=np.zeros((3, 2)))
    assert open_samples(tmp_path / "vectors.npy").kind == "vectors"
    assert isinstance(open_samples(tmp_path / "images.npy"), Source)
    assert open_samples(tmp_path / "images.npz").kind == "images"
    assert open_samples("builtin:demo").kind == "images"


def saved(**arrays: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.savez(folder / "a.npz", **arrays)
        return folder / "a.npz"

    return make


def alone(array: Any, labels: Any = None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        np.save(folder / "a.npy", array, allow_pickle=True)
        if labels is not None:
            np.save(folder / "a.labels.npy", labels, allow_pickle=True)
        return folder / "a.npy"

    return make


OBJECTS = np.array([{"a": 1}, None], object)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (alone(X[:0]), "contains no vectors"),
        (alone(X[:, :0]), "contains no vectors"),
        (alone(X[:, 0]), r"reshape it to \(n, 1\)"),
        (alone(X + 1j), "has dtype complex128"),
        (alone(OBJECTS), "contains Python objects"),
        (alone(X), r"no label file a.labels.npy next to it"),
        (alone(X, Y[:5]), r"has 5 labels for 20 vectors; give one label for each"),
        (alone(X, np.append(Y, Y[:1])), "has 21 labels for 20 vectors"),
        (alone(X, OBJECTS), "cannot be read as .npy"),
        (alone(X, X + 1j), "labels of dtype complex128"),
        (alone(X, np.zeros((20, 2), int)), r"labels of shape \(20, 2\)"),
        (alone(X, np.full(20, np.nan)), r"a.labels.npy\[0\] is an infinite or NaN label"),
        (saved(x=X, y=Y[:5]), "has 5 labels for 20 vectors"),
        (saved(x=X), "has no labels"),
        (saved(x=X, y=Y, labels=Y), "has 2 arrays that may be its labels"),
        (saved(a=X, b=X), "2 arrays that may be vectors"),
        (saved(y=Y), "no array of vectors"),
        (
            saved(x_train=X, x_test=X[:, :2], y_train=Y, y_test=Y),
            r"a\.npz:x_test has 2 features and .*a\.npz:x_train 3",
        ),
        (saved(x_train=X, x_test=X, y_train=Y, y_test=Y.astype(str)), "labels have different kinds"),
    ],
)
def test_what_cannot_be_vectors_or_their_labels_is_refused_with_a_remedy(
    make: Callable[[Path], Path], says: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=says):
        open_vectors(make(tmp_path), labels="file")


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_named_by_file_row_and_feature(wrong: float, tmp_path: Path) -> None:
    array = X.copy()
    array[13, 2] = wrong
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(SourceError, match=rf"a\.npy\[13\]: feature 2 is {wrong}; .*finite"):
        open_vectors(tmp_path / "a.npy").settle()


def test_identity_follows_the_contents_and_not_the_place(tmp_path: Path) -> None:
    other = X.copy()
    other[10, 1] += 1
    for name, array in (("a", X), ("b", X), ("c", other)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", array)
        np.save(tmp_path / name / "x.labels.npy", Y)
    a, b, c = (open_vectors(tmp_path / name / "x.npy").identity for name in "abc")
    assert a == b != c
    labelled = open_vectors(tmp_path / "a" / "x.npy", labels="file").identity
    np.save(tmp_path / "a" / "x.labels.npy", Y[::-1])
    assert labelled != open_vectors(tmp_path / "a" / "x.npy", labels="file").identity


@pytest.mark.parametrize("name", ["vectors", "images"])
def test_a_negative_number_among_the_numbers_of_classes_is_refused(name: str, tmp_path: Path) -> None:
    labels = np.arange(20) % 3
    labels[[5, 7]] = -1
    np.savez(tmp_path / "a.npz", x=X if name == "vectors" else np.zeros((20, 4, 4), np.uint8), labels=labels)
    with pytest.raises(SourceError, match=r"(x|labels)\[5\] has label -1, .* 2 (samples|labels)"):
        open_samples(tmp_path / "a.npz", labels="file")


def test_texts_that_differ_in_unicode_form_alone_are_one_class(tmp_path: Path) -> None:
    forms = [unicodedata.normalize(form, "é") for form in ("NFC", "NFD")]
    np.savez(tmp_path / "a.npz", x=X, labels=np.array(forms * 10))
    assert open_vectors(tmp_path / "a.npz", labels="file").classes == ("é",)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_whole_numbers_that_float64_cannot_hold_are_refused(dtype: type, tmp_path: Path) -> None:
    array: NDArray[Any] = np.full((20, 3), 1 << 60, dtype)
    np.save(tmp_path / "a.npy", array)
    open_vectors(tmp_path / "a.npy").settle()
    array[4, 1] += 3
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(SourceError, match=rf"a\.npy\[4\]: feature 1 is {(1 << 60) + 3}, .* lose their last"):
        open_vectors(tmp_path / "a.npy").settle()


def test_the_largest_whole_number_is_refused_without_a_warning(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((4, 2), np.iinfo(np.uint64).max))
    with pytest.raises(SourceError, match="subtract a common offset"):
        open_vectors(tmp_path / "a.npy").settle()


@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_a_feature_whose_deviation_float64_cannot_hold_is_named(scale: float, tmp_path: Path) -> None:
    array = X.astype(np.float64)
    array[:, 1] = scale * np.arange(20)
    np.save(tmp_path / "a.npy", array)
    source = open_vectors(tmp_path / "a.npy")
    with pytest.raises(SourceError, match=r"feature 1 has numbers from 0 to .*; scale this feature"):
        prepare(source, tmp_path / "store", VectorPreparation(source.features), jobs=1)


def test_an_array_of_sequences_is_refused_with_what_is_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((7, 30, 5)) - 4)
    said = r"frames=x\.reshape\(-1, 5\), lengths=numpy\.full\(7, 30\)\); or vectors: x\.reshape\(7, -1\)"
    with pytest.raises(SourceError, match=said):
        open_samples(tmp_path / "a.npy").settle()
    with pytest.raises(SourceError, match=said):
        open_vectors(tmp_path / "a.npy")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("table.csv", r"it is a table: set data\.type to \"table\" and data\.target"),
        ("table.parquet", r"it is a table: set data\.type"),
        ("table.xlsx", r"pandas\.read_excel\('table\.xlsx'\)\.to_csv\(\"table\.csv\""),
        ("arrays.mat", r"save its arrays with numpy\.savez"),
    ],
)
def test_a_table_as_vectors_is_refused_with_the_way_to_read_it(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("a,b\n1,2\n")
    for kind in ("images", "vectors") if "is a table" in said else (None, "vectors"):
        with pytest.raises(SourceError, match=said):
            open_samples(tmp_path / name, kind)
