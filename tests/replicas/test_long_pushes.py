"""A push whose sending is delayed grows: by steps on moving parameters, and never as factors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from tests.support.training.reference_network import BATCH, SAMPLES, SEED, work
from torch import Tensor

from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Adagrad, Momentum, Rule, Sgd
from cotswold.paramserver.core.rank_fanout import RankFanout
from cotswold.paramserver.core.replica import Replica
from cotswold.paramserver.core.replica_session import Pace, StepTask
from cotswold.paramserver.core.update_sequence import ServerUpdate
from cotswold.processes.worker_thread import WorkerThread
from cotswold.replicas.accumulation import GROWS, GROWS_MOVING, Accumulation
from cotswold.replicas.replica_process import ReplicaProcess
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replicas.vectors import vectors_like
from cotswold.replicas.work import ReplicaWork
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.shards.core.permutation import samples_at
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.parameters import parameters_of
from cotswold.shards.runtime.work import PortionSum
from cotswold.training.async_sgd.gradients import PushFormat
from cotswold.training.async_sgd.replica_task import ReplicaTask
from cotswold.wire import Join, PulledNewer, ReplicaInstructions, SessionOpened, Shard
from cotswold.wire.lifecycle import StepMetrics

RATE, USUAL, STEPS = 0.1, 2, 6


def steps(one: ReplicaTask, beyond: int, count: int = STEPS) -> tuple[Accumulation, list[bool]]:
    """Return a push of steps that usually has `USUAL`, and after each step whether another may be added."""
    parameters, layout = parameters_of(one)
    found = Accumulation(one, layout, "none", BATCH * USUAL, vectors_like(parameters), beyond)
    found.lay(split_into_shards(one.layout, 8, 700, ["server-0", "server-1"]))
    grows = []
    for number in range(count):
        place = number * BATCH % SAMPLES, (number + 1) * BATCH % SAMPLES
        found.step(samples_at(SEED, SAMPLES, *place), RATE, number == 0)
        grows.append(found.may_grow(BATCH))
    return found, grows


def pushed(found: Accumulation) -> Tensor:
    """Return all data sent to servers, in order of shards."""
    parts, _ = found.close()
    buffers = {
        number: bytes(buffer)  # type: ignore[call-overload]  # a buffer
        for part in parts.values()
        for number, buffer in zip(part.shards, part.buffers, strict=True)
    }
    whole = bytearray(b"".join(buffers[number] for number in sorted(buffers)))
    return torch.frombuffer(whole, dtype=torch.float64)


def by_hand(one: ReplicaTask, moves_after: int, replicas: int) -> Tensor:
    """Return the sum of gradients if the parameters move in each step after ``moves_after``, as by all
    replicas."""
    total = torch.zeros_like(one.parameters)
    for number in range(STEPS):
        place = number * BATCH % SAMPLES, (number + 1) * BATCH % SAMPLES
        gradient = torch.zeros_like(total)
        one.compute(samples_at(SEED, SAMPLES, *place), gradient)
        if number >= moves_after:
            one.parameters.sub_(gradient, alpha=replicas * RATE)
        total += gradient
        if number == moves_after - 1:
            one.parameters.sub_(total, alpha=replicas * RATE)
    return total


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_push_that_is_long_is_of_steps_as_all_replicas_take_them(replicas: int) -> None:
    one, other = work(way="gradient"), work(way="gradient")
    found, grows = steps(one, replicas)
    torch.testing.assert_close(pushed(found), by_hand(other, USUAL, replicas), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(one.parameters, other.parameters, rtol=1e-12, atol=1e-14)
    assert all(grows)


@pytest.mark.parametrize(
    ("way", "beyond", "grows"),
    [
        ("gradient", 1, [True, True, True]),
        ("factors", 1, [True, False, False]),
        ("gradient", 0, [True, False, False]),
    ],
)
def test_what_is_added_up_where_it_is_grows_no_further_than_a_bound(
    way: PushFormat, beyond: int, grows: list[bool]
) -> None:
    one = work(way=way)
    before = one.parameters.clone()
    assert steps(one, beyond, 3)[1] == grows
    assert torch.equal(one.parameters, before) is not all(grows)


def test_replicas_that_wait_together_go_no_further_than_one_that_steps_by_itself() -> None:
    """Least squares by eight replicas, each of which has gone the whole way when its push is sent."""
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(64, 8, generator=generator, dtype=torch.float64)
    target = data @ torch.ones(8, dtype=torch.float64)

    class Squares:
        samples, flops = 64, (1, 1)

        def __init__(self) -> None:
            self.parameters = torch.zeros(8, dtype=torch.float64)

        def compute(self, samples: Sequence[int], gradient: Tensor) -> PortionSum:
            rows = torch.tensor(list(samples))
            error = data[rows] @ self.parameters - target[rows]
            gradient += data[rows].t() @ error / len(rows)
            return PortionSum(0.0, len(rows), {})

    replicas, rate, moved = 8, 0.03, torch.zeros(8, dtype=torch.float64)
    for number in range(replicas):
        one = Squares()
        found = Accumulation(
            cast(ReplicaWork, one), (("w", 1, 8),), "none", 8 * GROWS, vectors_like(one.parameters), replicas
        )
        found.lay((Shard(0, "a", 0, 8, "w", 0),))
        order = torch.randint(64, (GROWS_MOVING, 8), generator=torch.Generator().manual_seed(number))
        for place, rows in enumerate(order.tolist()):
            found.step(rows, rate, place == 0)
        moved -= rate * pushed(found)
    assert torch.linalg.vector_norm(moved - 1) < 0.5 * 8**0.5, "it began as far away as 8 ** 0.5"


def test_the_next_push_begins_without_moving() -> None:
    one = work(way="gradient")
    found, _ = steps(one, 1)
    found.close()
    before = one.parameters.clone()
    found.step(samples_at(SEED, SAMPLES, 0, BATCH), RATE, True)
    assert torch.equal(one.parameters, before)


@pytest.mark.parametrize(
    ("rule", "may_move", "beyond"),
    [(Sgd(), True, 3), (Sgd(), False, 0), (Momentum(0.9), True, 0), (Adagrad(), True, 0)],
)
def test_replicas_move_where_servers_take_plain_steps_and_nothing_forbids_it(
    rule: Rule, may_move: bool, beyond: int
) -> None:
    settings = ReplicaSettings(
        ReplicatedClusterSettings(workers=3), Pace(1), 0.1, rule=rule, may_move=may_move
    )
    assert settings.stepping.beyond == beyond


@pytest.mark.parametrize(
    ("is_ranked", "may_grow", "sizes"), [(False, 9, [1, 4]), (False, 2, [1, 2]), (True, 9, [1, 4])]
)
def test_all_ranks_hear_with_a_step_whether_it_is_the_last_of_its_push(
    is_ranked: bool, may_grow: int, sizes: list[int]
) -> None:
    """Otherwise the first rank would continue what the others have closed."""
    machine = Replica(Join("one", 0, "", 20, 4), Pace(1, stretch=4))
    shard = Shard(0, "a", 0, 4, "weight", 0)
    machine.receive(
        "coordinator", SessionOpened("one", 0, 1, "run", (shard,), (("a", ""),), 0.1, 1.0, "{}"), 0.0
    )
    machine.receive("coordinator", ReplicaInstructions(1, ((1, 0, 12),), 1, 0.5, 0), 0.0)
    machine.receive("a", PulledNewer(1, "a", 1, (0,), (0,), (b"",)), 0.0)
    heard, closed = list[bool](), list[int]()

    class Steps:
        """Steps of an accumulation that is closed with a step, as on all ranks."""

        count = 0

        def lay(self, shards: object) -> None:
            pass

        def begin(self, task: StepTask) -> None:
            self.count = 1 if task.opens else self.count + 1  # else it goes on with what was closed
            heard.append(task.closes)

        def step(self, samples: object, rate: float, opens: bool) -> PortionSum:
            return PortionSum(0.0, 1, {})

        def may_grow(self, samples: int) -> bool:
            return self.count + samples <= may_grow

        def close(self) -> tuple[dict[str, ServerUpdate], dict[tuple[str, str], int]]:
            closed.append(self.count)
            return {"a": ServerUpdate("gradient", (0,), (), (b"",))}, {}

    role = ReplicaProcess.__new__(ReplicaProcess)
    role._name, role._ranks = "one", RankFanout("one") if is_ranked else None
    role._work = cast(ReplicaWork, SimpleNamespace(samples=20))
    role._machine, role._accumulation, role._batch, role._seed = machine, Steps(), 1, 0
    role._lock, role._device = threading.Lock(), torch.device("cpu")
    role._metrics, role._first_metrics = StepMetrics("one", 0, 0, 0.0, (), 0.0), None
    role._schedule = cast(SampleSchedule, SimpleNamespace(rate=lambda rate, at: rate))
    role._worker_thread = cast(
        WorkerThread, SimpleNamespace(call_in_main=lambda call: None, step_finished=lambda: None)
    )
    role._compute(machine.task())
    assert closed == sizes
    if is_ranked:
        assert heard == [last for size in sizes for last in [*[False] * (size - 1), True]]
