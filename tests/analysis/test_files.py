from __future__ import annotations

import csv
import errno
from pathlib import Path

import numpy as np
import pytest
import torch

from cotswold.analysis.classification import Classification, classify
from cotswold.analysis.features import NamedBatch, write_features
from cotswold.errors import DiskFullError, RunError, SourceError, UserError


def batches() -> list[NamedBatch]:
    images = torch.arange(14.0).reshape(7, 2, 1, 1)
    return [(images[:4], list("abcd"), [0, 1, 0, 1]), (images[4:], list("efg"), [1, 1, -1])]


def test_features_are_read_back_row_by_row_with_their_names(tmp_path: Path) -> None:
    shape = write_features(lambda x: 2 * x.flatten(1), batches(), tmp_path / "out.npy")
    found = np.load(tmp_path / "out.npy", mmap_mode="r", allow_pickle=False)
    assert shape == found.shape == (7, 2)
    assert np.array_equal(found, 2 * np.arange(14.0).reshape(7, 2))
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.reader(file))[5] == ["4", "e", "1"]


def test_names_that_are_no_text_are_written_as_the_bytes_they_are(tmp_path: Path) -> None:
    write_features(lambda x: x, [(torch.zeros(1, 1, 1, 1), ["a\udcff.png"], [0])], tmp_path / "out.npy")
    assert b"0,a\xff.png,0" in (tmp_path / "out.csv").read_bytes()


def test_features_that_cannot_all_be_written_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(csv, "writer", full)
    with pytest.raises(DiskFullError):
        write_features(lambda x: x, batches(), tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


def test_features_in_one_archive_carry_names_and_labels(tmp_path: Path) -> None:
    write_features(lambda x: x, batches(), tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as found:
        assert found["features"].shape == (7, 2, 1, 1)
        assert "".join(found["names"]) == "abcdefg"
        assert found["labels"].tolist() == [0, 1, 0, 1, 1, 1, -1]
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_features_never_replace_a_file(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(UserError, match=r"out\.csv exists"):
        write_features(lambda x: x, batches(), tmp_path / "out.npy")
    assert (tmp_path / "out.csv").read_text() == "mine"


def test_features_of_another_ending_or_of_nothing_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.npy"):
        write_features(lambda x: x, batches(), tmp_path / "out.txt")
    with pytest.raises(SourceError, match="no images"):
        write_features(lambda x: x, [], tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


def test_a_classification_counts_answers_and_survives_its_file(tmp_path: Path) -> None:
    outputs = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]])
    labels, images = torch.tensor([0, 1, 1]), torch.randn(3, 1, 4, 4)
    found = classify(lambda x: outputs, [(images, labels)], ["cat", "dog"], step=3, split="test")
    assert found.confusion == ((1, 0), (1, 1))
    assert found.accuracy == pytest.approx(2 / 3)
    assert (found.wrong_examples[0].truth, found.wrong_examples[0].predicted) == ("dog", "cat")
    (tmp_path / "c.json").write_text(found.to_json())
    assert Classification.read(tmp_path / "c.json") == found
    assert Classification.read(tmp_path / "none.json") is None


def test_a_damaged_classification_is_named(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(RunError, match=r"c\.json: not a valid classification"):
        Classification.read(tmp_path / "c.json")
