"""Steps of the library and of plain torch compute the same numbers."""

from __future__ import annotations

import pytest
import torch

from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.recipe import load
from cotswold.training.jobs.restore import supervised_network
from lib.plain_loops import Case, convolutions, stack


def check(case: Case) -> None:
    assert case.losses[0] == pytest.approx(case.losses[1], rel=1e-4)
    for step in (case.ours, *case.plain.values()):
        first = float(step())
        for _ in range(20):
            last = float(step())
        assert last < first


def test_a_stack_has_the_loss_of_its_plain_loop_and_both_learn() -> None:
    layer = BlockLocal(MapShape(3, 14, 14), Window(6, 4, 1, 1), Window(6, 4, 1, 1), 2, 2, 3)
    check(stack("small", StackGeometry(layer, Smoothing(1), Smoothing(1)), ops.StackObjective(), 12))


def test_the_network_of_adam_mnist_has_the_loss_of_its_plain_loop_and_both_learn() -> None:
    recipe = load("adam-mnist", [])
    torch.manual_seed(0)
    check(convolutions(recipe.name, supervised_network(recipe, 10), 16))
