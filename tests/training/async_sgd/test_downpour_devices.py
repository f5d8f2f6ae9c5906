"""Replicas on devices: requests of recipes, programs and machines, and whole runs.

Without a CUDA device the CPU stands for one (`tests.support.training.fake_device`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.api.train import train_with
from tests.support.training import fake_device as apart
from tests.support.training.runs import finish, last, losses
from tests.training.async_sgd.test_strategy import job_of, recipe_of
from torch import Tensor, nn

import cotswold
from cotswold.api.plan.dry_run import plan
from cotswold.cli.support.plan_output import lines
from cotswold.errors import MachineError, RecipeError, UserError
from cotswold.kernels.machine import cuda_devices
from cotswold.kernels.machine.cuda_devices import cuda_device_count
from cotswold.recipe import load
from cotswold.run import describe_environment
from cotswold.run.environment import _devices
from cotswold.training.async_sgd import strategy as downpour
from cotswold.training.jobs.restore import check_training_device

NO_DEVICE = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device")


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that two devices exist; any use would fail."""
    count(monkeypatch, 2)


def count(monkeypatch: pytest.MonkeyPatch, devices: int) -> None:
    """Pretend that the driver reports some devices, without CUDA's runtime."""

    def spoiled() -> int:
        raise AssertionError("no fork of this process can use CUDA now")

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: devices)
    monkeypatch.setattr(torch.cuda, "device_count", spoiled)


@pytest.mark.parametrize(
    ("cluster", "device", "complaint"),
    [
        ("workers = 2", "mps", "on the CPU or on CUDA devices; set it to"),
        ("workers = 2", "cuda:x", "on the CPU or on CUDA devices"),
        ("workers = 2", "cuda:1000", "on the CPU or on CUDA devices"),
        ("workers = 2, processes = 2", "cuda", "share CPU memory; set training.device"),
        ('workers = 2, ray_address = "auto"', "cuda", "that Ray starts have no CUDA devices"),
    ],
)
def test_where_replicas_cannot_be_is_refused(
    cluster: str, device: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=complaint):
        load(str(recipe_of(tmp_path, cluster, device=device)))


def test_model_parallel_ranks_are_not_on_cuda_devices(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, device="cuda:1")
    assert load(str(recipe)).training.device == "cuda:1"
    with pytest.raises(RecipeError, match=r"remove cluster\.processes and mesh\.grid"):
        load(str(recipe), ["mesh.grid=1x2"])


def samples() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    return inputs, (inputs[:, :3].sum(1) > 0).long()


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))


def learnt(module: nn.Module, place: Path, loss: Any = "cross_entropy", **words: Any) -> cotswold.Run:
    asked: dict[str, Any] = {"strategy": "downpour", "batch_size": 20, "learning_rate": 0.3, "epochs": 2}
    asked |= {"validation": 0.2, **words}
    run = train_with(module, samples(), directory=place, loss=loss, **asked)
    assert run.status == "finished"
    return run


def same(module: nn.Module, other: nn.Module) -> bool:
    """True if both are equal to the bit."""
    pairs = zip(module.parameters(), other.parameters(), strict=True)
    return all(torch.equal(one, another) for one, another in pairs)


def test_a_device_that_is_not_here_is_said_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count(monkeypatch, 0)
    complaint = r'training\.device = "cuda" is not available on this machine'
    with pytest.raises(MachineError, match=complaint):
        job_of(tmp_path, device="cuda")
    with pytest.raises(MachineError, match=complaint):
        plan(recipe_of(tmp_path, device="cuda"))
    with pytest.raises(MachineError, match=complaint):
        learnt(network(), tmp_path / "module", device="cuda")
    assert not (tmp_path / "run").exists() and not (tmp_path / "module").exists()


def test_devices_of_replicas_are_counted_and_not_used(devices: None, tmp_path: Path) -> None:
    """A fork of a process that has used CUDA cannot use it."""
    recipe = str(recipe_of(tmp_path))
    for name in ("cuda", "cuda:0", "cuda:1"):
        check_training_device(load(recipe, [f"training.device={name}"]).training)
    with pytest.raises(MachineError, match="is not available"):
        check_training_device(load(recipe, ["training.device=cuda:2"]).training)
    assert not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch gives it no types


def test_where_the_driver_says_nothing_devices_are_counted_by_another_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example with CUDA_VISIBLE_DEVICES=MIG-..., CUDA's runtime would have to count here, and spoil
    forks."""
    (tmp_path / "torch.py").write_text("class cuda:\n    device_count = staticmethod(lambda: 3)\n")
    count(monkeypatch, -1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{tmp_path}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cuda_devices, "_has_driver", lambda: True)
    assert cuda_device_count() == 3
    assert describe_environment()["cuda"] == ["CUDA device"] * 3
    recipe = str(recipe_of(tmp_path))
    check_training_device(load(recipe, ["training.device=cuda:2"]).training)
    with pytest.raises(MachineError, match="is not available"):
        check_training_device(load(recipe, ["training.device=cuda:3"]).training)


def test_without_a_driver_no_device_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    count(monkeypatch, -1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-nobody")
    monkeypatch.setattr(cuda_devices, "_has_driver", lambda: False)
    monkeypatch.setattr(subprocess, "run", None)
    assert cuda_device_count() == 0


def test_a_recipe_on_a_device_has_the_bits_of_one_in_memory(
    devices: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: dict[str, Any] = {
        "max_staleness": 0,
        "epoch_fraction": 1.0,
        "epochs": 2,
        "unit_norm": True,
        "clip_norm": 0.5,
    }
    for name in ("here", "apart"):
        (tmp_path / name).mkdir()
    here = finish(job_of(tmp_path / "here", "workers = 1", **words))
    monkeypatch.setattr(downpour, "_WORK", apart.__name__)
    monkeypatch.setattr(downpour, "_EVALUATION_MODULE", apart.__name__)
    there = finish(job_of(tmp_path / "apart", "workers = 1", device="cuda", **words))
    (one, other) = (last(run.checkpoints).tensors() for run in (here, there))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert losses(here)[-1] == losses(there)[-1], "the evaluator was on the device, too"


@pytest.mark.soak
def test_a_programs_module_on_a_device_has_the_bits_of_one_in_memory(
    devices: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = network(), network()
    learnt(here, tmp_path / "here", max_staleness=0)
    apart.pretend_by(monkeypatch.setattr)
    learnt(there, tmp_path / "apart", max_staleness=0, device="cuda")
    assert same(here, there) and not same(there, network())


class _Told(torch.autograd.Function):
    """An identity that leaves a file named after the process in which it is differentiated."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, folder: Path) -> Tensor:
        ctx.folder = folder
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (ctx.folder / str(os.getpid())).touch()
        return gradients[0], None


