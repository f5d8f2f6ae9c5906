"""Whole runs of every strategy, through the entry point of the command."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support.training.runs import (
    bits,
    events,
    finish,
    last,
    losses,
    recipe_of,
    resumed,
    started,
    stop_after,
)
from tests.support.training.small_recipes import draw, draw_labelled, greedy, supervised
from torch import Tensor

from cotswold.data import Store, Transform
from cotswold.errors import DivergedError, GeometryError, RecipeError, RunError
from cotswold.nn import StackNetwork
from cotswold.run import RunDirectory, Stop
from cotswold.training import load_stacks, trained_layers


@pytest.fixture(scope="module")
def uninterrupted(
    images: Path, stores: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, RunDirectory]:
    """Return a finished run of every strategy."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        strategy: finish(started(recipe_of(strategy, images), folder / strategy, stores))
        for strategy in ("greedy", "joint", "supervised")
    }


@pytest.mark.parametrize("strategy", ["greedy", "joint", "supervised"])
def test_a_run_lowers_its_objective_on_held_out_images(
    uninterrupted: dict[str, RunDirectory], strategy: str
) -> None:
    run = uninterrupted[strategy]
    for stack in {event["phase"] for event in events(run, "validation")}:
        first, *_, final = [e["loss"] for e in events(run, "validation") if e["phase"] == stack]
        assert isinstance(first, float) and isinstance(final, float)
        assert final < 0.9 * first, (stack, first, final)
    assert [event["status"] for event in events(run, "end")] == ["finished"]


@pytest.mark.parametrize(
    ("strategy", "step"),
    [(strategy, step) for strategy in ("greedy", "joint", "supervised") for step in (1, 9)]
    + [("greedy", 14), ("greedy", 15), ("supervised", 18)],
)
def test_a_stopped_run_goes_on_with_the_same_bits(
    uninterrupted: dict[str, RunDirectory],
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    step: int,
) -> None:
    assert not stop_after(started(recipe_of(strategy, images), tmp_path / "run", stores), step, monkeypatch)
    assert last(tmp_path / "run" / "checkpoints").step == step
    run = finish(resumed(tmp_path / "run", stores))
    assert bits(run) == bits(uninterrupted[strategy])
    assert [event["status"] for event in events(run, "end")] == ["interrupted", "finished"]


