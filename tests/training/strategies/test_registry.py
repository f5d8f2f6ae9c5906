"""A strategy from another package: its section joins recipes, its entry trains them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.training.small_recipes import greedy, supervised

import cotswold
from cotswold import recipe as recipes
from cotswold.errors import RecipeError, UnknownStrategyError
from cotswold.run import read_events
from cotswold.training.strategies.registry import entry

PACKAGE = '''
from typing import Literal

from cotswold.recipe.schema.training import GreedyTraining

class BackwardsTraining(GreedyTraining):
    """Greedy, but it tells when it is done."""

    strategy: Literal["backwards"] = "backwards"
    """`backwards`: as `greedy`."""
    echo: int = 3
    """How often it tells."""
'''
STRATEGY = """
from cotswold.training.strategies.build_stacks import stack_entry
from cotswold.training.strategies.greedy import Greedy
from cotswold.training.strategies.registry import StrategyEntry

class Backwards(Greedy):
    def train_step(self, batches):
        metrics = super().train_step(batches)
        return type(metrics)(metrics.loss, metrics.samples, {**metrics.details, "echo": self.training.echo})

ENTRY = StrategyEntry(stack_entry(Backwards).in_memory)
"""
FORKS = """
import os
import sys
import torch
script, folder, *firsts = sys.argv[1:]
for number, first in enumerate(firsts):
    pid = os.fork()
    if pid == 0:
        sys.argv = ["", os.path.join(folder, "backwards.toml"), os.path.join(folder, str(number))]
        exec(compile(first + script, f"the script, first {first!r}", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, first
"""
SCRIPT = """
import sys
from pathlib import Path
from cotswold.errors import RecipeError
from cotswold.run import read_events
from cotswold.training import open_job
from cotswold.run import Stop
recipe, folder = sys.argv[1:]
stores = Path(folder).parent / "stores"
job = open_job(recipe, folder + "/run", stores=stores)
assert job.train(lambda event: None, Stop())
steps = [event for event in read_events(job.run.events) if event["kind"] == "step"]
seen = [{event[name] for event in steps} for name in ("echo", "phase")]
print(type(job.recipe.training).__name__, *seen)
for old, new in (("echo = 5", "ehco = 5"), ('"backwards"', '"backward"'), ("echo = 5", 'offload = "disk"')):
    Path(recipe + ".bad.toml").write_text(Path(recipe).read_text().replace(old, new))
    try:
        open_job(recipe + ".bad.toml", folder + "/bad", stores=stores).train(lambda e: None, Stop())
    except RecipeError as error:
        print(error)
"""


def with_packages(folder: Path) -> dict[str, str]:
    """Return an environment that also finds the packages of a folder, and the kernels of all tests."""
    return {**os.environ, "PYTHONPATH": ":".join([str(folder), *filter(None, sys.path)])}


@pytest.mark.soak
def test_a_strategy_of_another_package_trains_a_recipe_whatever_is_imported_first(
    images: Path, tmp_path: Path
) -> None:
    package, info = tmp_path / "elsewhere", tmp_path / "elsewhere-1.0.dist-info"
    for folder in (package, info):
        folder.mkdir()
    (package / "__init__.py").touch()
    (package / "section.py").write_text(PACKAGE)
    (package / "strategy.py").write_text(STRATEGY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cotswold.training]\nbackwards = elsewhere.section:BackwardsTraining\n"
        "[cotswold.strategies]\nbackwards = elsewhere.strategy:ENTRY\n"
    )
    recipe = tmp_path / "backwards.toml"
    recipe.write_text(greedy(images, strategy="backwards", more="echo = 5"))
    firsts = ("", "import elsewhere.section", "import elsewhere.strategy")
    told = subprocess.run(
        [sys.executable, "-c", FORKS, SCRIPT, str(tmp_path), *firsts],
        env=with_packages(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert len(lines) == 4 * len(firsts)
    for trained, *refused in (lines[:4], lines[4:8], lines[8:]):
        assert trained == "BackwardsTraining {5.0} {0, 1}"
        assert "did you mean echo?" in refused[0]
        assert "did you mean backwards?" in refused[1]
        assert "strategy backwards cannot be trained with offloaded parameters" in refused[2]


BROKEN = """
import sys
from cotswold import recipe
from cotswold.errors import RecipeError
for strategy in ("greedy", "sideways", "odd", "greedily"):
    try:
        print(recipe.load(sys.argv[1], [f"training.strategy={strategy}"]).training.strategy)
    except RecipeError as error:
        print(error)
"""


def test_a_package_that_is_broken_takes_away_its_own_strategy_only(images: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nowhere_at_all")
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cotswold.training]\nsideways = broken:Sideways\nodd = math:pi\n"
        "greedy = cotswold.recipe.schema.training:GreedyTraining\n"
    )
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(greedy(images))
    told = subprocess.run(
        [sys.executable, "-c", BROKEN, str(recipe)],
        env=with_packages(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    trained, sideways, odd, misspelt = told.stdout.splitlines()
    assert trained == "greedy"
    assert "'sideways' of cotswold.training, broken:Sideways, cannot be loaded" in sideways
    assert "No module named 'nowhere_at_all'" in sideways and "provides 3.14" in odd
    assert "did you mean greedy?" in misspelt


FALLING = """
from cotswold.training.strategies.build_stacks import stack_entry
from cotswold.training.strategies.greedy import Greedy

class Falling(Greedy):
    def train_step(self, batches):
        return [][self.step]

ENTRY = stack_entry(Falling)
"""
SECTION = '''
from typing import Literal
from cotswold.recipe.schema.training import GreedyTraining, SupervisedTraining

class FallingTraining(GreedyTraining):
    """Greedy, but it falls."""

    strategy: Literal["falling"] = "falling"
    """`falling`: it falls."""

class SinkingTraining(SupervisedTraining):
    """Supervised, but it sinks."""

    strategy: Literal["sinking"] = "sinking"
    """`sinking`: it sinks."""
    decay: float = 0.9
    """How fast."""
    batch: int = 3
    """How many sink."""
'''


@pytest.fixture(scope="module")
def falling(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process with an installed package, whose strategy, falling, fails."""
    installed = tmp_path_factory.mktemp("installed")
    package, info = installed / "tumble", installed / "tumble-1.0.dist-info"
    for folder in (package, info):
        folder.mkdir()
    (package / "__init__.py").touch()
    (package / "strategy.py").write_text(FALLING)
    (package / "section.py").write_text(SECTION)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tumble\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cotswold.training]\nfalling = tumble.section:FallingTraining\n"
        "sinking = tumble.section:SinkingTraining\n"
        "[cotswold.strategies]\nfalling = tumble.strategy:ENTRY\n"
    )
    return with_packages(installed)


