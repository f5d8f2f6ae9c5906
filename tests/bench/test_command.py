import json
from pathlib import Path

import pytest

from cotswold.cli.main import main


def _run(*words: str) -> object:
    with pytest.raises(SystemExit) as left:
        main(["bench", *words])
    return left.value.code


def test_a_result_is_printed_and_left_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("start", "--rounds", "1", "--json", "--out", str(tmp_path / "new"))
    assert _run(*words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "new" / "start.json").read_text())
    assert printed["bench"] == "start" and printed["machine"]["cores"] >= 1


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("evaluate", "demo", "--pictures", "1", "--rounds", "1", "--set", "training.batch=8") == 0
    printed = capsys.readouterr().out
    assert "of forward alone" in printed and "second pass" in printed


@pytest.mark.parametrize("words", [("kernels", "--threads", "one"), ("start", "--rounds", "0")])
def test_what_measures_nothing_is_refused_in_a_sentence(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*words) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["kernels", "training", "evaluate", "prepare", "start"])
def test_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(name, "--help") == 0
    assert f"cotswold bench {name}" in capsys.readouterr().out
