"""Number of threads by priority: --threads, the recipe, the cores granted to this process."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import Desk
from tests.support.cli.command import cotswold

from cotswold.api import threads
from cotswold.api.threads import use_threads
from cotswold.cli.main import build
from cotswold.recipe import load
from cotswold.run import read_events

POSITIONAL = {"report": 1, "info": 1, "features": 3, "predict": 2, "evaluate": 1}
COMPUTING = (
    ["train"],
    ["report"],
    ["info"],
    ["features"],
    ["predict"],
    ["evaluate"],
    ["bench", "kernels"],
)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment after the test."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")


@pytest.mark.parametrize("words", COMPUTING, ids=" ".join)
def test_every_command_that_computes_takes_threads(words: list[str]) -> None:
    command, *_ = build(words[0]).parse_args(
        [*words, "--threads", "2", *["x"] * POSITIONAL.get(words[0], 0)],
        exit_on_error=False,
        print_error=False,
    )
    assert "threads" in inspect.signature(command).parameters


@pytest.mark.parametrize(
    ("wanted", "own", "expected"), [(3, 2, 3), (3, None, 3), (None, 2, 2), (None, None, 5)]
)
def test_the_command_stands_before_the_recipe_and_both_before_what_is_granted(
    wanted: int | None, own: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "granted_cores", lambda: 5)
    recipe = load("demo", [] if own is None else [f"training.threads={own}"])
    assert use_threads(wanted, recipe) == torch.get_num_threads() == expected
    assert os.environ["OMP_NUM_THREADS"] == os.environ["OPENBLAS_NUM_THREADS"] == str(expected)


@pytest.mark.parametrize("wanted", [0, -1, 4097])
@pytest.mark.parametrize("words", [["train", "demo"], ["info", "demo"]], ids=" ".join)
def test_a_number_that_is_none_of_threads_is_refused(words: list[str], wanted: int, tmp_path: Path) -> None:
    said = cotswold(*words, "--threads", wanted)
    assert said.status == 2
    assert said.error == f"threads={wanted} is not in 1..4096"


def test_training_computes_on_the_threads_that_are_named(desk: Desk, tmp_path: Path) -> None:
    words = ("--run", tmp_path / "run", "--stores", desk.stores, "--set", "training.epochs=0.2")
    assert cotswold("train", desk.stacks_recipe, *words, "--threads", 2).status == 0
    (start,) = (event for event in read_events(tmp_path / "run" / "events.jsonl") if event["kind"] == "start")
    assert start["threads"] == 2
    assert "threads = 2" in (tmp_path / "run" / "recipe.toml").read_text()


def test_a_run_that_names_no_threads_computes_on_those_that_are_granted(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "granted_cores", lambda: 3)
    words = ("--run", tmp_path / "run", "--stores", desk.stores, "--set", "training.epochs=0.2")
    assert cotswold("train", desk.stacks_recipe, *words, "--set", "training.threads=").status == 0
    (start,) = (event for event in read_events(tmp_path / "run" / "events.jsonl") if event["kind"] == "start")
    assert start["threads"] == 3


def test_what_a_command_sets_in_its_environment_ends_with_it(desk: Desk) -> None:
    before = dict(os.environ)
    assert cotswold("info", desk.stacks_recipe, "--no-time", "--threads", 2).status == 0
    assert dict(os.environ) == before
