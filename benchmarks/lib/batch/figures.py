"""Figures 6 and 8 of Aberdeen et al. 2000 on this machine: evaluations by one and by two workers.

Knows: the cluster of workers, isolated processes, clocks. Does not know: other predictions, how results are
kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch

from cotswold.bench.measure import rounded_all
from cotswold.optim import Combine
from cotswold.simulate import BatchWork, Cluster, predict_evaluation, this_machine
from cotswold.simulate.estimates.bunyip import dense_work
from cotswold.simulate.hardware.cluster import Rate
from cotswold.simulate.workloads.batch_work import PointTransfer
from cotswold.training.full_batch.local import FullBatchObjective
from lib.batch.cluster import Search, bunyip_cluster
from lib.batch.isolated import Alone
from lib.batch.network import bunyip

TRAVELS: tuple[PointTransfer, ...] = ("bunyip", "sandblaster")


@dataclass(frozen=True)
class Measured:
    """Seconds of all cases, which alternate round by round."""

    sizes: tuple[int, int, int]
    samples: int
    portion: int
    single: list[float]
    """Half of the patterns in one isolated process."""
    crowded: list[float]
    """Half of the patterns in each of two processes at once."""
    one: list[float]
    """An evaluation in one process, without servers or sockets."""
    two: dict[str, list[float]]
    """An evaluation by two workers and a parameter server, by travel."""

    @property
    def work(self) -> BatchWork:
        """Return the evaluated work."""
        return dense_work(self.sizes, self.samples, self.portion)

    def machine(self, number: int) -> Cluster:
        """Describe this machine with the rates of a portion in one round."""
        flops = self.work.flops / 2
        here = this_machine()
        rate = Rate(
            operation="gradient",
            rate=flops / self.single[number] / 1e9,
            crowded=flops / self.crowded[number] / 1e9,
        )
        device = here.device.model_copy(update={"rates": [*here.device.rates, rate]})
        return here.model_copy(update={"devices": 2, "threads": None, "device": device})

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each number of workers: measured, predicted from the rate of a portion in the same
        round, and the median of their ratios."""
        cases: list[tuple[int, PointTransfer, list[float]]] = [(1, "bunyip", self.one)]
        cases += [(2, travel, self.two[travel]) for travel in TRAVELS]
        found: list[dict[str, object]] = []
        for workers, travel, seconds in cases:
            work = replace(self.work, point_transfer=travel)
            predicted = [
                predict_evaluation(self.machine(number), work, workers).repeated_seconds
                for number in range(len(seconds))
            ]
            ratio = median(said / took for said, took in zip(predicted, seconds, strict=True))
            found.append(
                {
                    "sizes": list(self.sizes),
                    "patterns": self.samples,
                    "workers": workers,
                    "travel": "in one process" if workers == 1 else travel,
                    "seconds": median(seconds),
                    "predicted_seconds": median(predicted),
                    "predicted_over_measured": ratio,
                    "gflops": work.flops / median(seconds) / 1e9,
                    "predicted_gflops": work.flops / median(predicted) / 1e9,
                    "rounds": {"measured": rounded_all(seconds), "predicted": rounded_all(predicted)},
                }
            )
        return found


def measured(sizes: tuple[int, int, int], samples: int, portion: int, rounds: int) -> Measured:
    """Measure evaluations along a line by one process and by two workers, and the rate of a portion."""
    torch.set_num_threads(1)  # like each worker
    single: list[float] = []
    crowded: list[float] = []
    one: list[float] = []
    two: dict[str, list[float]] = {travel: [] for travel in TRAVELS}
    with ExitStack() as stack:
        alone = {n: stack.enter_context(Alone(n, n * (samples // 2), portion, sizes)) for n in (1, 2)}
        whole = Line(samples, portion, sizes)
        searches = {
            travel: Search(stack.enter_context(bunyip_cluster(2, samples, portion, travel, sizes))[0])
            for travel in TRAVELS
        }
        for number in range(rounds + 1):
            row: Sequence[tuple[list[float], float]] = [
                (single, alone[1].seconds()),
                (one, whole.seconds()),
                *((two[travel], search.seconds()) for travel, search in searches.items()),
                (crowded, alone[2].seconds()),
            ]
            for times, seconds in row if number else ():
                times.append(seconds)
    return Measured(sizes, samples, portion, single, crowded, one, two)


class Line:
    """Evaluations along a line in this process, on one thread."""

    def __init__(self, samples: int, portion: int, sizes: tuple[int, int, int]) -> None:
        self._whole = FullBatchObjective(bunyip(samples=samples, sizes=sizes), portion=portion)
        self._number = 0
        self._whole.evaluate("x", "g")
        self._whole.vectors.run([Combine("d", ((-1e-3, "g"),))])

    def seconds(self) -> float:
        """Return the time of one value and gradient at another step."""
        self._number += 1
        trial = Combine("trial", ((1.0, "x"), (0.1 * self._number, "d")))
        began = perf_counter()
        self._whole.evaluate("trial", "trial_g", before=[trial])
        return perf_counter() - began
