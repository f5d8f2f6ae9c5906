"""Processes that learn on one copy of the weights: shared state, exits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.benchmarks.learners import Failing, Line
from tests.warm import PYTHON
from torch import nn

from cotswold.errors import MachineError, UserError
from cotswold.host import Call, ForkServer
from cotswold.host.ipc.shared_memory import is_supported
from cotswold.testing.processes import ended
from cotswold.testing.signals import is_running, wait_until
from cotswold.training.async_sgd.shared_memory import SharedMemoryLocation, SharedParameters
from lib.hogwild_training import Done, Steps, take_step, train

pytestmark = pytest.mark.skipif(not is_supported(), reason="no shared memory without a name")
LEARNERS = "tests.benchmarks.learners"
STEPS = Steps(samples=64 * 8, batch=8, rate=0.05, schedule="linear")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute with one thread, like a learner's process: sums of several threads may differ in the
    last bit.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_one_process_has_the_bits_of_plain_sgd() -> None:
    module, (done,) = train(f"{LEARNERS}:Line", {}, STEPS, 1)
    plain = Line()
    for step in range(64):
        loss = plain.loss(STEPS.numbers(step, 64))
        take_step(loss, list(plain.module.parameters()), 0.05 * (1 - step / 64))
    assert done.samples == 64 * 8 and done.loss == float(loss.detach()) and done.rate > 0
    for name, value in plain.module.state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name


def test_two_processes_learn_together_and_tell_what_they_have_done() -> None:
    told: list[list[Done]] = []
    steps = Steps(samples=64 * 100, batch=8, rate=0.05)
    module, done = train(f"{LEARNERS}:Line", {}, steps, 2, lambda each: told.append(list(each)))
    assert [each.samples for each in done] == [3200, 3200]
    assert all(each.samples <= 3200 for row in told for each in row)
    assert int(module.state_dict()["1.num_batches_tracked"]) > 400  # both have written
    both = Line()
    both.module.load_state_dict(module.state_dict())
    assert both.loss(range(64)) < 0.2 * Line().loss(range(64))


def test_all_processes_together_see_every_sample_of_an_epoch_once() -> None:
    steps = Steps(samples=64, batch=8)
    seen = [number for step in range(8) for number in steps.numbers(step, 64)]
    assert sorted(seen) == list(range(64))
    assert [number for step in range(8, 16) for number in steps.numbers(step, 64)] != seen
    assert Steps(samples=64, batch=8, seed=1).numbers(0, 64) != steps.numbers(0, 64)


def test_what_another_process_writes_is_read_here_and_its_own_values_are_dropped() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    shared = SharedParameters(module, extra_bytes=64)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    server = ForkServer(["torch"])
    try:
        found = shared.location
        place = {"path": found.path, "size": found.size, "tensors": found.tensors}
        process = server.start(
            Call("writer", "tests.benchmarks.test_hogwild_training:double", {"place": place})
        )
        assert ended(process) == 0, process.why()
    finally:
        server.close()
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name] * 2 + (name == "1.num_batches_tracked")), name
    assert bytes(shared.extra) == b"x" * 64
    shared.close()
    with pytest.raises(MachineError, match="are lost"):
        SharedParameters.join(module, shared.location)


def double(place: dict[str, object]) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    shared = SharedParameters.join(module, SharedMemoryLocation(**place))  # type: ignore[arg-type]  # as above
    with torch.no_grad():
        for each in (*module.parameters(), *module.buffers()):
            each.mul_(2)
        module[1].num_batches_tracked.add_(1)  # type: ignore[operator]  # a buffer
    shared.extra[:] = b"x" * 64


@pytest.mark.parametrize(("how", "why"), [("killed", "was killed by SIGKILL"), ("error", "no third batch")])
def test_a_process_that_fails_is_named_and_the_others_end(how: str, why: str) -> None:
    assert Failing(how).left == 3
    with pytest.raises(MachineError, match=rf"process \d .*{why}"):
        train(f"{LEARNERS}:Failing", {"how": how}, STEPS, 2)


def test_a_factory_that_makes_another_module_elsewhere_is_told_so() -> None:
    with pytest.raises(MachineError, match="Sequential has other parameters here than where they are shared"):
        train(f"{LEARNERS}:Other", {"owner": os.getpid()}, STEPS, 1)


@pytest.mark.parametrize("steps", [Steps(samples=8, batch=8), Steps(samples=1000, batch=100)])
def test_what_is_no_batch_for_each_process_is_refused(steps: Steps) -> None:
    with pytest.raises(UserError, match="samples give no batch of"):
        train(f"{LEARNERS}:Line", {}, steps, 2)


STARTER = f"""
from lib.hogwild_training import Steps, train
train("{LEARNERS}:Endless", {{"folder": __import__("sys").argv[1]}}, Steps(samples=10**9, batch=8), 2)
"""


def test_processes_end_when_the_trainer_is_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *sys.path])
    driver = subprocess.Popen([*PYTHON, "-c", STARTER, str(tmp_path)], env={**os.environ, "PYTHONPATH": path})
    try:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "two processes compute", 60)
    finally:
        driver.kill()
        driver.wait()
    pids = [int(each.name) for each in tmp_path.iterdir()]
    wait_until(lambda: not any(is_running(pid) for pid in pids), "they have ended", 10)
