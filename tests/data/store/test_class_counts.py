"""Report on a store's classes: counts, classes that cannot be learnt, classes without a sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.data.conftest import write_photographs

import cotswold
from cotswold.data.store.class_counts import class_notes


def labels(**splits: list[int]) -> dict[str, np.ndarray]:
    return {split: np.array(each) for split, each in splits.items()}


def test_few_classes_are_named_with_their_counts() -> None:
    notes = class_notes(["ant", "bee"], labels(train=[0] * 5 + [1] * 3, test=[0, 1]))
    assert notes == ["2 classes, with samples for training: ant 5, bee 3"]


def test_many_classes_are_counted() -> None:
    names = [str(number) for number in range(12)]
    (note,) = class_notes(names, labels(train=[*range(12)] * 3 + [0]))
    assert note.startswith("12 classes (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...), with 3 to 4 samples")


def test_a_class_that_is_only_tested_is_said_and_so_is_one_without_samples() -> None:
    notes = class_notes(["ant", "bee", "cow", "dog"], labels(train=[0] * 9 + [3] * 9, test=[0, 1]))
    assert "1 of 4 classes has no samples: cow" in notes
    assert "no network can learn them: bee" in " ".join(notes)
    assert "1 of 4 classes has no samples for test: dog" in notes


def test_a_class_whose_name_is_that_of_a_missing_label_is_said() -> None:
    notes = class_notes(["", "ant", "nan"], labels(train=[0] + [1] * 9 + [2] * 3))
    assert notes[0] == "3 classes, with samples for training: '' 1, ant 9, nan 3"
    assert notes[1].startswith("1 sample of the class '': this is how missing labels are written")
    assert notes[2].startswith("3 samples of the class 'nan': this is how missing labels are written")


def test_nearly_as_many_classes_as_samples_may_be_numbers_to_predict() -> None:
    notes = class_notes([*"abcdefgh"], labels(train=[*range(8)]))
    assert "8 classes for 8 samples; regression targets must be floating-point" in notes[-1]


def test_a_store_says_its_classes_and_folders_without_a_image(tmp_path: Path) -> None:
    for kind in ("hills", "lakes"):
        write_photographs(tmp_path / "p" / kind, 20)
    (tmp_path / "p" / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "p" / ".hidden").mkdir()
    store = cotswold.prepare(
        tmp_path / "p", tmp_path / "s", size=8, whiten=False, labels="folders", jobs=1, progress=False
    )
    said = " | ".join(store.notes)
    assert "2 classes, with samples for training: hills 19, lakes 19" in said
    assert "folders without images: empty" in said


def test_preparation_from_python_names_the_images_that_it_leaves_out(tmp_path: Path) -> None:
    write_photographs(tmp_path / "p", 20)
    (tmp_path / "p" / "cut.jpg").write_bytes(b"no image")
    with pytest.warns(RuntimeWarning, match=r"1 broken image was left out: cut\.jpg"):
        cotswold.prepare(tmp_path / "p", tmp_path / "s", size=8, whiten=False, jobs=1, progress=False)
