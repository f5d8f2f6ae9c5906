from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cotswold.analysis.classification import Classification
from cotswold.analysis.selectivity.results import Evaluation, ObjectSelectivity
from cotswold.analysis.selectivity.scores import LayerSelectivity, NeuronScore
from cotswold.analysis.verify import verify_results
from cotswold.errors import DiskFullError, RunError
from cotswold.recipe import Recipe
from cotswold.run import RunDirectory

FOUND = LayerSelectivity("1.output", (2, 3, 3), (NeuronScore((1, 0, 2), 0.25, 0.9),), 0.8, 0.02, 10, 0)
EVALUATION = Evaluation(7, (ObjectSelectivity("cats", 12, 30, 0.647, (FOUND,), random=(FOUND,)),))
CLASSIFICATION = Classification(3, "test", ("cat", "dog"), ((4, 1), (0, 5)))


def test_results_are_what_their_files_say_they_are(tmp_path: Path) -> None:
    EVALUATION.write(tmp_path / "e.json")
    CLASSIFICATION.write(tmp_path / "c.json")
    assert Evaluation.read(tmp_path / "e.json") == EVALUATION
    assert Classification.read(tmp_path / "c.json") == CLASSIFICATION
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["c.json", "e.json"]


def test_classes_whose_names_are_no_text_come_back_as_they_are(tmp_path: Path) -> None:
    names = (os.fsdecode(b"caf\xe9"), "日本")
    found = Classification(3, "test", names, ((4, 1), (0, 5)))
    found.write(tmp_path / "c.json")
    assert Classification.read(tmp_path / "c.json") == found


def test_every_figure_that_is_changed_in_a_file_is_noticed(tmp_path: Path) -> None:
    text = EVALUATION.to_json()
    for place in [i for i, letter in enumerate(text) if letter.isdigit()]:
        changed = text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]
        with pytest.raises(RunError):
            Evaluation.from_json(changed)
    (tmp_path / "c.json").write_text(CLASSIFICATION.to_json().replace("5", "50"))
    with pytest.raises(RunError, match=r"c\.json: not a valid classification"):
        Classification.read(tmp_path / "c.json")


def test_a_file_without_a_checksum_is_refused() -> None:
    with pytest.raises(RunError, match="its checksum is not its own"):
        Evaluation.from_json(EVALUATION.to_json().replace("crc32", "crc33"))


@pytest.mark.parametrize("text", ["[]", "", '{"step": ' + "[" * 100_000, '{"step": NaN}', '"', "\xff"])
def test_whatever_is_no_result_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(RunError, match="run cotswold evaluate again"):
        Evaluation.from_json(text)


def test_a_figure_that_is_no_number_is_never_kept(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        Evaluation(1, (ObjectSelectivity("cats", 1, 1, float("nan"), (FOUND,)),)).write(tmp_path / "e.json")
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EVALUATION.write(tmp_path / "e.json")

    def full(_: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError):
        Evaluation(8).write(tmp_path / "e.json")
    assert Evaluation.read(tmp_path / "e.json") == EVALUATION


@pytest.mark.parametrize(
    "link", [lambda at, to: at.symlink_to(to), lambda at, _: os.mkfifo(at)], ids=["link", "pipe"]
)
def test_results_are_neither_read_nor_written_through_links_and_pipes(
    tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    thesis, result = tmp_path / "thesis.json", tmp_path / "e.json"
    thesis.write_text(EVALUATION.to_json())
    link(result, thesis)
    with pytest.raises(RunError, match=r"e\.json cannot be read"):
        Evaluation.read(result)
    Evaluation(9).write(result)
    assert thesis.read_text() == EVALUATION.to_json()
    assert Evaluation.read(result) == Evaluation(9)


def test_verifying_names_each_result_that_is_damaged_and_nothing_else(
    run: RunDirectory, recipe: Recipe
) -> None:
    assert verify_results(run.path) == []
    EVALUATION.write(run.evaluation)
    CLASSIFICATION.write(run.classification)
    assert verify_results(run.path) == []
    run.evaluation.write_bytes(run.evaluation.read_bytes()[:-9])
    (sentence,) = verify_results(run.path)
    assert "evaluation.json: not a valid evaluation" in sentence
    run.classification.write_text("{}")
    assert len(verify_results(run.path)) == 2
