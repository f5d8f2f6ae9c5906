"""Time to a validation accuracy: replicas and other methods.

Knows: runs, evaluation of saved parameters. Does not know: the command, rates, how results are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from cotswold.bench.measure import Document, rounded
from cotswold.data import Store
from cotswold.recipe import Recipe, dump, parse
from cotswold.training.async_sgd.replica_task import Evaluator
from lib.downpour.baselines import RIVALS, Kept, Race, race_of, slowed
from lib.downpour.replicas import arguments, opened, proceed_until

OURS = "replicas"
NAMES = (OURS, *RIVALS)
_STRIDE = 4


def raced(name: str, recipe: Recipe, store: Store, rows: Path, race: Race, accuracy: float) -> Document:
    """Return seconds to an accuracy on validation samples; evaluation starts after training has ended."""
    overrides = [f"training.seed={race.seed}", f"training.learning_rate={race.rate}"]
    if race.momentum:
        overrides += ["training.update_rule=momentum", f"training.momentum={race.momentum}"]
    recipe = parse(dump(recipe), overrides=[*overrides, f"cluster.workers={race.processes}"])
    if name == OURS:
        kept = replicas(recipe, store, rows, race)
    else:
        kept = race_of(name, race, arguments(recipe, store, rows))
    judge = Evaluator.from_recipe(recipe, store)

    def judged(place: int) -> float:
        means = judge.means(torch.from_numpy(kept.vectors[place]))
        assert means is not None, "a set with validation samples"
        return means["accuracy"]

    place, best = first(len(kept.seconds), judged, accuracy)
    return {
        "rate": race.rate,
        "momentum": race.momentum,
        "seed": race.seed,
        "seconds": None if place is None else rounded(kept.seconds[place]),
        "samples": None if place is None else kept.samples[place],
        "best_accuracy": rounded(best),
        "samples_a_second": rounded(kept.samples[-1] / kept.seconds[-1]),
    }


def replicas(recipe: Recipe, store: Store, rows: Path, race: Race) -> Kept:
    """Return the servers' parameters during a run; the second replica is the slow one."""
    kept = Kept()
    with opened(recipe, store, rows) as learning:
        victim = list(learning.replicas.values())[-1]
        with slowed(victim, race.share):
            learning.resume()
            began = time.perf_counter()

            def look() -> None:
                samples = learning.ledger.total.counted
                if samples >= race.kept_every * (len(kept.seconds) + 1):
                    kept.keep(began, samples, learning.read())

            proceed_until(learning, lambda: learning.ledger.total.counted >= race.samples, look)
    return kept


def first(count: int, judged: Callable[[int], float], accuracy: float) -> tuple[int | None, float]:
    """Return the first place that reaches the accuracy, or None, and the best accuracy seen.

    Every fourth place is evaluated, then the places before the first that reaches it.

    >>> first(9, lambda place: [0, 0, 0.9, 0.95, 0.9, 0.9, 0.9, 1, 1][place], 0.95)
    (3, 1)
    """
    best = 0.0
    for stop in range(min(_STRIDE, count) - 1, count + _STRIDE - 1, _STRIDE):
        last = min(stop, count - 1)
        found = judged(last)
        best = max(best, found)
        if found >= accuracy or last == count - 1:
            start = last - (last % _STRIDE) if last < stop else last - _STRIDE + 1
            for place in range(max(start, 0), last):
                found_before = judged(place)
                best = max(best, found_before)
                if found_before >= accuracy:
                    return place, best
            return (last if found >= accuracy else None), best
    return None, best
