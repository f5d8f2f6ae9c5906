"""Vectors outside the memory of messages: the steps of a replica, compared with vectors in memory.

Without a CUDA device the CPU stands for one.
"""

from __future__ import annotations

import selectors
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tests.support.replicas.fake_device_memory import Places
from tests.support.training.reference_network import BATCH, SAMPLES, SEED, work
from torch import Tensor

from cotswold.errors import MachineError, UserError
from cotswold.paramserver.core.replica_session import StepTask
from cotswold.processes import worker_context as own_work
from cotswold.processes.device import compute_on, device_of_this_thread, select_device
from cotswold.processes.endpoint_settings import EndpointSettings
from cotswold.replicas.accumulation import Accumulation, OwnSteps
from cotswold.replicas.evaluator_process import EvaluatorProcess
from cotswold.replicas.vectors import DeviceVectors, HostVectors, VectorMemory, vectors_like
from cotswold.replicas.work import EvaluationWork
from cotswold.replication.run_settings import ReplicatedClusterSettings
from cotswold.shards.core.permutation import samples_at
from cotswold.shards.runtime.arithmetic import is_finite, raw
from cotswold.shards.runtime.layout import split_into_shards
from cotswold.shards.runtime.parameters import parameters_of
from cotswold.training.async_sgd.gradients import PushFormat
from cotswold.wire import COORDINATOR, PulledNewer, Shard
from cotswold.wire.lifecycle import Evaluate, EvaluateReply

STEPS, RATE = 12, 0.1
NO_DEVICE = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device")


@dataclass(frozen=True)
class Case:
    """Settings of a replica's steps."""

    own: OwnSteps = "none"
    n_push: int = 1
    n_fetch: int = 1
    way: PushFormat = "gradient"
    decay: float = 0.0
    clip: float | None = None


CASES = [
    *(Case(own, *paces) for own in ("none", "sgd", "pushed") for paces in product((1, 2, 3), (1, 2, 3))),
    Case(way="factors", decay=0.01),
    Case(way="factors", n_push=3, n_fetch=2, clip=0.3),
    Case(clip=0.3, decay=0.01, n_push=2),
    Case("sgd", 2, 3, clip=0.3, decay=0.01),
    Case("pushed", 3, 2, decay=0.01),
]