@pytest.mark.parametrize("strategy", ["greedy", "joint", "supervised"])
def test_a_run_stopped_again_and_again_goes_on_with_the_same_bits(
    uninterrupted: dict[str, RunDirectory],
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    job = started(recipe_of(strategy, images), tmp_path / "run", stores)
    step = 2
    while not stop_after(job, step, monkeypatch):
        job, step = resumed(tmp_path / "run", stores), step + 2
    assert bits(job.run) == bits(uninterrupted[strategy])


def test_a_stop_asked_for_before_the_first_step_takes_none(
    uninterrupted: dict[str, RunDirectory], images: Path, stores: Path, tmp_path: Path
) -> None:
    job = started(greedy(images), tmp_path / "run", stores)
    assert not job.train(watch=lambda event: None, stop=Stop(signal=15))
    assert last(job.run.checkpoints).step == 0
    assert bits(finish(resumed(job.run.path, stores))) == bits(uninterrupted["greedy"])


def test_a_finished_run_is_resumed_without_another_step(
    uninterrupted: dict[str, RunDirectory], stores: Path
) -> None:
    run = uninterrupted["joint"]
    before = bits(run)
    finish(resumed(run.path, stores))
    assert bits(run) == before


def test_a_run_killed_before_its_first_checkpoint_begins_anew(
    uninterrupted: dict[str, RunDirectory], images: Path, stores: Path, tmp_path: Path
) -> None:
    job = started(greedy(images), tmp_path / "run", stores)  # killed here: nothing but the recipe
    assert bits(finish(resumed(job.run.path, stores))) == bits(uninterrupted["greedy"])


def test_layers_on_frozen_stacks_leave_them_as_they_were(
    uninterrupted: dict[str, RunDirectory], images: Path, stores: Path, tmp_path: Path
) -> None:
    before = filters_of(load_stacks(uninterrupted["greedy"])[0])
    run = finish(started(on_stacks(uninterrupted["greedy"], images), tmp_path / "run", stores))
    network = trained_layers(run).network
    assert network.below is not None
    assert all(torch.equal(a, b) for a, b in zip(filters_of(network.below), before, strict=True))
    assert losses(run)[-1] < losses(run)[0]


def test_layers_on_stacks_can_tune_their_filters(
    uninterrupted: dict[str, RunDirectory], images: Path, stores: Path, tmp_path: Path
) -> None:
    before = filters_of(load_stacks(uninterrupted["greedy"])[0])
    text = on_stacks(uninterrupted["greedy"], images, "finetune = true")
    run = finish(started(text, tmp_path / "run", stores))
    network = trained_layers(run).network
    assert network.below is not None
    assert not any(torch.equal(a, b) for a, b in zip(filters_of(network.below), before, strict=True))
    assert losses(run)[-1] < losses(run)[0]


@pytest.mark.parametrize("finetune", ["", "finetune = true"])
def test_a_run_on_stacks_goes_on_with_the_same_bits(
    uninterrupted: dict[str, RunDirectory],
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finetune: str,
) -> None:
    text = on_stacks(uninterrupted["greedy"], images, finetune)
    whole = finish(started(text, tmp_path / "whole", stores))
    assert not stop_after(started(text, tmp_path / "run", stores), 7, monkeypatch)
    assert bits(finish(resumed(tmp_path / "run", stores))) == bits(whole)


def on_stacks(backbone: RunDirectory, images: Path, finetune: str = "") -> str:
    head = '[[network.layers]]\ntype = "linear"\nfeatures = 6\n[[network.layers]]\ntype = "relu"\n'
    text = supervised(images, layers=head, network=f'backbone = "{backbone.path}"\n{finetune}')
    return text.replace("whiten = false", "whiten = true")


def filters_of(network: StackNetwork) -> list[Tensor]:
    return [stack.filters.detach().clone() for stack in network.stacks]


def test_stacks_of_another_size_are_refused_before_a_directory_is_made(
    uninterrupted: dict[str, RunDirectory], images: Path, stores: Path, tmp_path: Path
) -> None:
    text = on_stacks(uninterrupted["greedy"], images).replace("size = 16", "size = 18")
    with pytest.raises(RunError, match=r"3 x 16 x 16.*3 x 18 x 18.*data\.size"):
        started(text, tmp_path / "run", stores)
    with pytest.raises(RunError, match="a run of layers"):
        started(on_stacks(uninterrupted["supervised"], images), tmp_path / "run", stores)
    assert not (tmp_path / "run").exists()


def test_stacks_that_learnt_from_otherwise_prepared_images_are_refused_before_any_is_prepared(
    uninterrupted: dict[str, RunDirectory], images: Path, tmp_path: Path
) -> None:
    text = on_stacks(uninterrupted["greedy"], images)
    for other, words in {
        "whiten = false\nunit_rms = true": r"data\.whiten \(True there, False here\), data\.unit_rms",
        "per_image_standardise = false": r"data\.per_image_standardise \(True there, False here\); give this",
        "whiten_cutoff = 0.5": r"data\.whiten_cutoff \(0\.7 there, 0\.5 here\)",
    }.items():
        with pytest.raises(RunError, match=words):
            started(text.replace("whiten = true", other), tmp_path / "run", tmp_path / "stores")
    field = '[[network.layers]]\ntype = "local"\nchannels = 2\nkernel_size = 40\n\n[training]'
    text = text.replace("[training]", field).replace('type = "linear"\nfeatures = 6', 'type = "relu"')
    with pytest.raises(GeometryError, match="40"):
        started(text, tmp_path / "run", tmp_path / "stores")
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_stacks_of_which_one_has_learnt_nothing_are_refused_as_a_start(
    images: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(greedy(images), tmp_path / "stacks", stores)
    assert not stop_after(job, 14, monkeypatch)
    text = on_stacks(job.run, images)
    with pytest.raises(RunError, match="have not all been trained; train it further first"):
        started(text, tmp_path / "run", stores)
    assert not (tmp_path / "run").exists()
    assert not stop_after(resumed(job.run.path, stores), 20, monkeypatch)
    started(text, tmp_path / "run", stores)


def test_one_detector_a_class_learns_the_classes(images: Path, stores: Path, tmp_path: Path) -> None:
    text = supervised(images, more='epochs = 8\n[objective]\nloss = "bce_with_logits"').replace(
        "epochs = 4\n", ""
    )
    run = finish(started(text, tmp_path / "run", stores))
    assert losses(run)[0] > 2 * math.log(2) * 0.7
    assert events(run, "validation")[-1]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("strategy", "batch", "validated"),
    [("greedy", 200, [0, 1, 2] * 2), ("joint", 200, [0, 1, 2]), ("supervised", 9, [0, 5, 10, 15, 20])],
)
def test_an_epoch_is_one_pass_over_the_images_whatever_the_batch(
    images: Path, stores: Path, tmp_path: Path, strategy: str, batch: int, validated: list[int]
) -> None:
    text = recipe_of(strategy, images).replace("batch_size = 8", f"batch_size = {batch}")
    run = finish(started(text, tmp_path / "run", stores))
    assert events(run, "start")[0]["samples"] == 48
    assert [event["phase_step"] for event in events(run, "validation")] == validated


def test_early_stopping_ends_the_run_and_keeps_the_best_network(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    more = "epochs = 50\nlearning_rate = 0.5\npatience = 2"
    text = supervised(images, more=more).replace("epochs = 4\n", "")
    run = finish(started(text, tmp_path / "run", stores))
    found = losses(run)
    assert len(found) < 51
    assert min(found) not in found[-2:] and min(found) == found[-3]
    best = events(run, "validation")[found.index(min(found))]["step"]
    assert last(run.best).step == best != last(run.checkpoints).step
    assert trained_layers(run).step == best
    finish(resumed(run.path, stores))  # stays ended
    assert losses(run) == found


def test_splits_by_folders_are_those_of_the_folders(stores: Path, tmp_path: Path) -> None:
    draw_labelled(tmp_path / "set" / "train", 12)
    draw_labelled(tmp_path / "set" / "valid", 5, first=100)
    draw_labelled(tmp_path / "set" / "test", 3, first=200)
    text = supervised(tmp_path / "set", data='splits = "folders"', more="epochs = 1").replace(
        "epochs = 4\n", ""
    )
    job = started(text, tmp_path / "run", stores)
    assert job.store.splits == {"train": 24, "validation": 10, "test": 6}
    assert job.store.classes == ("level", "upright")
    finish(job)


def test_images_without_labels_or_of_one_class_are_refused_for_supervised(
    stores: Path, tmp_path: Path
) -> None:
    draw(tmp_path / "set" / "level", 12, level=True)
    with pytest.raises(RecipeError, match=r"of one class, 'level'; strategy supervised needs"):
        started(supervised(tmp_path / "set"), tmp_path / "run", stores)
    assert not (tmp_path / "run").exists()
    unlabelled = finish(started(greedy(tmp_path / "set"), tmp_path / "stacks", stores))
    name = next(event for event in events(unlabelled, "start"))["store"]
    store = next(path for path in stores.iterdir() if Store(path).identity == name)
    text = supervised(tmp_path).replace(f'source = "{tmp_path}"\nlabels = "folders"', f'store = "{store}"')
    with pytest.raises(RecipeError, match=r"no labels, which strategy supervised needs"):
        started(text, tmp_path / "run", stores)


def test_a_prepared_store_brings_its_own_size(
    uninterrupted: dict[str, RunDirectory], stores: Path, tmp_path: Path
) -> None:
    name = events(uninterrupted["greedy"], "start")[0]["store"]
    store = next(path for path in stores.iterdir() if Store(path).identity == name)
    text = greedy(tmp_path).replace(
        f'source = "{tmp_path}", size = 16, validation = 0.2', f'store = "{store}"'
    )
    run = finish(started(text, tmp_path / "run", stores))
    assert bits(run)[0] == bits(uninterrupted["greedy"])[0]


@pytest.mark.parametrize("strategy", ["greedy", "joint", "supervised"])
def test_images_that_are_no_numbers_stop_the_run_and_leave_the_last_checkpoint(
    uninterrupted: dict[str, RunDirectory],
    images: Path,
    stores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    job = started(recipe_of(strategy, images), tmp_path / "run", stores)
    assert not stop_after(job, 4, monkeypatch)
    before = bits(job.run)
    genuine = Transform.restored

    def spoilt(self: Transform, stored: NDArray[Any]) -> NDArray[np.float32]:
        values = genuine(self, stored)
        values[0, 0] = math.nan
        return values

    monkeypatch.setattr(Transform, "restored", spoilt)
    with pytest.raises(DivergedError, match="00000004"):
        finish(resumed(job.run.path, stores))
    monkeypatch.setattr(Transform, "restored", genuine)
    assert bits(job.run) == before
    assert events(job.run, "end")[-1]["status"] == "failed"
    assert bits(finish(resumed(job.run.path, stores))) == bits(uninterrupted[strategy])


def test_a_rate_beyond_reason_diverges_with_a_word_about_the_rate(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    job = started(supervised(images, more="learning_rate = 1e30"), tmp_path / "run", stores)
    with pytest.raises(DivergedError, match=r"at step \d+; .*try a smaller learning rate"):
        finish(job)
