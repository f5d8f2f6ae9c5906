import json
from pathlib import Path

import pytest

from cotswold.cli.main import main


def _run(*words: str) -> object:
    with pytest.raises(SystemExit) as left:
        main(["bench", *words])
    return left.value.code


MISTAKES = [
    ("kernels", "--threads", "one"),
    ("kernels", "--only", "fast"),
    ("kernels", "--match", "nobody's"),
    ("kernels", "--explain", "--layer", "3,60"),
    ("machine", "--rounds", "0"),
]


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_what_measures_nothing_is_refused_in_a_sentence(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_part_of_the_kernels_is_measured_and_left_as_table_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("kernels", "--quick", "--threads", "1", "--only", "curve", "--match", "64 x 64")
    assert _run(*words, "--out", str(tmp_path)) == 0
    printed = capsys.readouterr()
    assert "64 x 64" in printed.out and "0 of 0 targets met" in printed.out
    assert "1 of 1, on 1 thread: curve, 64 x 64" in printed.err
    assert {file.name for file in tmp_path.iterdir()} == {"kernels.json", "kernels-curve.svg"}
    assert json.loads((tmp_path / "kernels.json").read_text())["complete"] is True


def test_a_layer_is_explained_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("kernels", "--explain", "--layer", "2,8,8,3,1,1,1,4", "--images", "2", "--threads", "1")
    assert _run(*words) == 0
    printed = capsys.readouterr().out
    assert "backend: " in printed and "processor: " in printed and "δx'" in printed
    assert _run(*words, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["product"] for one in told["products"]] == ["Wx", "W'x", "δx'"]
    assert set(told["backend"]) == {"name", "reason", "processor", "vector", "cache"}


@pytest.mark.parametrize("name", ["kernels", "machine"])
def test_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(name, "--help") == 0
    assert f"cotswold bench {name}" in capsys.readouterr().out
