"""The programs of `examples` run, and continue to the bit after a kill of all their processes."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest
from tests.support.examples.programs import EXAMPLES, finish, kill_after_checkpoints
from tests.support.training.runs import bits, events, losses

from cotswold.run import RunDirectory

RUNS = {
    "early_stopping": "",
    "export": "run",
    "finetune": "tuned",
    "own_callback": "",
    "own_metric": "",
    "own_scheduler": "",
    "table": "run",
    "unet": "",
    "wandb_offline": "",
}
"""The run of each example that is killed, below the example's directory."""
NAMES = sorted({*RUNS, "grid_search"})
ATTEMPTS = 5
"""How often a kill may come too late."""


def test_every_example_is_tested_and_listed() -> None:
    assert sorted(each.stem for each in EXAMPLES.glob("*.py")) == NAMES
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"({name}.py)" not in listed] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_says_how_the_program_starts(name: str) -> None:
    said = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text(encoding="utf-8")))
    assert said is not None and f"    python examples/{name}.py runs/" in said


def killed(name: str, folder: Path, count: int, delay: float = 0.0) -> Path:
    """Return the directory of an example that was killed in the middle of its training."""
    for attempt in range(ATTEMPTS):
        directory = folder / f"killed-{attempt}"
        if kill_after_checkpoints(name, directory, directory / RUNS[name], count, delay):
            return directory
    pytest.fail(f"{name} ended {ATTEMPTS} times before checkpoint {count}")


def check_same(name: str, whole: Path, stopped: Path) -> None:
    """Fail if the last checkpoints or the validations of two runs differ by a bit."""
    one, other = (RunDirectory.open(each / RUNS[name]) for each in (whole, stopped))
    (expected, state), (found, found_state) = bits(one), bits(other)
    for each in (state, found_state):
        each["account"].pop("wire_bytes")  # ranks agree on each save, and clocks decide on saves
        each.pop("recipe")  # with the path of a table, which is below the directory
    assert found.keys() == expected.keys()
    assert [each for each in expected if found[each] != expected[each]] == []
    assert found_state == state
    assert losses(other)[-1:] == losses(one)[-1:]


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_example_that_starts_again_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    printed = finish(name, tmp_path / "whole")
    stopped = killed(name, tmp_path, count=1)
    assert finish(name, stopped) == printed
    (resumed,) = events(RunDirectory.open(stopped / RUNS[name]), "resumed")
    assert int(str(resumed["step"])) > 0
    check_same(name, tmp_path / "whole", stopped)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", RUNS)
def test_an_example_that_is_killed_again_and_again_ends_with_the_same_bits(
    name: str, seed: int, tmp_path: Path
) -> None:
    printed, draw = finish(name, tmp_path / "whole"), random.Random(f"{name} {seed}")
    stopped, kills = tmp_path / "killed", 0
    while kill_after_checkpoints(name, stopped, stopped / RUNS[name], draw.randint(0, 4), draw.random()):
        kills += 1
        assert kills < 50, "the run makes no progress"
    assert finish(name, stopped) == printed
    check_same(name, tmp_path / "whole", stopped)


def test_a_search_that_is_killed_finds_the_same_when_it_starts_again(tmp_path: Path) -> None:
    printed = finish("grid_search", tmp_path / "whole")
    assert "0.9625" in printed