class Steps:
    """The steps of one replica with fake servers, whose pulls are random."""

    def __init__(self, case: Case, device: torch.device | None, of: Callable[[Tensor], VectorMemory]) -> None:
        self.case, self.work = case, work(way=case.way, decay=case.decay, clip=case.clip)
        if device is not None:
            self.work.move_to(device)
        parameters, layout = parameters_of(self.work)
        self.shards = split_into_shards(self.work.layout, 8, 700, ["server-0", "server-1"])
        self.steps = Accumulation(self.work, layout, case.own, BATCH * case.n_push, of(parameters))
        self.steps.lay(self.shards)
        self._drawn = np.random.default_rng(1)
        self._pulls = self._closed = self._behind = 0

    def run(self) -> Iterator[list[memoryview]]:
        """Yield the buffers of each push, in memory that is reused."""
        for number in range(STEPS):
            opens, closes = number % self.case.n_push == 0, (number + 1) % self.case.n_push == 0
            installs = [self._pulled()] if number % self.case.n_fetch == 0 else []
            place = (number * BATCH % SAMPLES, (number + 1) * BATCH % SAMPLES)
            self.steps.begin(StepTask(installs, place, RATE, opens, closes, (1, self._pulls), self._behind))
            self.steps.step(samples_at(SEED, SAMPLES, *place), RATE, opens)
            if closes:
                parts, pushed = self.steps.close()
                assert sum(pushed.values()) > 0
                yield [memoryview(each) for part in parts.values() for each in part.buffers]  # type: ignore[arg-type]  # bytes

    def _pulled(self) -> PulledNewer:
        """Return some shards, some in read-only memory; every second pull lacks the newest push."""
        self._pulls += 1
        self._behind = int(self._pulls > 2 and self._pulls % 2 == 0)
        chosen = [each for each in self.shards if self._pulls == 1 or self._drawn.random() < 0.5]
        numbers = [self._drawn.standard_normal(each.stop - each.start) * 0.1 for each in chosen]
        buffers = [bytes(raw(each)) if place % 2 else raw(each) for place, each in enumerate(numbers)]
        return PulledNewer(
            1,
            "server-0",
            self._pulls,
            tuple(each.number for each in chosen),
            tuple(self._pulls for _ in chosen),
            tuple(buffers),
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_pushed_has_the_bits_of_steps_in_memory(case: Case) -> None:
    here, apart = Steps(case, None, vectors_like), Steps(case, torch.device("cpu"), DeviceVectors)
    for ours, theirs in zip(here.run(), apart.run(), strict=True):
        assert [bytes(each) for each in ours] == [bytes(each) for each in theirs]
        assert torch.equal(here.work.parameters, apart.work.parameters)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_operation_of_a_step_has_tensors_of_device_and_memory(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(monkeypatch)
    apart = Steps(case, torch.device("cpu"), DeviceVectors)
    places.put(apart.work.parameters, *vars(apart.steps).values())
    with places:
        assert len(list(apart.run())) == STEPS // case.n_push
    assert {"aten.convolution_backward.default", "aten.addmm.default"} <= places.seen


@pytest.mark.cuda
@NO_DEVICE
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_pushed_from_a_cuda_device_is_that_of_the_cpu(case: Case) -> None:
    here, there = Steps(case, None, vectors_like), Steps(case, torch.device("cuda", 0), vectors_like)
    for ours, theirs in zip(here.run(), there.run(), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(np.frombuffer(one), np.frombuffer(other), rtol=1e-9, atol=1e-11)
    assert there.work.parameters.device.type == "cuda"


@pytest.mark.parametrize("own", ["none", "sgd", "pushed"])
def test_a_push_stays_as_it_is_until_the_one_after_the_next_begins(own: OwnSteps) -> None:
    """The next push is closed while this one may have to be sent again."""
    apart = Steps(Case(own), torch.device("cpu"), DeviceVectors)
    held: list[tuple[list[memoryview], list[bytes]]] = []
    for buffers in apart.run():
        held = [*held[-1:], (buffers, [bytes(each) for each in buffers])]
        for now, before in held:
            assert [bytes(each) for each in now] == before


def test_parameters_that_were_moved_are_no_memory_of_messages() -> None:
    apart = Steps(Case(), torch.device("cpu"), DeviceVectors)
    vector = apart.work.parameters.numpy()
    before = vector.copy()
    (buffers, *_) = apart.run()
    assert not any(np.shares_memory(np.frombuffer(each), vector) for each in buffers)
    assert not np.array_equal(vector, before), "what was pulled is in them"
    network = dict(apart.work.network.named_parameters())
    assert all(
        torch.equal(part, network[name])
        for name, part in apart.work.flat.by_name(torch.from_numpy(vector)).items()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 1e15, 1e19, 1e155, float("inf"), float("-inf"), float("nan")])
def test_what_is_finite_is_so_anywhere(value: float, dtype: torch.dtype) -> None:
    vector = torch.tensor([0.5, value, 0.5], dtype=torch.float64).to(dtype)
    assert (
        DeviceVectors(vector).is_finite(vector)
        is HostVectors().is_finite(vector)
        is is_finite(vector.numpy())
    )


def test_cuda_is_taken_in_turn_by_the_places_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    taken = [select_device("cuda", f"replica-{place + 7}", place) for place in (0, 1, 2, 9)]
    assert [each.index for each in taken] == [0, 1, 0, 1]
    assert select_device("cuda", "evaluator-2").index == 0, (
        "whoever judges takes the first, also started again"
    )
    assert select_device("cuda:1", "replica-1") == torch.device("cuda", 1)
    assert select_device("cpu", "replica-1") == torch.device("cpu")


@pytest.mark.parametrize(("wanted", "count"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_a_device_that_the_replicas_host_lacks_is_named(
    wanted: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(MachineError, match=f"replica-1 cannot compute on {wanted}: its host has {count}"):
        select_device(wanted, "replica-1")


def test_a_fork_of_a_program_that_has_asked_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(UserError, match="replica-1 is a fork of a program that has initialised CUDA"):
        select_device("cuda", "replica-1")


class Moving:
    """A work that records the current device of its thread when it is moved."""

    def __init__(self) -> None:
        self.found: list[tuple[torch.device, torch.device]] = []

    def move_to(self, device: torch.device) -> None:
        self.found.append((device, device_of_this_thread()))


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """Simulate two CUDA devices with one current device per thread [the first]."""
    of_thread = threading.local()

    def set_device(device: torch.device) -> None:
        of_thread.index = device.index

    for name, value in {
        "device_count": lambda: 2,
        "is_initialized": lambda: True,
        "set_device": set_device,
        "current_device": lambda: getattr(of_thread, "index", 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return of_thread


def test_a_work_is_moved_by_a_thread_that_has_its_device(
    current: threading.local, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Moving()
    monkeypatch.setattr(own_work, "import_function", lambda text: lambda: made)
    monkeypatch.setattr(own_work, "open_endpoint", lambda name, reach: nullcontext(Mock()))
    reach = EndpointSettings.of(ReplicatedClusterSettings(), None).as_dict()
    with own_work.worker_context("replica-9", "tcp://nobody", "any:work", {}, reach, 1, "cuda", 1):
        second = torch.device("cuda", 1)
        assert made.found == [(second, second)]


def test_a_thread_that_computes_takes_the_device_of_the_one_that_began(current: threading.local) -> None:
    compute_on(torch.device("cuda", 1))
    began, found = device_of_this_thread(), list[torch.device]()

    def compute() -> None:
        found.append(device_of_this_thread())
        compute_on(began)
        found.append(device_of_this_thread())

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join(10)
    assert [each.index for each in found] == [0, 1]


def test_an_evaluator_computes_on_the_device_on_which_it_began(current: threading.local) -> None:
    class Judging:
        def means(self, vector: Tensor) -> Mapping[str, float]:
            return {"index": float(device_of_this_thread().index)}

    coordinator, posts = Mock(), list[object]()
    coordinator.send.side_effect = lambda to, message: posts.append(message)
    compute_on(torch.device("cuda", 1))
    role = EvaluatorProcess(cast(EvaluationWork, Judging()), coordinator, "evaluator-1", 10.0)
    shard = Shard(number=0, start=0, stop=2, server="server-0", tensor="w", block=0)
    buffer = np.zeros(2, np.float32).tobytes()
    role._on_message(COORDINATOR, Evaluate(1, "run", (shard,), (), "float32", (buffer,)))
    with selectors.DefaultSelector() as selector:
        selector.register(role._worker_thread.fileno(), selectors.EVENT_READ)
        assert selector.select(10)
    role._worker_thread.run_callbacks()
    role._worker_thread.close()
    assert [each.means for each in posts if isinstance(each, EvaluateReply)] == [(("index", 1.0),)]
