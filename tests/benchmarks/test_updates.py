"""The simulator and the mesh move the same bytes: real ranks with counted messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.mesh.ranks import on_ranks
from torch import nn

from cotswold.bench.ranks.rank import PoolRank
from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, Window
from cotswold.mesh import Mesh, partition
from cotswold.simulate import Cluster, LayerWork, StackWork, predict
from cotswold.simulate.workloads.layers import LayerGeometry
from lib.predictions import updates


def uneven() -> StackWork:
    """Return two stacks of 7 x 6 and 4 x 3 blocks."""
    first = BlockLocal(MapShape(3, 19, 17), Window(7, 2), Window(7, 2), 2, 2, 4)
    lower = StackGeometry(first, Smoothing(3), Smoothing(3))
    second = BlockLocal(lower.output, Window(3, 1, 1, 1), Window(4), 2, 2, 4)
    return StackWork((lower, StackGeometry(second, Smoothing(3, keep=True), Smoothing(1))), 8, "joint")


def sent_bytes(work: StackWork, grid: Grid) -> int:
    """Return the bytes that all ranks send in an update, as counted by the mesh."""
    rank, mesh = PoolRank(), Mesh.of(grid)
    updates.prepare(rank, work, grid)
    mesh.take_bytes_sent()
    rank.actions["update"]()
    return mesh.take_bytes_sent()


def sent_by_convolutions(grid: Grid) -> int:
    """Return the bytes that all ranks send for the gradients of two convolutions, as counted on
    every rank.
    """
    torch.manual_seed(0)
    layers = [nn.Conv2d(count, 8, 3, padding=1, bias=False) for count in (3, 8)]
    model, x = partition(nn.Sequential(*layers), grid), torch.rand(2, 3, 12, 12)
    for _ in range(3):  # at the third call no values are compared
        Mesh.of(grid).take_bytes_sent()
        model(x).local.sum().backward()
    return Mesh.of(grid).take_bytes_sent()


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["greedy", "joint"])
@pytest.mark.parametrize("grid", [Grid(2, 2), Grid(1, 3)], ids=str)
def test_predicted_bytes_are_those_that_ranks_send(strategy: Any, grid: Grid) -> None:
    work = replace(uneven(), strategy=strategy)
    found = predict(_hosts(grid.size), work, grid)
    assert on_ranks(grid.size, sent_bytes, work, grid) == [found.wire_bytes] * grid.size


@pytest.mark.soak
@pytest.mark.parametrize("grid", [Grid(2, 2), Grid(1, 2), Grid(2, 1)], ids=str)
def test_predicted_bytes_of_convolutions_are_those_that_ranks_send_gradients_too(grid: Grid) -> None:
    window = Window(3, 1, 1, 1)
    below = LayerGeometry("convolution", MapShape(3, 12, 12), window, window, 8)
    work = LayerWork((below, LayerGeometry("convolution", below.output, window, window, 8)), 2)
    found = predict(_hosts(grid.size), work, grid)
    assert on_ranks(grid.size, sent_by_convolutions, grid) == [found.wire_bytes] * grid.size


def _hosts(count: int) -> Cluster:
    link = {"latency_us": 1.0, "gbits": 1.0}
    rates = [{"operation": name, "rate": 1.0} for name in ("Wx", "W'x", "δx'")]
    device = {"name": "d", "peak_gflops": 1.0, "memory_gb": 1.0, "bandwidth": 1.0, "rates": rates}
    values = {"name": "c", "about": "made up", "hosts": count, "devices": 1, "device": device}
    return Cluster.model_validate(values | {"network": link})
