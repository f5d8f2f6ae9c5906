"""Meshes: one for a grid, parts of a job, single processes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.networks import NETWORKS, inputs
from tests.support.mesh.ranks import on_ranks
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from cotswold.errors import UserError
from cotswold.geometry import Box, ExchangePlan
from cotswold.mesh import DistributedMap, Exchange, Mesh, partition
from cotswold.mesh.ranks.process_groups import process_group, timeout_of
from cotswold.mesh.transport.connect import SOCKETS_SWITCH, SWITCH


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
    partitioned = partition(module, mesh)
    out = partitioned(x)
    (out**2).sum().backward()
    (module(x) ** 2).sum().backward()
    whole = out.full_tensor() if isinstance(out, DistributedMap) else out
    apart = [(whole - module(x)).abs().max().item()]
    for ours, own in zip(partitioned.parameters(), module.parameters(), strict=True):
        assert own.grad is not None
        apart.append(((ours.grad.full_tensor() - own.grad).abs().max() / own.grad.abs().max()).item())
    return float(max(apart))


def _after_an_evaluation() -> list[float]:
    """Return gradients of a partitioned module, and of a copy, both first called in inference mode."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 5 * 7, 3))
    whole = copy.deepcopy(module)
    partitioned, x = partition(module, "1x2"), torch.randn(2, 1, 5, 7)
    with torch.inference_mode():
        partitioned(x)
    whole(x).square().sum().backward()
    found = []
    for one in (partitioned, copy.deepcopy(partitioned)):
        one(x).square().sum().backward()
        grads = [parameter.grad for parameter in one.parameters()]
        wanted = [parameter.grad for parameter in whole.parameters()]
        wholes = [getattr(grad, "full_tensor", lambda grad=grad: grad)() for grad in grads]
        found.append(max(float((a - b).abs().max()) for a, b in zip(wholes, wanted, strict=True)))
    return found


@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_partitioned_module_and_its_copy_learn_after_an_evaluation(switch: str) -> None:
    for differences in on_ranks(2, _switched, switch, _after_an_evaluation):
        assert max(differences) < 1e-4


def _switched(switch: str, work: Callable[..., Any], *arguments: Any) -> Any:
    """Run work on ranks that pass messages through memory, or not."""
    os.environ[SWITCH] = switch
    try:
        return work(*arguments)
    finally:
        del os.environ[SWITCH]


def _beside_messages_of_the_user(grid: str) -> bool:
    """Check an exchange between two ranks together with messages of the user with all possible tags."""
    halves = (Box((0, 0), (4, 2)), Box((0, 2), (4, 4)))
    exchange = Exchange(Mesh.of(grid), ExchangePlan(halves, (Box((0, 0), (4, 3)), Box((0, 1), (4, 4)))))
    rank = exchange.mesh.rank
    values = [torch.full((4,), 99.0) for _ in range(4)]
    verb = dist.isend if rank == 0 else dist.irecv
    begun = [verb(one, 1 - rank, tag=tag) for tag, one in enumerate(values)] if rank == 0 else []
    window = exchange.start(torch.full((1, 1, 4, 2), float(rank))).finish()
    begun += [verb(one, 1 - rank, tag=tag) for tag, one in enumerate(values)] if rank == 1 else []
    for work in begun:
        assert work is not None
        work.wait()
    wanted = [[0, 0, 1], [0, 1, 1]][rank]
    return window[0, 0].tolist() == [wanted] * 4 and all(one.eq(99).all() for one in values)


@pytest.mark.parametrize("grid", ["1x2", "2x1"])
def test_messages_of_the_user_are_not_taken_for_those_of_an_exchange(grid: str) -> None:
    assert on_ranks(2, _switched, "0", _beside_messages_of_the_user, grid) == [True] * 2


def _groups() -> bool:
    meshes = [Mesh.of("2x2"), Mesh.of("1x4"), Mesh.of(DeviceMesh("cpu", torch.arange(4).reshape(4, 1)))]
    found = [mesh.group for mesh in meshes]
    waits = {timeout_of(group) for group in (None, *found)}
    return None not in found and len({id(one) for one in found}) == 3 and len(waits) == 1


def test_every_mesh_has_a_group_of_its_own_that_waits_as_long_as_the_jobs() -> None:
    assert all(on_ranks(4, _groups))


def _of_other_sizes(store: str) -> str:
    """Return the error of a rank over Gloo if each expects a message of another size."""
    os.environ[SOCKETS_SWITCH] = "0"
    rank = dist.get_rank()
    dist.destroy_process_group()
    files = dist.FileStore(store, 2)  # type: ignore[attr-defined]  # torch exports it untyped
    dist.init_process_group("gloo", store=files, rank=rank, world_size=2, timeout=timedelta(seconds=15))
    halves = (Box((0, 0), (4, 2)), Box((0, 2), (4, 4)))
    exchange = Exchange(Mesh.of("1x2"), ExchangePlan(halves, (Box.whole((4, 4)),) * 2))
    try:
        window = exchange.start(torch.full((2 + rank, 1, 4, 2), 1.0)).finish()
    except RuntimeError as error:
        return type(error).__name__
    finally:
        del os.environ[SOCKETS_SWITCH]
    return str(window)


@pytest.mark.soak
def test_a_message_of_another_size_between_hosts_is_never_taken_for_the_one_expected(tmp_path: Path) -> None:
    found = on_ranks(2, _switched, "0", _of_other_sizes, str(tmp_path / "store"))
    assert found == ["RuntimeError"] * 2


def _words_without_a_backend(store: str) -> list[str]:
    """Return the error if the job's group is for CUDA only (Gloo stands for NCCL, which is not available)."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    files = dist.FileStore(store, 2)  # type: ignore[attr-defined]  # torch exports it untyped
    dist.init_process_group("cuda:gloo", store=files, rank=rank, world_size=2)
    with pytest.raises(UserError) as refused:
        partition(nn.Conv2d(1, 1, 3), "1x2")
    group = process_group([0, 1], 2, "cuda")
    total = torch.ones(3)
    dist.all_reduce(total, group=group)
    return [str(refused.value), str(total.tolist())]


def test_a_job_for_cuda_alone_needs_a_backend_for_maps_on_the_cpu_and_gets_one_for_its_checks(
    tmp_path: Path,
) -> None:
    for words, total in on_ranks(2, _words_without_a_backend, str(tmp_path / "store")):
        assert 'call init_process_group("cpu:gloo,cuda:gloo")' in words
        assert total == "[2.0, 2.0, 2.0]"


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
partitioned = mesh.partition(model, "1x1")
optimiser = torch.optim.Adam(partitioned.parameters())
partitioned(torch.rand(2, 1, 4, 4)).sum().backward()
torch.nn.utils.clip_grad_norm_(partitioned.parameters(), 1.0)
optimiser.step()
assert not dist.is_initialized()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh.partition(nn.Flatten(), "1x1")(torch.rand(2, 1, 4, 4))
"""


def test_a_process_that_is_alone_can_still_become_a_rank() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True, timeout=55)
