"""Seeded lives with drained servers and rebalanced primaries, in addition to other faults."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.chaos.simulation import Simulation
from tests.chaos.world import World
from tests.chaos.worlds import WORLDS
from tests.conftest import FUZZ

LIVES = {
    "quiet": 20,
    "network": 20,
    "deaths": 20,
    "pauses": 20,
    "cuts": 20,
    "controllers": 20,
    "everything": 30,
    "two at least": 20,
    "disks": 10,
    "one copy": 20,
}


def drained(world: World) -> World:
    """Return the world with early drains and rebalancing, so that many happen in a life."""
    return replace(world, drains=0.8, evens_soon=True, waits_seconds=float("inf"))


@pytest.mark.soak
@pytest.mark.parametrize("world", LIVES)
def test_nothing_is_lost_though_servers_are_drained_and_leads_evened(world: str) -> None:
    kinds = Counter[str]()
    for seed in range(LIVES[world] * FUZZ):
        life = Simulation(seed, drained(WORLDS[world]))
        try:
            life.live()
        except AssertionError as error:
            told = "\n".join(life.transcript[-60:])
            raise AssertionError(f"{world}, seed {seed}: {error}\n{told}") from error
        kinds += life.cast.kinds
    assert {"draining", "drained", "handed_over", "replica_added"} <= set(kinds), kinds
    assert kinds["rebalanced"] > 0 or world != "deaths", kinds


def test_members_are_at_no_moment_fewer_than_there_must_be_where_nobody_dies() -> None:
    life = Simulation(3, drained(replace(WORLDS["quiet"], servers=4, copies=2, least=2)))
    fewest = []

    judged = life.cast.state.watch

    def watch(key: str, old: str | None, new: str | None) -> None:
        judged(key, old, new)
        if key.startswith("bucket/") and old is not None:
            fewest.append(min(len(each.members) for each in life.cast.groups.values()))

    life.cast.state.watch = watch
    life.live()
    assert min(fewest) == 2 and life.cast.kinds["handed_over"] > 0, life.cast.kinds
