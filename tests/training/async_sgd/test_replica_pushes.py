"""Pushes of one replica, in real processes, compared with the same steps by formulas in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.support.training.reference_network import (
    BATCH,
    CONVOLUTION,
    FACTORED,
    LOCAL,
    SAMPLES,
    SEED,
    Case,
    in_one_process,
    work,
)

from cotswold.errors import UserError
from cotswold.host import ForkServer
from cotswold.optim.schedule import SampleSchedule
from cotswold.optim.server_rules import Adagrad, AddUpdate, Momentum
from cotswold.paramserver.core.replica_session import Pace
from cotswold.replicas.replicas import PRELOADED, Replicas, open_replicas
from cotswold.replicas.startup import ReplicaSettings
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.wire.lifecycle import StepMetrics

NO_DEVICE = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device")
PLACES = ["cpu", "apart", pytest.param("cuda", marks=[pytest.mark.cuda, NO_DEVICE])]
"""Places of the replica's computation; ``apart``: on the CPU as if it were a device."""
EPOCHS = 2
NEVER = 1_000_000
SHARD_BYTES = 700
FALLING = SampleSchedule("cosine", 0.1, SAMPLES, BATCH, EPOCHS)

CASES = {
    "sgd": Case(),
    "sgd, a rate that follows samples, decay": Case(schedule=FALLING, decay=0.01),
    "sgd of factors, both": Case(way="factors", schedule=FALLING, decay=0.01),
    "sgd, clipped": Case(clip=0.3, decay=0.01, n_push=2, n_fetch=NEVER),
    "sgd of factors, clipped": Case(way="factors", clip=0.3, decay=0.01),
    "momentum": Case(Momentum(0.7), rate=0.03),
    "momentum of factors": Case(Momentum(0.7), "factors", rate=0.03),
    "adagrad": Case(Adagrad(), rate=0.01),
    "adagrad of factors": Case(Adagrad(), "factors", rate=0.01),
    "deltas": Case(AddUpdate(), own="pushed", schedule=FALLING, decay=0.01),
    "deltas of three steps": Case(AddUpdate(), n_push=3, n_fetch=NEVER, own="pushed"),
    "deltas of three steps, pulled every two": Case(AddUpdate(), n_push=3, n_fetch=2, own="pushed"),
    "deltas, pulled every two": Case(AddUpdate(), n_fetch=2, own="pushed", decay=0.01, schedule=FALLING),
    "no own steps, sums of three": Case(n_push=3, n_fetch=NEVER, rate=0.01, decay=0.1, schedule=FALLING),
    "no own steps, factors of three": Case(way="factors", n_push=3, n_fetch=NEVER, rate=0.01, decay=0.1),
    "SGD steps, sums of two": Case(n_push=2, n_fetch=NEVER, own="sgd"),
    "filters of norm 1": Case(rate=0.03, unit_norm=(LOCAL, CONVOLUTION, "layers.5.weight")),
    "filters of norm 1, of factors": Case(way="factors", unit_norm=(LOCAL, CONVOLUTION, "layers.5.weight")),
}


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServer]:
    server = ForkServer((*PRELOADED, "tests.support.training.fake_device"))
    yield server
    server.close()


def opened(case: Case, processes: ForkServer, batch: int = BATCH, place: str = "cpu") -> Replicas:
    settings = ReplicaSettings(
        ReplicatedClusterSettings(workers=1, servers=2, shard_bytes=SHARD_BYTES, seed=SEED),
        Pace(batch, case.n_fetch, case.n_push, overlap=case.n_fetch > 1),
        case.rate,
        EPOCHS,
        case.rule,
        fraction=1.0,
        own=case.own,  # type: ignore[arg-type]  # one of the three
        schedule=case.schedule.schedule,
        warmup=case.schedule.warmup,
        unit_norm=frozenset(case.unit_norm),
        device="cpu" if place == "cpu" else "cuda",
    )
    arguments = {"way": case.way, "decay": case.decay, "clip": case.clip}
    module = (
        "tests.support.training.fake_device"
        if place == "apart"
        else "tests.support.training.reference_network"
    )
    return open_replicas(settings, f"{module}:work", arguments, processes=processes)


def finish(replicas: Replicas) -> list[StepMetrics]:
    learnt = replicas.proceed(60.0)
    assert replicas.is_over, replicas.status()
    learnt += replicas.finish()
    assert replicas.ledger.total.counted == EPOCHS * SAMPLES
    assert all(each.refused == () for each in replicas.count())
    return learnt


@pytest.mark.soak
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CASES)
def test_servers_have_what_formulas_give(name: str, place: str, processes: ForkServer) -> None:
    case = CASES[name]
    with opened(case, processes, place=place) as replicas:
        learnt = finish(replicas)
        found = replicas.read()
    torch.testing.assert_close(found, in_one_process(case, EPOCHS), rtol=1e-9, atol=1e-11)
    kinds = {kind for each in learnt for _, kind, _ in each.pushed}
    plain = "delta" if case.own == "pushed" else "gradient"
    assert kinds == ({plain, "factors"} if case.way == "factors" else {plain})


def test_what_is_pushed_is_what_the_choice_by_numbers_says(processes: ForkServer) -> None:
    batch = 4
    with opened(Case(way=None), processes, batch) as replicas:
        pushed: dict[tuple[str, str], int] = {}
        for each in finish(replicas):
            for tensor, kind, count in each.pushed:
                pushed[tensor, kind] = pushed.get((tensor, kind), 0) + count
        taken = sum(each.accepted_bytes for each in replicas.count())
    learnt = work(way=None)
    learnt.lay(split_into_shards(learnt.layout, 8, SHARD_BYTES, ["server-0", "server-1"]), batch)
    gradient = torch.zeros_like(learnt.parameters)
    learnt.compute(range(batch), gradient)
    steps, expected = EPOCHS * SAMPLES // batch, {}
    costs = {f"{name}.weight": cost for name, cost in learnt.costs.items()}
    assert {cost.push_format for cost in costs.values()} == {"gradient", "factors"}
    for slot in learnt.layout:
        cost = costs.get(slot.name)
        numbers = (
            cost.factors if cost is not None and cost.push_format == "factors" else slot.rows * slot.columns
        )
        kind = "gradient" if cost is None else cost.push_format
        assert numbers is not None
        expected[slot.name, kind] = 8 * steps * numbers
    assert set(FACTORED) == costs.keys()
    assert pushed == expected
    assert taken == sum(expected.values())


def test_own_steps_go_with_rules_that_take_them(processes: ForkServer) -> None:
    with pytest.raises(UserError, match=r"'pushed', and rule adagrad.*sum of squares"):
        opened(Case(Adagrad(), own="pushed"), processes)
    with pytest.raises(UserError, match="'none', and rule deltas"):
        opened(Case(AddUpdate()), processes)
