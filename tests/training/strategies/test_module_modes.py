"""Layers that a program puts into evaluation mode stay in it during training."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training.jobs.test_module_job import labelled, opened, settings, train
from torch import Tensor, nn

from cotswold.recipe.schema import BatchTraining, DownpourTraining
from cotswold.training import Resume
from cotswold.training.async_sgd import module_downpour
from cotswold.training.full_batch import module_batch
from cotswold.training.strategies.module_modes import Modes

FEATURES, CLASSES = 6, 3


def frozen() -> nn.Sequential:
    """Return a network whose normalisation keeps its means."""
    module = nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, CLASSES))
    for layer in list(module)[1:3]:
        layer.eval().requires_grad_(False)
    return module


def mean(module: nn.Sequential) -> Tensor:
    found = module[1].running_mean
    assert isinstance(found, Tensor)
    return found


def test_a_normalisation_that_the_program_froze_keeps_its_means(tmp_path: Path) -> None:
    module = frozen()
    before = next(module.parameters()).detach().clone()
    train(opened(tmp_path / "run", module=module, validation=labelled()))
    assert not mean(module).any()
    assert not next(module.parameters()).equal(before)


def test_a_run_that_is_resumed_with_the_module_as_the_last_one_left_it_keeps_layers_frozen(
    tmp_path: Path,
) -> None:
    module = frozen()
    train(opened(tmp_path / "run", module=module, settings=settings(epochs=1)))
    module.eval()  # as cotswold.train leaves it
    train(opened(tmp_path / "run", module=module, resume=Resume.ALWAYS, settings=settings(epochs=2)))
    assert not mean(module).any()


def test_a_module_that_is_in_evaluation_mode_as_a_whole_learns_with_all_its_layers() -> None:
    module = frozen().eval()
    Modes(module).learn()
    assert all(each.training for each in module.modules())


@pytest.mark.parametrize("strategy", ["batch", "downpour"])
def test_a_frozen_normalisation_normalises_over_no_batch_and_is_taken(strategy: str) -> None:
    module = frozen()
    if strategy == "batch":
        module_batch.check(module, labelled(), None, BatchTraining(strategy="batch"))
    else:
        module_downpour.check(module, labelled(), None, DownpourTraining(strategy="downpour"))
