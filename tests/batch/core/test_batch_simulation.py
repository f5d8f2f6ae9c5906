"""Thousands of seeded lives of a cluster: nothing is lost or counted twice, for any faults of messages and
workers.

A failing seed is part of the test's name and can be replayed exactly: `pytest -k`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import pytest
from tests.conftest import FUZZ
from tests.support.batch.simulated_run import Trial, World, rules

from cotswold.simulate.protocols.network import Faults

LIVES = 64 * FUZZ
"""Lives per case; each has three evaluations."""
CASES = 8
FEW = 40 * FUZZ
"""Lives judged in every run of the tests; the cases are long tests."""

CHAOS = {
    "faults": Faults(lost_fraction=0.05, duplicated_fraction=0.05, delayed_fraction=0.1, late_seconds=1.0),
    "deaths": 0.3,
    "pauses": 0.2,
    "arrivals": 0.5,
    "departures": 0.1,
}


def worlds(travel: str, seed: int, **befalls: object) -> World:
    ahead = (0.1, 0.5)[seed // 2 % 2]  # two portions in a hand, or five
    if travel == "pushed":
        return World(rules(10, seed=seed, queue_seconds=ahead), **befalls)  # type: ignore[arg-type]  # fields of World, above
    if travel == "along the tree":
        along = rules(10, seed=seed, tree=True, queue_seconds=ahead)
        return World(along, whole=False, **befalls)  # type: ignore[arg-type]  # befalls
    if travel == "reduced":
        flush_seconds = 0.5 if seed % 2 else inf  # some hand sums over before the end
        reduced = rules(10, seed=seed, pushes=False, flush_seconds=flush_seconds, queue_seconds=ahead)
        return World(reduced, keeps=True, **befalls)  # type: ignore[arg-type]  # befalls
    hasty = rules(10, seed=seed, deadline_factor=1.5, queue_seconds=ahead)
    return World(hasty, fraction=0.7, **befalls)  # type: ignore[arg-type]  # befalls


def live(seed: int, world: World) -> Trial:
    trial = Trial(seed, world)
    trial.evaluate(0)
    trial.evaluate(1, gradient=False)
    trial.evaluate(2)
    return trial


TRAVELS = ("pushed", "along the tree", "reduced", "to a deadline")


@pytest.mark.parametrize("travel", TRAVELS)
def test_every_pattern_counts_once_in_the_first_simulations(travel: str) -> None:
    judge_lives(travel, range(FEW))


@pytest.mark.soak
@pytest.mark.parametrize("case", range(CASES))
@pytest.mark.parametrize("travel", TRAVELS)
def test_every_pattern_counts_once_whoever_dies_and_whatever_is_lost(travel: str, case: int) -> None:
    judge_lives(travel, range(case * LIVES, (case + 1) * LIVES))


def judge_lives(travel: str, seeds: Iterable[int]) -> None:
    """Run each seed; raises AssertionError with the seed for a broken life."""
    for seed in seeds:
        try:
            live(seed, worlds(travel, seed, **CHAOS))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {travel}: {error}") from error


@pytest.mark.parametrize("travel", TRAVELS)
def test_a_simulation_is_a_function_of_its_seed(travel: str) -> None:
    first, second = (live(3, worlds(travel, 3, **CHAOS)) for _ in range(2))
    assert (first.loop.now, first.network.messages) == (second.loop.now, second.network.messages)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_the_number_of_servers_changes_no_bit(servers: int) -> None:
    alone = live(5, World(rules(seed=5, tree=True), servers=1, workers=1, whole=False))
    many = live(5, World(rules(seed=5, tree=True), servers=servers, workers=4, whole=False))
    assert many.vector("g") == alone.vector("g")
