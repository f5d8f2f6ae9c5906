"""Predictions for Bunyip, compared with the paper's statements; nothing was fitted."""

from __future__ import annotations

import pytest

from cotswold.simulate import predict_evaluation
from cotswold.simulate.estimates.bunyip import (
    FRACTION,
    PARAMETERS,
    STATED_STAGES,
    evaluation,
    four_stage_reduction,
    lam_reduction,
    machine,
    network,
    stage_seconds,
    stated_card_gbits,
)


def test_four_stages_are_those_of_figure_5() -> None:
    plan = four_stage_reduction().plan
    by_stage = [[step for step in plan.steps if step.stage == stage] for stage in range(3)]
    assert [len(steps) for steps in by_stage] == [97, 48, 36]  # hosts, pairs of nodes, three of every four
    hosts = network().host_of
    assert all(hosts[step.sender] == hosts[step.receiver] for step in by_stage[0])
    for root in {step.receiver for step in by_stage[2]}:
        assert len({step.lane for step in by_stage[2] if step.receiver == root}) == 3  # a card each
    assert len({step.receiver for step in by_stage[2]}) == 12
    assert plan.root == 0 and hosts[0] == 0  # the server
    assert {step.sender for step in plan.steps} == set(range(1, 194))  # each is added once


def test_lams_tree_has_the_papers_eight_stages() -> None:
    assert lam_reduction().plan.stages == 8
    assert lam_reduction(in_turn=True).plan.stages == 8


def test_a_stage_over_cards_takes_a_vector_over_a_card() -> None:
    vector = 32 * PARAMETERS / 1e8
    shared, pairs, three, tree = stage_seconds(four_stage_reduction(), network())
    assert shared < 0.05
    assert pairs == pytest.approx(vector, rel=0.05)
    assert three == pytest.approx(vector, rel=0.05)  # three cards at once
    assert tree == pytest.approx(4 * vector, rel=0.05)  # 13 left: four levels


def test_no_stage_is_predicted_slower_than_it_was() -> None:
    """Effects outside the model (TCP, waiting for each other) only add time."""
    stages = stage_seconds(four_stage_reduction(), network())
    assert all(found < stated for found, stated in zip(stages, STATED_STAGES, strict=True))
    measured = stage_seconds(four_stage_reduction(), network(card_gbits=stated_card_gbits()))
    assert measured[1] == pytest.approx(STATED_STAGES[1], rel=0.02)
    assert measured[2] < STATED_STAGES[2] and measured[3] < STATED_STAGES[3]


def test_little_is_won_at_the_peak_and_much_with_few_patterns() -> None:
    gains = []
    for samples in (20_000, 9_360_000):
        work = evaluation((400, 480, 3203), samples, 194)
        assert work.evaluated_samples == pytest.approx(FRACTION * samples, rel=0.02)
        tree, four = (
            predict_evaluation(machine(), work, 194, how).repeated_seconds
            for how in (lam_reduction(in_turn=True), four_stage_reduction())
        )
        gains.append(tree / four)
    assert gains[0] > 1.1 > 1.01 > gains[1] > 1


def test_large_sets_scale_and_small_ones_do_not() -> None:
    def speed_up(sizes: tuple[int, int, int], samples: int, processors: int = 194) -> float:
        one = predict_evaluation(machine(), evaluation(sizes, samples, 1), 1)
        many = predict_evaluation(
            machine(),
            evaluation(sizes, samples, processors),
            processors,
            lam_reduction(processors, _size(sizes)),
        )
        return many.flops_per_second / one.flops_per_second

    small = speed_up((400, 80, 200), 40_960)
    middle = speed_up((400, 480, 3203), 163_480)
    large = speed_up((400, 480, 3203), 194 * 32_000)
    assert small < middle < large and large > 0.9 * 194


def _size(sizes: tuple[int, int, int]) -> int:
    inputs, hidden, outputs = sizes
    return inputs * hidden + hidden * outputs
