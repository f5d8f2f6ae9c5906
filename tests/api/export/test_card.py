"""The model card has the form that the hub reads, and the figures of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.demo_runs import DemoRuns
from torch import nn

import cotswold
from cotswold import training
from cotswold.errors import UserError
from cotswold.recipe.schema import SupervisedTraining


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoRuns:
    found = DemoRuns(tmp_path_factory.mktemp("card"))
    found.write()
    recipe = found.layers_recipe.read_text() + "\n[price]\nrent_dollars_per_hour = 3600.0\n"
    found.layers_recipe.write_text(recipe)
    job = training.open_job(found.layers_recipe, found.path / "layers", stores=found.stores)
    job.train(watch=lambda event: None, stop=cotswold.Stop())
    return found


def front_matter(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    before, matter, _ = text.split("---\n", 2)
    assert before == ""
    found: dict[str, Any] = yaml.safe_load(matter)
    return found


def test_the_front_matter_has_the_best_validation(demo: DemoRuns) -> None:
    run = cotswold.Run(demo.path / "layers")
    matter = front_matter(run.card(license="apache-2.0"))
    assert matter["license"] == "apache-2.0"
    assert matter["library_name"] == "cotswold"
    assert matter["pipeline_tag"] == "image-classification"
    assert matter["tags"] == ["cotswold", "pytorch", "supervised"]
    assert matter["metrics"] == ["accuracy"]
    (model,) = matter["model-index"]
    assert model["name"] == run.recipe.name
    (result,) = model["results"]
    assert result["dataset"] == {"type": "images", "name": "images", "split": "validation"}
    best = min(
        (each for each in run.events if each["kind"] == "validation"),
        key=lambda each: float(str(each["loss"])),
    )
    values = {each["type"]: each["value"] for each in result["metrics"]}
    assert values == {"loss": best["loss"], "accuracy": best["accuracy"]}


def test_the_page_has_data_cost_and_recipe_but_no_folders(demo: DemoRuns) -> None:
    run = cotswold.Run(demo.path / "layers")
    text = run.card()
    assert "license" not in front_matter(text)
    assert "- Classes (2): `level`, `upright`" in text
    assert "- Training samples: 48" in text
    end = run.events[-1]
    assert f"- Rent of the machine: {end['dollars']:.2f} US dollars" in text
    assert "- Time of training: " in text
    assert 'type = "convolution"' in text
    assert str(demo.path) not in text
    assert "run.export('model.pt2')" in text


def test_figures_of_an_evaluation_come_first(demo: DemoRuns) -> None:
    run = cotswold.Run(demo.path / "layers")
    found = cotswold.evaluate(run)
    assert isinstance(found, cotswold.analysis.Classification)
    rows = [line for line in run.card().splitlines() if line.startswith("| validation")]
    run.directory.classification.unlink()
    assert rows[0] == f"| validation | accuracy | {found.accuracy:.6g} |"
    assert [row.split(" | ")[1] for row in rows] == ["accuracy", "loss"]


def test_a_card_is_written_once(demo: DemoRuns, tmp_path: Path) -> None:
    run = cotswold.Run(demo.path / "layers")
    text = run.card(tmp_path / "new" / "README.md")
    assert (tmp_path / "new" / "README.md").read_text() == text
    with pytest.raises(UserError, match=r"README\.md exists"):
        run.card(tmp_path / "new" / "README.md")
    with pytest.raises(UserError, match="license must be a name"):
        run.card(license="")


def test_a_run_without_end_or_validation_has_a_card(demo: DemoRuns, tmp_path: Path) -> None:
    training.open_job(demo.layers_recipe, tmp_path / "new", stores=demo.stores)
    text = cotswold.Run(tmp_path / "new").card()
    assert "model-index" not in front_matter(text)
    assert "The run has no validation." in text
    assert "The run has not ended" in text
    assert "The run is unfinished." in text


def test_a_module_of_a_program_has_a_card(tmp_path: Path) -> None:
    job = training.open_module_job(
        nn.Linear(3, 2),
        (torch.randn(20, 3), torch.arange(20) % 2),
        loss="cross_entropy",
        directory=tmp_path / "run",
        settings=SupervisedTraining(epochs=1, batch_size=10),
        validation=0.2,
    )
    job.train(watch=lambda event: None, stop=cotswold.Stop())
    text = cotswold.Run(tmp_path / "run").card()
    assert front_matter(text)["pipeline_tag"] == "other"
    assert "A Linear of 8 weights" in text
    assert "module=module, example=inputs" in text
