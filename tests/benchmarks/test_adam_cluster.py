"""benchmarks/adam_cluster.py: the paper's machines, and failures of machines."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cotswold.simulate import load_cluster
from lib.predictions.adam_cluster import PUSH_IMAGES, Work, kept_part, simulated

DAY = 86_400.0


def test_full_layers_go_as_factors_and_convolutions_whole() -> None:
    work = Work(load_cluster("adam2014"), 1.0, 4)
    assert work.network.connections > 2e9
    full = [each for each in work.network.layers if each.kind == "full"]
    numbers = sum(each.input.size + each.output.size for each in full)
    assert work.push_bytes(1) == 4 * (work.shared_weights + PUSH_IMAGES * numbers)
    assert work.pull_bytes == 4 * sum(each.weights for each in work.network.layers)
    assert work.server_seconds(20) < work.server_seconds(10)


def test_more_machines_are_faster_and_larger_networks_slower() -> None:
    found: Any = simulated(5)
    machines = {each["replicas"]: each["machines"] for each in found["clusters"]}
    assert machines == {"12 of 4 machines": 62, "16 of 3 machines": 62, "16 of 4 machines": 78}
    speeds = [each["images_a_second"] for each in found["replicas"]]
    assert speeds == sorted(speeds)
    days = [each["days_to_an_epoch"] for each in found["figure 12"]]
    assert days == sorted(days)
    assert all(each["with_standby"] > each["without_standby"] for each in found["standby"]["rows"])


def test_a_replica_stands_still_until_a_machine_takes_over() -> None:
    class Once(random.Random):
        """A generator in which one machine fails after a day, and no other within the year."""

        def __init__(self) -> None:
            super().__init__(0)
            self.drawn = 0

        def expovariate(self, lambd: float = 1.0) -> float:
            self.drawn += 1
            return DAY if self.drawn == 1 else 365 * DAY

    times = ((0.5 * DAY, 2 * DAY), 10 * DAY)
    with_spare = kept_part(Once(), (2, 4), 1, DAY, *times)
    without = kept_part(Once(), (2, 4), 0, DAY, *times)
    assert with_spare == pytest.approx(1 - 0.5 / 20) and without == pytest.approx(1 - 2 / 20)


def test_what_never_fails_loses_nothing() -> None:
    assert kept_part(random.Random(0), (3, 4), 0, 1e15, (1.0, DAY), 10 * DAY) == 1.0
