"""Strategy `batch` on a device: a copy of the module computes there; parameters and sums stay in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.training.batch_runs import same, trained
from torch import nn
from torch.utils.data import TensorDataset

from cotswold import recipe as recipes
from cotswold import training
from cotswold.errors import MachineError, RecipeError
from cotswold.training.data import stores as stores_of_runs
from cotswold.training.data.indexed import DatasetSamples
from cotswold.training.data.user_datasets import samples_of
from cotswold.training.full_batch import strategy
from cotswold.training.full_batch.objective import DenseObjective, ModuleObjective, objective_from_recipe
from cotswold.training.jobs import restore
from cotswold.training.losses import CustomLoss, loss_on

NO_DEVICE = pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device")
CPU = torch.device("cpu")


def module_objective() -> ModuleObjective:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(40, 5, generator=generator), torch.arange(40) % 3)
    torch.manual_seed(1)
    samples = samples_of(data, 8)
    assert samples is not None
    given = DatasetSamples(samples)
    return ModuleObjective(
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), nn.functional.cross_entropy, given, given
    )


def dense_objective(blobs: Path, stores: Path) -> DenseObjective:
    found = training.open_store(recipes.load(blobs), stores)
    made = objective_from_recipe(stores_of_runs.with_store_shape(recipes.load(blobs), found), found)
    assert isinstance(made, DenseObjective)
    return made


@pytest.mark.parametrize("is_dense", [False, True])
def test_an_objective_that_was_moved_has_the_same_sums_at_every_point(
    is_dense: bool, blobs: Path, stores: Path
) -> None:
    here, there = (dense_objective(blobs, stores) if is_dense else module_objective() for _ in range(2))
    there.move_to(CPU)
    for point in range(3):
        generator = torch.Generator().manual_seed(point)
        value = torch.randn(here.parameters.shape, generator=generator)
        sums = []
        for each in (here, there):
            each.parameters.copy_(value)
            gradient = torch.ones_like(value)
            told = each.add(range(3, 20), gradient)
            sums.append((told, gradient, each.validate(0, 5), each.flops))
        assert sums[0][0] == sums[1][0] and sums[0][2:] == sums[1][2:]
        torch.testing.assert_close(sums[0][1], sums[1][1], rtol=1e-6, atol=1e-6)
        assert torch.equal(there.parameters, value)


class Shifted(nn.Module):
    """A layer with a frozen parameter and a buffer, which a resumed run fills."""

    def __init__(self) -> None:
        super().__init__()
        self.learnt = nn.Linear(5, 3)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("shift", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.learnt(x) * self.frozen + self.shift
        return found


def test_frozen_parameters_and_buffers_that_are_filled_after_the_move_reach_the_device() -> None:
    torch.manual_seed(0)
    data = samples_of(TensorDataset(torch.randn(12, 5), torch.arange(12) % 3), 4)
    assert data is not None
    here, there = (
        ModuleObjective(Shifted(), nn.functional.cross_entropy, DatasetSamples(data), None) for _ in range(2)
    )
    there.move_to(CPU)
    values = []
    for filled in range(2):
        state = {"frozen": torch.full((3,), 2.0 + filled), "shift": torch.arange(3.0) * filled}
        for each in (here, there):
            each.parameters.copy_(here.parameters)
            each.network.load_state_dict({**each.network.state_dict(), **state})
        values.append([each.add(range(12), None).value for each in (here, there)])
    assert values[0][0] == values[0][1] != values[1][0] == values[1][1]


def test_a_loss_with_tensors_moves_with_the_objective() -> None:
    given = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    moved = loss_on(CustomLoss(given), torch.device("meta"))
    assert isinstance(moved, CustomLoss) and isinstance(moved.function, nn.CrossEntropyLoss)
    assert moved.function.weight is not None and moved.function.weight.device.type == "meta"
    assert given.weight is not None and given.weight.device == CPU
    assert loss_on(nn.functional.cross_entropy, CPU) is nn.functional.cross_entropy


def test_a_moved_objective_computes_with_a_copy_of_its_module() -> None:
    objective = module_objective()
    objective.move_to(CPU)
    computed = []
    for each in objective.network.modules():
        each.register_forward_hook(lambda *_: computed.append("the module itself"))
    objective.add(range(8), torch.zeros_like(objective.parameters))
    objective.validate(0, 8)
    assert not computed
    assert all(each.grad is None for each in objective.network.parameters())


def test_a_run_on_a_device_has_the_bits_of_a_run_on_the_cpu(
    blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands for the device."""
    here = trained(blobs, tmp_path / "here", stores, "training.deterministic=true")
    monkeypatch.setattr(restore, "cuda_device_count", lambda: 1)
    monkeypatch.setattr(strategy, "select_device", lambda *_: CPU)
    there = trained(blobs, tmp_path / "there", stores, "training.device=cuda", "training.deterministic=true")
    assert same(here, there)


def test_workers_select_their_device(
    blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.device_count():
        pytest.skip("a CUDA device: the tests marked cuda run there")
    monkeypatch.setattr(restore, "cuda_device_count", lambda: 1)
    with pytest.raises(MachineError, match=r"worker-\d+ cannot compute on cuda: its host has 0"):
        trained(blobs, tmp_path / "there", stores, "cluster.workers=2", "training.device=cuda")


def test_a_device_that_this_machine_does_not_have_is_named_before_the_run(
    blobs: Path, stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "cuda_device_count", lambda: 0)
    with pytest.raises(MachineError, match='"cuda" is not available on this machine'):
        trained(blobs, tmp_path / "run", stores, "training.device=cuda")
    with pytest.raises(RecipeError, match="strategy batch computes on the CPU or on CUDA devices"):
        recipes.load(blobs, ["training.device=mps"])
    with pytest.raises(RecipeError, match="ranks of a worker share CPU memory"):
        recipes.load(blobs, ["training.device=cuda", "cluster.workers=2", "mesh.grid=1x2"])


@pytest.mark.cuda
@NO_DEVICE
@pytest.mark.parametrize("cluster", [(), ("cluster.workers=2",)])
def test_a_run_on_a_cuda_device_lowers_the_same_objective(
    cluster: tuple[str, ...], blobs: Path, stores: Path, tmp_path: Path
) -> None:
    here, there = (
        trained(blobs, tmp_path / device, stores, *cluster, f"training.device={device}")
        for device in ("cpu", "cuda")
    )
    for name in here.names:
        one, other = here.read(name), there.read(name)
        if one.is_floating_point() and "weight" in name:
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
