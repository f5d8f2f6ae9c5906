"""The packages of CONTRIBUTING.md, installed and used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
RECIPE = """
name = "rings"
data = { source = "rings:300", size = 16, colour = "grey", whiten = false, labels = "file", validation = 0.2 }
network = { layers = [{ type = "linear", features = 8 }, { type = "tanh" }] }
training = { strategy = "sign", learning_rate = 0.002, shrink = 0.9, epochs = 4, batch_size = 20 }
"""
SCRIPT = """
import cotswold
run = cotswold.train_recipe("rings.toml", "run", stores="stores", overrides={"training.epochs": 8})
assert run.status == "finished"
run = cotswold.train_recipe(directory=run, resume=True, overrides={"training.epochs": 16})
found = cotswold.predict(run, "rings:40")
print(sum(name == ("thin", "thick")[i % 2] for i, name in enumerate(found.best)) / len(found))
print(run.report())
names = ("size", "colour", "whiten")
waves = {"data.type": "vectors", "data.source": "waves:200", **{f"data.{name}": None for name in names}}
waves = cotswold.train_recipe("rings.toml", "waves", stores="stores", overrides=waves)
print(waves.status, waves.recipe.data.features)
"""
MINIMISE = """
from my_package.fingers import fingers
from my_package.minimise import minimised
from cotswold.geometry.reduction_plans import reduction

x, found, by_name = minimised()
print(*(round(each, 4) for each in x.tolist()))
print(sum(by_name.values()), found.number)
sums = [[1 << rank] for rank in range(6)]
for step in sorted(reduction(1, fingers, range(6)).steps):
    sums[step.receiver] += sums[step.sender]
print(sum(sums[0]))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Make a folder in which the page's package is installed."""
    text = PAGE.read_text()
    about = tmp_path / "my_package-1.dist-info"
    for folder in (about, tmp_path / "my_package"):
        folder.mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    for name, code in re.findall(r"```python\n# (my_package/\w+\.py)\n(.*?)```", text, flags=re.DOTALL):
        (tmp_path / name).write_text(code)
    points = ""
    for block in re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL):
        for group, names in tomllib.loads(block)["project"]["entry-points"].items():
            points += f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
    (about / "entry_points.txt").write_text(points)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1\n")
    return tmp_path


def said(script: str, package: Path) -> str:
    """Return the output of a script that imports the package."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=package,
        env={**os.environ, "PYTHONPATH": ":".join([str(package), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_strategy_and_the_source_of_the_page_train_a_network(
    package: Path,
) -> None:
    (package / "rings.toml").write_text(RECIPE)
    accuracy, report, *waves = said(SCRIPT, package).split()
    assert float(accuracy) > 0.9
    assert (package / report).is_file()
    assert waves == ["finished", "8"]


@pytest.mark.slow
def test_the_search_the_method_the_work_and_the_plan_of_the_page_do_what_they_say(package: Path) -> None:
    point, counted, total = said(MINIMISE, package).splitlines()
    assert [float(each) for each in point.split()] == pytest.approx([1, 2, 3, 4, 5], abs=1e-3)
    portions, iterations = map(int, counted.split())
    assert portions == 20 and 2 < iterations < 60  # each portion once
    assert int(total) == 0b111111  # each rank once
