from functools import partial

import pytest

from cotswold.recipe import load, parse
from cotswold.training.jobs.memory_estimate import largest_batch, stack_budgets, training_bytes


@pytest.mark.parametrize(
    ("name", "weights"), [("coates2013-1.8b", 1_802_240_000), ("coates2013-11b", 11_199_485_952)]
)
def test_the_papers_networks_have_the_stated_numbers_of_weights(name: str, weights: int) -> None:
    recipe = load(name)
    assert sum(budget.parameters for budget in stack_budgets(recipe, recipe.training.batch_size)) == weights


def test_the_first_stack_of_the_large_network_is_counted_as_by_hand() -> None:
    budget = stack_budgets(load("coates2013-11b"), 96)[0]
    assert budget.grid == (46, 46)
    assert budget.fan_in == 20 * 20 * 3
    assert budget.neurons == 4 * 4 * 18
    assert budget.filter_bytes == 4 * 46 * 46 * 1200 * 288
    assert budget.gradient_bytes == budget.filter_bytes // 46
    assert budget.update_flops == 5 * 2 * 46 * 46 * 1200 * 288 * 96


def test_joint_training_holds_the_momentum_of_every_stack_and_greedy_that_of_one() -> None:
    greedy = load("demo", ["training.strategy=greedy"])
    joint = load("demo", ["training.strategy=joint"])
    budgets = stack_budgets(greedy, 8)
    momenta = [budget.momentum_bytes for budget in budgets]
    assert training_bytes(joint, 8) - training_bytes(greedy, 8) >= sum(momenta) - max(momenta)


def test_the_largest_batch_that_fits_fits_and_one_more_does_not() -> None:
    recipe = load("demo")
    half = training_bytes(recipe, recipe.training.batch_size // 2)
    batch = largest_batch(partial(training_bytes, recipe), recipe.training.batch_size, half)
    assert batch == recipe.training.batch_size // 2
    assert training_bytes(recipe, batch) <= half < training_bytes(recipe, batch + 1)
    assert largest_batch(partial(training_bytes, recipe), 96, 1000) == 0


def test_a_recipe_of_layers_has_no_stacks_to_count() -> None:
    text = """
name = "layers"
[data]
store = "somewhere"
[[network.layers]]
type = "linear"
features = 3
[training]
strategy = "supervised"
"""
    assert training_bytes(parse(text), 10) == 0
