"""The scripts of benchmarks/ as commands: results, tables, user errors, help."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import chaos
from evaluate import evaluate
from import_time import import_time
from lib.command import main
from lib.scaling.exchange import EXCHANGES
from offload import offload
from prepare import prepare
from scaling import scaling
from training import training

FOLDER = Path(main.__code__.co_filename).parents[1]
SCRIPTS = (
    "adam_accuracy",
    "adam_cluster",
    "adam_figures",
    "adam_mnist",
    "augment",
    "chaos",
    "data_servers",
    "ddp",
    "distbelief_images",
    "downpour",
    "downpour_vs_sandblaster",
    "evaluate",
    "fault_training",
    "hogwild",
    "import_time",
    "in_flight",
    "largest_async",
    "offload",
    "papers",
    "predictions",
    "prepare",
    "processes",
    "scaling",
    "staleness",
    "training",
)


def status(script: Callable[..., None], *words: str) -> object:
    with pytest.raises(SystemExit) as left:
        main(script, words)
    return left.value.code


def test_a_result_is_printed_and_left_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--rounds", "1", "--json", "--out", str(tmp_path / "new"))
    assert status(import_time, *words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("schema") == "cotswold.bench.import-time/1"
    assert printed == json.loads((tmp_path / "new" / "import-time.json").read_text())
    assert printed["bench"] == "import-time" and printed["machine"]["cores"] >= 1


def test_tables_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(evaluate, "demo", "--images", "1", "--rounds", "1", "--set", "training.batch_size=8") == 0
    printed = capsys.readouterr().out
    assert "of the forward pass alone" in printed and "second pass" in printed


def test_a_part_is_measured_and_left_as_table_image_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(scaling, "--quick", "--only", "exchange", "--out", str(tmp_path)) == 0
    printed = capsys.readouterr()
    assert "fetch of pixels" in printed.out and "of 4 bars met" in printed.out
    assert "1 of 1: exchange" in printed.err
    assert {file.name for file in tmp_path.iterdir()} == {"scaling.json", "scaling-messages.svg"}
    found = json.loads((tmp_path / "scaling.json").read_text())
    bars = {row["operation"]: [one["bar"] for one in row["verdicts"]] for row in found["rows"]}
    assert bars == {what: [0.8, None] for what in EXCHANGES}


@pytest.mark.parametrize(
    "words", [("--rounds", "0"), ("--rounds",), ("--rounds", "1", "--of", "2")], ids=" ".join
)
def test_what_measures_nothing_is_refused_in_a_sentence(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(import_time, *words) == 2
    assert capsys.readouterr().err.count("\n") == 1


MISUSED = [
    (evaluate, ("demo", "--images", "0"), "--images must be at least 1, got 0"),
    (prepare, (".", "--size", "0"), "--size must be at least 1, got 0"),
    *(
        (script, ("cifar10",), "trains no stacks; use a recipe with")
        for script in (training, evaluate, offload)
    ),
]


@pytest.mark.parametrize(("script", "words", "sentence"), MISUSED)
def test_the_sentence_names_what_to_write_instead(
    script: Callable[..., None],
    words: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image.png").write_bytes(b"")
    assert status(script, *words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = getattr(importlib.import_module(name), name)
    assert status(script, "--help") == 0
    assert f"python benchmarks/{name}.py" in capsys.readouterr().out


def test_the_tests_of_seeded_runs_are_found_from_anywhere(tmp_path: Path) -> None:
    words = [sys.executable, str(FOLDER / "chaos.py"), "--faults"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "any-term" in done.stdout


def test_a_life_is_judged_by_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--world", "quiet", "--seeds", "1", "--processes", "1", "--out", str(tmp_path))
    assert status(chaos, *words) == 0
    assert "answers judged" in capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == {"chaos.json", "chaos-quiet-0.txt"}
    assert status(chaos, "--seeds", "0") == 2
    assert "--seeds must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.soak
def test_a_script_runs_from_anywhere(tmp_path: Path) -> None:
    words = [sys.executable, str(FOLDER / "scaling.py"), "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "scaling.py" in done.stdout


@pytest.mark.parametrize("name", ["faces", "call_path", "simulate"])
def test_help_measures_nothing(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(FOLDER / f"{name}.py"), "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"{name}.py" in done.stdout and not [*tmp_path.iterdir()]
