"""Meshes: one for a grid, parts of a job, processes that are alone."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.mesh.networks import NETWORKS, inputs
from tests.mesh.ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from cotswold.errors import UserError
from cotswold.mesh import DistributedMap, Mesh, partition
from cotswold.mesh.channels import SWITCH


def _same() -> list[bool]:
    first = Mesh.of("1x2")
    part = DeviceMesh("cpu", torch.arange(2).reshape(2, 1))
    return [Mesh.of("1x2") is first, Mesh.of("2x1") is not first, Mesh.of(part) is Mesh.of(part)]


def test_a_grid_of_a_job_has_one_mesh() -> None:
    assert on_ranks(2, _same) == [[True] * 3] * 2


def test_meshes_of_a_job_that_has_ended_are_not_those_of_the_next() -> None:
    for _ in range(2):
        assert on_ranks(2, _same) == [[True] * 3] * 2


@pytest.mark.parametrize("name", ["residual", "classifier", "local"])
def test_a_part_of_a_job_computes_while_others_do_not_take_part(name: str) -> None:
    assert max(on_ranks(6, _on_a_part, name)) < 1e-11


def _on_a_part(name: str) -> float:
    torch.manual_seed(3)
    places = torch.tensor([[1, 2], [4, 5]])
    mesh = DeviceMesh("cpu", places, mesh_dim_names=("rows", "columns"))  # all ranks of the job make it
    if dist.get_rank() not in places:
        return 0.0
    module, x = NETWORKS[name]().double().eval(), inputs(name)
    twin = partition(module, mesh)
    out = twin(x)
    (out**2).sum().backward()
    (module(x) ** 2).sum().backward()
    whole = out.full_tensor() if isinstance(out, DistributedMap) else out
    apart = [(whole - module(x)).abs().max().item()]
    for ours, own in zip(twin.parameters(), module.parameters(), strict=True):
        assert own.grad is not None
        apart.append(((ours.grad.full_tensor() - own.grad).abs().max() / own.grad.abs().max()).item())
    return float(max(apart))


def _after_an_evaluation() -> list[float]:
    """Gradients of a twin, and of a copy of it, that were called in inference mode first."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 5 * 7, 3))
    whole = copy.deepcopy(module)
    twin, x = partition(module, "1x2"), torch.randn(2, 1, 5, 7)
    with torch.inference_mode():
        twin(x)
    whole(x).square().sum().backward()
    found = []
    for one in (twin, copy.deepcopy(twin)):
        one(x).square().sum().backward()
        grads = [parameter.grad for parameter in one.parameters()]
        wanted = [parameter.grad for parameter in whole.parameters()]
        wholes = [getattr(grad, "full_tensor", lambda grad=grad: grad)() for grad in grads]
        found.append(max(float((a - b).abs().max()) for a, b in zip(wholes, wanted, strict=True)))
    return found


@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_twin_and_its_copy_learn_after_an_evaluation(switch: str) -> None:
    for differences in on_ranks(2, _switched, switch, _after_an_evaluation):
        assert max(differences) < 1e-4


def _switched(switch: str, work: Callable[[], Any]) -> Any:
    """Work on ranks that pass messages through memory, or not."""
    os.environ[SWITCH] = switch
    try:
        return work()
    finally:
        del os.environ[SWITCH]


def _words_of_disorder() -> str:
    with pytest.raises(UserError) as refused:
        Mesh.of(DeviceMesh("cpu", torch.tensor([[1, 0]])))
    return str(refused.value)


def test_ranks_that_do_not_rise_are_refused() -> None:
    assert all("[1, 0]" in words for words in on_ranks(2, _words_of_disorder))


ALONE = """
import torch
import torch.distributed as dist
from torch import nn
from cotswold import mesh

model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
twin = mesh.partition(model, "1x1")
optimiser = torch.optim.Adam(twin.parameters())
twin(torch.rand(2, 1, 4, 4)).sum().backward()
torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
optimiser.step()
assert not dist.is_initialized()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh.partition(nn.Flatten(), "1x1")(torch.rand(2, 1, 4, 4))
"""


def test_a_process_that_is_alone_can_still_become_a_rank() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=55)
