"""Sources of other packages, found by an entry point."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.api.conftest import Desk
from tests.support.training.small_recipes import draw_labelled, greedy
from tests.warm import PYTHON

import cotswold
from cotswold.errors import SourceError

MODULE = """
from cotswold.data import open_source

def open_stripes(text, include, exclude, labels):
    scheme, _, folder = text.partition(":")
    assert scheme == "stripes"
    return open_source(folder, include=include, exclude=exclude, labels=labels)

def open_nothing(text, include, exclude, labels):
    return 3
"""
POINTS = """
[cotswold.sources]
stripes = stripes_for_cotswold:open_stripes
nothing = stripes_for_cotswold:open_nothing
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an installed package with two schemes."""
    folder = tmp_path / "installed"
    about = folder / "stripes_for_cotswold-1.dist-info"
    about.mkdir(parents=True)
    (folder / "stripes_for_cotswold.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stripes-for-cotswold\nVersion: 1\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(folder)
    return folder


def test_a_source_of_another_package_is_named_in_a_recipe(desk: Desk, tmp_path: Path, package: Path) -> None:
    recipe = tmp_path / "stripes.toml"
    recipe.write_text(greedy(Path(f"stripes:{desk.images}")))
    assert "images" not in cotswold.info(recipe, time=False).totals, "the source is said to be missing"
    run = cotswold.train_recipe(recipe, tmp_path / "run", stores=tmp_path / "stores")
    assert run.status == "finished"
    found = cotswold.features(run, f"stripes:{desk.images}", labels="folders")
    assert len(found) == 60 and set(found.labels) == {0, 1}


def test_what_is_no_source_and_what_nobody_knows_is_refused(tmp_path: Path, package: Path) -> None:
    with pytest.raises(SourceError, match="must return a Source, got a int"):
        cotswold.data.open_source("nothing:3")
    with pytest.raises(SourceError, match="strypes:3 does not exist"):
        cotswold.data.open_source("strypes:3")


@pytest.mark.slow
def test_a_script_without_a_main_guard_prepares_with_several_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pathlib\n"
        "import cotswold\n"
        "with pathlib.Path('ran').open('a') as ran: ran.write('once ')\n"
        "cotswold.prepare(sys.argv[1], 'store', size=12, jobs=2)\n"
    )
    many = tmp_path / "many"
    draw_labelled(many, 100)  # enough for two processes
    done = subprocess.run([*PYTHON, script, many], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "once "
