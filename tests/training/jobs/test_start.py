"""`network.backbone`: layers on the stacks of a run, or on random stacks of a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.support.training.small_recipes import draw_labelled, greedy, supervised

import cotswold
from cotswold.errors import RunError
from cotswold.recipe import load, parse
from cotswold.training.jobs.restore import backbone_of, check_preparation, supervised_network
from cotswold.training.models import build_stacks


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    draw_labelled(tmp_path / "images", 12)
    path = tmp_path / "stacks.toml"
    path.write_text(greedy(tmp_path / "images").replace("validation", "whiten = false, validation"))
    return path


def on(stacks: Path, *words: str) -> str:
    return supervised(
        stacks.parent / "images", layers="", network="\n".join([f'backbone = "{stacks}"', *words])
    )


def test_a_recipe_of_stacks_gives_random_filters_by_the_seed_of_what_stands_on_it(stacks: Path) -> None:
    first, other = (
        supervised_network(parse(on(stacks), overrides=[f"training.seed={seed}"]), 2).below for seed in (1, 2)
    )
    expected = build_stacks(load(stacks, ["training.seed=1"]))
    assert first is not None and other is not None
    for own, wanted, another in zip(first.stacks, expected.stacks, other.stacks, strict=True):
        assert torch.equal(own.filters, wanted.filters)
        assert not torch.equal(own.filters, another.filters)


@pytest.mark.parametrize("finetune", [False, True])
def test_random_filters_are_kept_or_tuned_and_come_back_from_a_checkpoint(
    stacks: Path, finetune: bool
) -> None:
    recipe = parse(on(stacks, f"finetune = {str(finetune).lower()}"))
    run = cotswold.train_recipe(
        recipe, stacks.parent / "run", stores=stacks.parent / "stores", progress=False
    )
    assert json.loads((run.path / "events.jsonl").read_text().splitlines()[-1])["status"] == "finished"
    before, after = supervised_network(recipe, 2).below, run.network.below
    assert before is not None and isinstance(after, torch.nn.Module)
    drawn, learnt = before.state_dict(), after.state_dict()
    same = [torch.equal(drawn[name], learnt[name]) for name in drawn if name.endswith("filters")]
    assert len(same) == 2 and not any(same) if finetune else all(same)


def test_a_run_goes_before_a_recipe(stacks: Path) -> None:
    run = cotswold.train_recipe(
        stacks, stacks.parent / "filters", stores=stacks.parent / "stores", progress=False
    )
    backbone = backbone_of(parse(on(run.path)))
    assert backbone is not None and backbone.run is not None and backbone.name == str(run.path)
    learnt = backbone.stacks(parse(on(run.path))).stacks[0].filters
    assert not torch.equal(learnt, build_stacks(load(stacks)).stacks[0].filters)


def test_what_cannot_be_stood_on_is_named(stacks: Path) -> None:
    with pytest.raises(RunError, match="the recipe cifar10, a recipe of layers; name a recipe of stacks"):
        backbone_of(parse(on(Path("cifar10"))))
    with pytest.raises(RunError, match="the stacks of the recipe small read maps of 3 x 16 x 16"):
        backbone_of(parse(on(stacks), overrides=["data.size=12"]))
    wanted = parse(on(stacks), overrides=["data.per_image_standardise=false"])
    backbone = backbone_of(wanted)
    assert backbone is not None
    with pytest.raises(
        RunError, match=r"small need images .*data.per_image_standardise \(True there, False here\)"
    ):
        check_preparation(wanted, backbone)


def test_the_two_recipes_of_distbelief_fit_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTSWOLD_DATA", "/nowhere")
    recipe = load("distbelief-images")
    backbone = backbone_of(recipe)
    assert backbone is not None and backbone.recipe.name == "distbelief-filters" and recipe.network.finetune
    check_preparation(recipe, backbone)
    own, below = recipe.data, backbone.recipe.data
    for name in ("exclude", "validation", "test", "labels"):
        assert getattr(own, name) == getattr(below, name)
