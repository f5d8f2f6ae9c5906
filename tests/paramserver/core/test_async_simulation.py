"""Seeded lives of asynchronous replicas: every update counts once, for any faults of messages and replicas.

A failing seed is named and can be replayed exactly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from tests.conftest import FUZZ
from tests.support.paramserver.simulated_run import SAMPLES, SIZE, Trial, World

from cotswold.optim.server_rules import AddUpdate
from cotswold.paramserver.core.replica_session import Pace
from cotswold.paramserver.core.staleness import Staleness
from cotswold.simulate.protocols.network import Faults
from cotswold.wire.ranges import union

LIVES = 16 * FUZZ
"""Lives per case and world."""
CASES = 2
FEW = 10 * FUZZ
"""Lives of each world judged in every run of the tests; the cases are long tests."""

QUIET = World(Pace(2))
CHAOS = replace(
    QUIET,
    faults=Faults(lost_fraction=0.05, duplicated_fraction=0.05, delayed_fraction=0.1, late_seconds=1.0),
    deaths=0.3,
    pauses=0.2,
    arrivals=0.5,
    departures=0.1,
)
WORLDS = {
    "as the paper": CHAOS,
    "in accumulations": replace(CHAOS, pace=Pace(2, n_fetch=3, n_push=2)),
    "stretched": replace(CHAOS, pace=Pace(2, n_push=2, stretch=3), checkpoints=1.0),
    "deltas": replace(CHAOS, rule=AddUpdate(), kind="delta", pace=Pace(3, n_push=2)),
    "moves": replace(
        CHAOS, rule=AddUpdate(), kind="delta", pace=Pace(3, n_fetch=2, n_push=2, applies_locally=True)
    ),
    "without overlap": replace(CHAOS, pace=Pace(2, overlap=False)),
    "in little room": replace(CHAOS, room_bytes=40, drain_seconds=0.5),
    "dropped": replace(CHAOS, staleness=Staleness("drop", 1)),
    "waiting": replace(CHAOS, staleness=Staleness("wait", 1)),
    "waiting without overlap": replace(
        CHAOS, staleness=Staleness("wait", 1), pace=Pace(2, n_push=2, overlap=False)
    ),
    "waiting in little room": replace(CHAOS, staleness=Staleness("wait", 0), room_bytes=40),
    "not finite": replace(CHAOS, nan=0.1),
    "of three ranks": replace(CHAOS, ranks=3),
    "of ranks, in accumulations": replace(CHAOS, ranks=2, pace=Pace(2, n_fetch=3, n_push=2), checkpoints=1.0),
    "of ranks, without overlap": replace(CHAOS, ranks=3, pace=Pace(2, overlap=False)),
    "of ranks, in little room": replace(CHAOS, ranks=3, room_bytes=40, drain_seconds=0.5, checkpoints=1.0),
    "of ranks, not finite": replace(CHAOS, ranks=3, nan=0.1, staleness=Staleness("drop", 1)),
    "of ranks, waiting": replace(CHAOS, ranks=2, staleness=Staleness("wait", 1), checkpoints=1.0),
    "of replicas": replace(CHAOS, of="replicas", warm_samples=10),
    "with checkpoints": replace(CHAOS, checkpoints=0.5, fraction=1.0),
    "checkpoints in accumulations": replace(CHAOS, checkpoints=1.0, pace=Pace(2, n_fetch=3, n_push=2)),
    "checkpoints in little room": replace(CHAOS, checkpoints=1.0, room_bytes=40, drain_seconds=0.5),
    "checkpoints while waiting": replace(CHAOS, checkpoints=1.0, staleness=Staleness("wait", 1)),
    "checkpoints while waiting in little room": replace(
        CHAOS, checkpoints=1.0, staleness=Staleness("wait", 0), room_bytes=40
    ),
    "checkpoints while dropping": replace(CHAOS, checkpoints=1.0, nan=0.1, staleness=Staleness("drop", 1)),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_update_is_applied_once_in_the_first_simulations_of_each_world(world: str) -> None:
    judge_lives(world, range(FEW))


@pytest.mark.soak
@pytest.mark.parametrize("case", range(CASES))
@pytest.mark.parametrize("world", WORLDS)
def test_every_update_is_applied_once_whoever_dies_and_whatever_is_lost(world: str, case: int) -> None:
    judge_lives(world, range(case * LIVES, (case + 1) * LIVES))


def judge_lives(world: str, seeds: Iterable[int]) -> None:
    """Run each seed; raises AssertionError with the seed for a broken life."""
    for seed in seeds:
        try:
            Trial(seed, WORLDS[world]).live()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {world}: {error}") from error


def test_a_simulation_is_a_function_of_its_seed() -> None:
    lives = [Trial(3, CHAOS) for _ in range(2)]
    for life in lives:
        life.live()
    assert len({(life.loop.now, life.network.messages) for life in lives}) == 1


def test_where_nothing_fails_everything_that_is_handed_out_counts() -> None:
    trial = Trial(1, replace(QUIET, fraction=1.0))
    trial.live()
    total = trial.ledger.total
    assert (total.counted, total.torn, total.lost, total.left_out) == (2 * SAMPLES, 0, 0, 0)


def test_one_replica_without_overlap_is_sequential_sgd_to_the_bit() -> None:
    def gradient(samples: tuple[int, int], weights: object) -> list[float]:
        assert isinstance(weights, list)
        place = sum(range(*samples))
        return [(each - 1 / (place + k + 1)) * 0.01 for k, each in enumerate(weights)]

    world = replace(QUIET, pace=Pace(3, overlap=False), replicas=1, fraction=1.0, faults=CHAOS.faults)
    trial = Trial(7, world, gradient)
    trial.check_weights = lambda: None  # type: ignore[method-assign]  # sums of these depend on weights
    trial.live()
    assert trial.ledger.total.counted == 2 * SAMPLES
    weights, start = [0.0] * SIZE, 0
    while start < 2 * SAMPLES:
        end = start - start % SAMPLES + SAMPLES
        hand = min(end, start - (start % SAMPLES) % 6 + 6)
        stop = min(hand, start + 3)
        found = gradient((start, stop), weights)
        weights = [each - 1.0 * other for each, other in zip(weights, found, strict=True)]
        start = stop
    for server in trial.servers:
        for shard, part in zip(server.shards, server.vectors["weights"], strict=True):
            assert part == weights[shard.start : shard.stop]


@pytest.mark.parametrize("case", range(CASES))
def test_a_checkpoint_is_cut_at_the_same_place_on_all_servers(case: int) -> None:
    befalls = replace(QUIET, faults=CHAOS.faults, arrivals=0.3, checkpoints=1.0, fraction=1.0)
    kept = 0
    for seed in range(case * LIVES, (case + 1) * LIVES):
        trial = Trial(seed, befalls)
        trial.live()
        if not any(each.kind == "lost" for each in trial.dispatcher.events):
            for saved in trial.saved:
                assert union(*saved.ledger.has[0]) == union(*saved.ledger.has[1])
                assert saved.ledger.total.torn == 0
            kept += len(trial.saved)
    assert kept > 2 * LIVES


@pytest.mark.parametrize("case", range(CASES))
def test_whoever_goes_on_from_a_checkpoint_applies_every_sample_once(case: int) -> None:
    befalls = replace(CHAOS, checkpoints=1.0, epochs=3)
    resumed = 0
    for seed in range(case * LIVES, (case + 1) * LIVES):
        first = Trial(seed, befalls)
        first.loop.run(lambda first=first, seed=seed: len(first.saved) > seed % 3, seconds=600)  # type: ignore[misc]  # mypy and defaults
        if not first.saved or first.saved[-1].ledger.is_stopped:
            continue
        second = Trial(seed + 1000, befalls, first.whole, first.saved[-1])
        try:
            second.live()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        resumed += 1
    assert resumed > LIVES / 2


def test_a_checkpoint_that_is_begun_with_the_end_of_an_epoch_leaves_nothing_out() -> None:
    """With one replica, in order, a checkpoint contains everything computed by then, in any epoch."""
    quiet = replace(QUIET, replicas=1, fraction=1.0, checkpoints=9.0, epochs=3)
    epochs = set()
    for seed in range(LIVES):
        trial = Trial(seed, quiet)
        trial.live()
        for saved in trial.saved:
            counted = saved.ledger.total.counted
            assert union(*saved.ledger.by.get("counted", [])) == (((0, counted),) if counted else ())
            assert saved.ledger.total.left_out == 0
            epochs.add(saved.ledger.epoch)
    assert epochs == {0, 1, 2}


def test_a_warm_start_is_one_replicas() -> None:
    trial = Trial(2, replace(QUIET, warm_samples=20, replicas=4))
    trial.loop.run(lambda: trial.ledger.total.counted >= 16, seconds=600)
    assert sum(bool(replica.replica.steps) for replica in trial.replicas) == 1
    trial.live()
    assert sum(bool(replica.replica.steps) for replica in trial.replicas) > 1


def test_with_wait_no_update_is_staler_than_the_bound_and_those_that_come_with_it() -> None:
    def stalest(staleness: Staleness) -> int:
        world = replace(QUIET, replicas=4, pauses=0.5, pace=Pace(2, overlap=False), staleness=staleness)
        found = 0
        for seed in range(LIVES):
            trial = Trial(seed, world)
            trial.live()
            histograms = [each for player in trial.updates for each in player.updates.staleness.values()]
            found = max(found, *(each.largest for each in histograms))
        return found

    assert stalest(Staleness("wait", 2)) <= 2 + 3
    assert stalest(Staleness()) > 2 + 3
