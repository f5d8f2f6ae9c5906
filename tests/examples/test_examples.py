"""The programs of `examples` run, and continue to the bit after a kill of all their processes."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import pytest
from examples.tools import gallery
from tests.support.examples.programs import EXAMPLES, finish, kill_after, kill_rank
from tests.support.training.runs import bits, events, losses

import cotswold
from cotswold.run import RunDirectory

RUNS = {
    "early_stopping": ".",
    "export": "run",
    "finetune": "tuned",
    "own_callback": ".",
    "own_metric": ".",
    "own_scheduler": ".",
    "table": "run",
    "unet": ".",
    "wandb_offline": ".",
}
"""The run of each example that is killed, below the example's directory."""
SLOWEST = {"export": "largest difference: 0.0", "unet": "finished "}
"""Examples that only the long tests kill, and what they print at their end."""
NAMES = sorted({*RUNS, "grid_search"})
"""Examples that take the directory of a run."""
ALL = sorted({*NAMES, *gallery.NAMES})
PUBLIC = ("callbacks", "nn", "optim", "sklearn")
"""Packages from which examples import names."""
LINES_MOST = {"three_machines": 90}
"""Programs longer than 75 lines."""
ATTEMPTS = 5
"""How often a kill may come too late."""
KILLS = 60
"""Most kills of one run; each comes at most a second after a checkpoint or the start."""


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_program_parses_its_arguments_and_explains_them(program: Path) -> None:
    text = program.read_text(encoding="utf-8")
    assert "ArgumentParser(description=__doc__" in text and "main(Path(sys" not in text


def test_every_example_is_tested_and_listed() -> None:
    assert sorted(each.stem for each in EXAMPLES.glob("*.py")) == ALL
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in ALL if f"({name}.py)" not in listed] == []


@pytest.mark.parametrize("name", ALL)
def test_the_docstring_says_how_the_program_starts(name: str) -> None:
    torchrun = "torchrun --standalone --nproc-per-node 2"
    start = f"(python|{torchrun}) examples/{name}.py {'' if name in NAMES else '--out '}runs/[a-z]+"
    assert re.fullmatch(start, gallery.said(name))


@pytest.mark.parametrize("name", ALL)
def test_programs_stay_short_and_use_public_names(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) <= LINES_MOST.get(name, 75)
    for each in ast.walk(ast.parse(text)):
        if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("cotswold"):
            assert (each.module or "").removeprefix("cotswold.") in PUBLIC


def killed(name: str, folder: Path, into: str, count: int) -> Path:
    """Return the directory of an example that was killed when ``into`` had that many folders."""
    for attempt in range(ATTEMPTS):
        directory = folder / f"killed-{attempt}"
        if kill_after(name, directory, directory / into, count):
            return directory
    pytest.fail(f"{name} ended {ATTEMPTS} times before it could be killed")


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


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.soak) if each in SLOWEST else each for each in RUNS]
)
def test_a_killed_example_that_starts_again_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    printed = finish(name, tmp_path / "whole")
    stopped = killed(name, tmp_path, f"{RUNS[name]}/checkpoints", 1)
    run = RunDirectory.open(stopped / RUNS[name])
    assert events(run, "end") == []
    assert finish(name, stopped) == printed
    (resumed,) = events(run, "resumed")
    assert int(str(resumed["step"])) > 0
    check_same(name, tmp_path / "whole", stopped)


@pytest.mark.parametrize("name", SLOWEST)
def test_an_example_runs_to_its_end(name: str, tmp_path: Path) -> None:
    assert SLOWEST[name] in finish(name, tmp_path / "run")
    assert cotswold.Run(tmp_path / "run" / RUNS[name]).status == "finished"


@pytest.mark.soak
@pytest.mark.parametrize("name", RUNS)
def test_an_example_that_is_killed_again_and_again_ends_with_the_same_bits(name: str, tmp_path: Path) -> None:
    printed, draw = finish(name, tmp_path / "whole"), random.Random(name)
    stopped, kills = tmp_path / "killed", 0
    folder = stopped / RUNS[name] / "checkpoints"
    while kill_after(name, stopped, folder, draw.randint(0, 3), draw.random()):
        kills += 1
        assert kills < KILLS, "the run makes no progress"
    assert finish(name, stopped) == printed
    check_same(name, tmp_path / "whole", stopped)


@pytest.mark.soak
@pytest.mark.usefixtures("cold_interpreters")
@pytest.mark.parametrize(("name", "rank"), [("finetune", 0), ("finetune", 1), ("unet", 3)])
def test_an_example_names_a_killed_rank_and_then_ends_with_the_same_bits(
    name: str, rank: int, tmp_path: Path
) -> None:
    printed, stopped = finish(name, tmp_path / "whole"), tmp_path / "stopped"
    error = kill_rank(name, stopped, stopped / RUNS[name] / "checkpoints", rank)
    assert f"MachineError: rank {rank} " in error.splitlines()[-1]
    assert finish(name, stopped) == printed
    check_same(name, tmp_path / "whole", stopped)


def test_a_search_that_is_killed_finds_the_same_when_it_starts_again(tmp_path: Path) -> None:
    printed = finish("grid_search", tmp_path / "whole")
    runs = len([*(tmp_path / "whole").iterdir()])
    stopped = killed("grid_search", tmp_path, "", 2)
    assert len([*stopped.iterdir()]) < runs
    assert finish("grid_search", stopped) == printed