@pytest.fixture(scope="module")
def fallen(
    images: Path, falling: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Return the directory of a run whose strategy has failed, and the output of its command."""
    folder = tmp_path_factory.mktemp("fallen")
    (folder / "falling.toml").write_text(greedy(images, strategy="falling"))
    command = [sys.executable, "-m", "cotswold", "train", "falling.toml", "--run", "run"]
    done = subprocess.run(command, cwd=folder, env=falling, capture_output=True, text=True, check=False)
    return folder / "run", done


def test_a_strategy_that_raises_is_told_with_its_line_in_the_terminal_and_in_the_last_event(
    fallen: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run, done = fallen
    why = "IndexError: list index out of range, in tumble/strategy.py, line 7, train_step"
    assert done.returncode == 1 and why in " ".join(done.stderr.split())
    last = list(read_events(run / "events.jsonl"))[-1]
    assert (last["kind"], last["status"], last["reason"]) == ("end", "failed", why)


ABOUT = """
import sys
from cotswold import recipe
from cotswold.errors import RecipeError
print(recipe.explain("sinking"))
text = open(sys.argv[1]).read()
print("--")
for wanted in ("sinking", "supervised"):
    for labels in ("none", "folders"):
        made = text.replace('"supervised"', f'"{wanted}"').replace('"folders"', f'"{labels}"')
        try:
            found = recipe.parse(made + "decay = 0.5\\nbatch = 4\\n", "a test", tell=print).training
            print(found.decay, found.batch, found.batch_size)
        except RecipeError as error:
            print(error)
"""


def test_a_section_of_another_package_is_explained_and_has_fields_of_its_own(
    images: Path, tmp_path: Path, falling: dict[str, str]
) -> None:
    recipe = tmp_path / "sinking.toml"
    recipe.write_text(supervised(images))
    command = [sys.executable, "-c", ABOUT, str(recipe)]
    done = subprocess.run(command, env=falling, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    explained, found = done.stdout.split("--\n")
    assert "How many sink." in explained and 'strategy = "sinking"' in explained
    unlabelled, read, *_, last = found.splitlines()
    assert "strategy sinking needs labels; set data.labels to folders or file" in unlabelled
    assert read == "0.5 4 8"
    assert "belongs to strategy sinking; did you mean" in last


def test_a_run_whose_package_is_not_installed_is_verified_and_says_so(
    fallen: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    run, _ = fallen
    assert cotswold.verify(run).is_valid
    with pytest.raises(UnknownStrategyError, match=r"'falling'; .* of a package that is not installed"):
        recipes.load(run / "recipe.toml")
    with pytest.raises(RecipeError, match=r"run is a folder of a run; its recipe is .*: --run"):
        recipes.load(run)


def test_a_strategy_of_two_packages_is_refused_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[cotswold.strategies]\nboth = {name}.strategy:ENTRY\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match=r"'both': first\.strategy:ENTRY, second\.strategy:ENTRY; keep"):
        entry("both")


def test_a_strategy_that_nobody_has_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        RecipeError,
        match="unknown strategy 'downhill'; use one of batch, downpour, greedy, joint, supervised",
    ):
        entry("downhill")
