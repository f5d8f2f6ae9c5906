"""Simulated replicas with real gradients: SGD to the bit without staleness, and staleness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Adagrad, Momentum, Rule, Sgd
from cotswold.paramserver.core.replica_session import Pace
from cotswold.shards.core.permutation import samples_at
from cotswold.shards.runtime.work import PortionSum, TensorSlot
from lib.simulated_replicas import Learning, Machines, Moment, SimulatedReplicas

PATTERNS, SIZE = 60, 5
SGD, EACH_STEP, CONSTANT = Sgd(), Pace(6), SampleSchedule()


class Regression:
    """Squared error of a line through random points."""

    flops = (0, 0)

    def __init__(self) -> None:
        chance = np.random.default_rng(0)
        self._inputs = torch.from_numpy(chance.standard_normal((PATTERNS, SIZE)).astype(np.float32))
        self._targets = self._inputs @ torch.arange(1.0, SIZE + 1)
        self.parameters = torch.zeros(SIZE)
        self.computed = 0

    @property
    def layout(self) -> Sequence[TensorSlot]:
        return [TensorSlot("line", 1, SIZE)]

    samples = PATTERNS

    def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
        chosen = torch.tensor(list(samples))
        inputs, targets = self._inputs[chosen], self._targets[chosen]
        gap = inputs @ self.parameters - targets
        gradient += inputs.T @ gap / len(chosen)
        self.computed += 1
        return PortionSum(float(gap.square().sum()) / 2, len(chosen), {})

    def loss(self, parameters: Tensor) -> float:
        return float((self._inputs @ parameters - self._targets).square().mean()) / 2


def simulated(
    machines: Machines,
    rule: Rule = SGD,
    pace: Pace = EACH_STEP,
    rate: float = 0.1,
    samples: int = 1200,
    warm_samples: int = 0,
    schedule: SampleSchedule = CONSTANT,
) -> tuple[SimulatedReplicas, list[tuple[float, int, float]], Moment]:
    work = Regression()
    found: list[tuple[float, int, float]] = []
    simulation = SimulatedReplicas(
        work, machines, Learning(pace, rate, samples, rule, warm_samples, schedule=schedule)
    )

    def watch(moment: Moment) -> None:
        found.append((moment.seconds, moment.samples, work.loss(moment.parameters)))

    return simulation, found, simulation.run(watch, 300)


def test_one_replica_without_overlap_is_sgd_to_the_bit() -> None:
    simulation, found, last = simulated(Machines(1), pace=Pace(6, overlap=False))
    work = Regression()
    for step in range(200):
        gradient = torch.zeros(SIZE)
        work.compute(samples_at(0, PATTERNS, 6 * step, 6 * step + 6), gradient)
        work.parameters = torch.addcmul(work.parameters, torch.tensor(-0.1), gradient)
    assert torch.equal(last.parameters, work.parameters)
    assert simulation.staleness.largest == 0
    assert [samples for _, samples, _ in found] == [0, 300, 600, 900, 1200]
    assert found[-1][2] < 1e-3 * found[0][2]


def test_the_rate_of_a_push_is_that_of_the_place_of_its_first_sample() -> None:
    falling = SampleSchedule("linear", 0.0, PATTERNS, 12, epochs=20)
    pace = Pace(6, n_fetch=2, n_push=2, overlap=False)
    learning = Learning(pace, 0.1, 1200, schedule=falling)
    told: list[float | None] = []
    last = SimulatedReplicas(Regression(), Machines(1), learning).run(lambda now: told.append(now.loss), 600)
    work, losses = Regression(), []
    for step in range(100):
        gradient = torch.zeros(SIZE)
        for start in (12 * step, 12 * step + 6):
            losses.append(work.compute(samples_at(0, PATTERNS, start, start + 6), gradient).value)
        work.parameters = torch.addcmul(work.parameters, torch.tensor(-0.1 * (1 - step / 100)), gradient)
    torch.testing.assert_close(last.parameters, work.parameters, rtol=1e-6, atol=0)
    assert told == [None, pytest.approx(sum(losses[:100]) / 600), pytest.approx(sum(losses[100:]) / 600)]


def test_pushes_and_pulls_are_as_often_as_is_said() -> None:
    often, _, _ = simulated(Machines(4))
    seldom, found, _ = simulated(Machines(4), pace=Pace(6, n_fetch=4, n_push=4), rate=0.02)
    assert (often.staleness.updates, seldom.staleness.updates) == (200, 50)
    assert found[-1][2] < 0.5 * found[0][2]


@pytest.mark.parametrize("rule", [Sgd(), Momentum(0.9), Adagrad()], ids=lambda rule: rule.name)
def test_staleness_is_about_the_number_of_the_others_and_all_rules_learn(rule: Rule) -> None:
    rate = {"sgd": 0.01, "momentum": 0.001, "adagrad": 0.5}[rule.name]
    means = []
    for replicas in (4, 16):
        simulation, found, last = simulated(Machines(replicas), rule, rate=rate)
        assert last.samples >= 1200
        assert found[-1][2] < 0.5 * found[0][2]
        means.append(simulation.staleness.mean)
    assert 5 < means[0] < 9 and 24 < means[1] < 36


def test_more_replicas_take_less_time_and_a_busy_server_makes_them_wait() -> None:
    (_, _, alone), (_, _, many), (_, _, queued) = (
        simulated(Machines(1)),
        simulated(Machines(16)),
        simulated(Machines(16, apply_seconds=0.5)),
    )
    assert alone.seconds > 10 * many.seconds
    assert queued.seconds >= 0.5 * 200
    assert alone.busy_seconds == pytest.approx(alone.seconds, rel=0.05)


def test_a_stale_rate_that_is_too_great_for_many_replicas_is_not_for_one() -> None:
    last = {replicas: simulated(Machines(replicas), rate=0.3)[1][-1][2] for replicas in (1, 32)}
    assert last[1] < 1e-3
    assert not last[32] < 1.0


def test_a_warm_start_is_one_replicas() -> None:
    simulation, _, last = simulated(Machines(16), warm_samples=600)
    _, _, cold = simulated(Machines(16))
    assert last.seconds > cold.seconds + 40
    assert simulation.staleness.bins[1] >= 90


def test_a_simulation_is_a_function_of_its_seeds() -> None:
    runs = [simulated(Machines(8, seed=seed))[1] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("wrong", [{"replicas": 0}, {"step_seconds": 0.0}, {"jitter": -1.0}])
def test_what_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"at least|greater than"):
        Machines(**{"replicas": 1, **wrong})  # type: ignore[arg-type]  # that is the mistake