@pytest.mark.parametrize("processes", [1, 2])
def test_a_program_takes_no_gradient_before_its_replicas_are_forked(processes: int, tmp_path: Path) -> None:
    """With CUDA devices, autograd would not work in a fork after a gradient."""
    folder = tmp_path / "processes"
    folder.mkdir()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = _Told.apply(nn.functional.cross_entropy(outputs, targets), folder)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return value

    run = learnt(network(), tmp_path / "run", loss=loss, processes=processes)
    found = {int(each.name) for each in folder.iterdir()}
    assert found and os.getpid() not in found
    (end,) = (event for event in run.events if event["kind"] == "end")
    of_a_sample = 2 * (48 + 12) + 2 * (48 + 12) + 2 * 12
    assert end["flops"] == 2 * 160 * of_a_sample, "a replica counts them instead"


def test_a_loss_may_ask_for_derivatives_itself(tmp_path: Path) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        value = nn.functional.cross_entropy(outputs, targets)
        (slope,) = torch.autograd.grad(value, outputs, create_graph=True)
        return value + slope.square().sum()

    module = network()
    learnt(module, tmp_path / "run", loss=loss, validation=None)
    assert not same(module, network())


@pytest.mark.soak
def test_a_loss_that_asks_for_derivatives_asks_in_forks_alone(tmp_path: Path) -> None:
    folder = tmp_path / "processes"
    folder.mkdir()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        known: Tensor = _Told.apply(outputs, folder)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        value = nn.functional.cross_entropy(known, targets)
        if value.requires_grad:
            torch.autograd.grad(value, outputs, retain_graph=True)
        return value

    learnt(network(), tmp_path / "run", loss=loss)
    found = {int(each.name) for each in folder.iterdir()}
    assert found and os.getpid() not in found


class OddError(Exception):
    """An error of a program with more than a message."""

    def __init__(self, words: str, more: object) -> None:
        super().__init__(words, more)
        self.more = more


def _fails(error: Exception) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        raise error

    return loss


def test_what_the_first_samples_raise_is_of_its_own_class(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^the loss wants other targets$") as ours:
        learnt(network(), tmp_path / "ours", loss=_fails(UserError("the loss wants other targets")))
    assert type(ours.value) is UserError
    with pytest.raises(OddError) as odd:
        learnt(network(), tmp_path / "odd", loss=_fails(OddError("words", 7)))
    assert odd.value.more == 7
    assert "in loss" in "".join(odd.value.__notes__), "the place where it was raised"


def test_what_no_other_process_can_have_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"OddError: .*a lock"):
        learnt(network(), tmp_path / "run", loss=_fails(OddError("a lock", threading.Lock())))


def test_a_trial_that_is_killed_is_said(tmp_path: Path) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return outputs.sum()

    with pytest.raises(MachineError, match="first samples, and the process was killed by SIGKILL"):
        learnt(network(), tmp_path / "run", loss=loss)


def test_a_replicas_device_has_its_name_in_a_plan() -> None:
    (line,) = lines({"replica_device_bytes": 2e6})
    assert re.fullmatch("memory of a replica's device +2.* MB", line)


def test_devices_are_named_by_their_driver(tmp_path: Path) -> None:
    for place, model in (("0000:01:00.0", "Fast 9000"), ("0000:02:00.0", "Slow 1")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 90\n")
    assert _devices(2, tmp_path) == ["Fast 9000", "Slow 1"]
    assert _devices(1, tmp_path) == ["CUDA device"], "some of them are not for us"
    assert _devices(0, tmp_path / "none") == []


@pytest.mark.cuda
@NO_DEVICE
@pytest.mark.parametrize(
    "words", [{"push_format": "factors"}, {"update_rule": "deltas", "push_every": 2}], ids=str
)
def test_a_recipe_learns_on_cuda_devices(words: dict[str, Any], tmp_path: Path) -> None:
    run = finish(job_of(tmp_path, device="cuda", **words))
    assert losses(run)[-1] < 0.7 * losses(run)[0]


PROGRAM = """
import sys
from pathlib import Path
from tests.training.async_sgd.test_downpour_devices import learnt, network

here, there = network(), network()
learnt(here, Path(sys.argv[1]) / "here", max_staleness=0)
learnt(there, Path(sys.argv[1]) / "there", max_staleness=0, device="cuda")
pairs = zip(here.parameters(), there.parameters(), strict=True)
print(max(float((one - other).abs().max()) for one, other in pairs))
"""


@pytest.mark.cuda
@NO_DEVICE
def test_a_programs_module_learns_on_cuda_devices(tmp_path: Path) -> None:
    """Run in a separate process, because this one may have used CUDA."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 1e-4
