"""The simulator and the mesh move the same bytes: real ranks, whose messages are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from tests.mesh.ranks import on_ranks

from cotswold.bench import updates
from cotswold.bench.rank import Rank
from cotswold.geometry import BlockLocal, Grid, MapShape, Smoothing, StackGeometry, Window
from cotswold.simulate import Cluster, StackWork, predict
from cotswold.simulate.stacks import SCALARS_BYTES


def uneven() -> StackWork:
    """Two stacks of 7 x 6 and 4 x 3 blocks."""
    first = BlockLocal(MapShape(3, 19, 17), Window(7, 2), Window(7, 2), 2, 2, 4)
    lower = StackGeometry(first, Smoothing(3), Smoothing(3))
    second = BlockLocal(lower.output, Window(3, 1, 1, 1), Window(4), 2, 2, 4)
    return StackWork((lower, StackGeometry(second, Smoothing(3, keep=True), Smoothing(1))), 8, "joint")


def sent_bytes(work: StackWork, grid: Grid) -> int:
    """What this rank sends in an update."""
    from cotswold.mesh.exchange import Exchange

    rank, sent = Rank(), 0
    updates.prepare(rank, work, grid)
    real = Exchange.start

    def counting(exchange: Exchange, part: Any, into: Any = None) -> Any:
        nonlocal sent
        points = sum(each.box.size for each in exchange.plan.sends(exchange.mesh.rank))
        sent += points * part.shape[0] * part.shape[1] * part.element_size()
        return real(exchange, part, into)

    with patch.object(Exchange, "start", counting):
        rank.actions["update"]()
    return sent


@pytest.mark.parametrize("strategy", ["greedy", "joint"])
@pytest.mark.parametrize("grid", [Grid(2, 2), Grid(1, 3)], ids=str)
def test_predicted_bytes_are_those_that_ranks_send(strategy: Any, grid: Grid) -> None:
    work = replace(uneven(), strategy=strategy)
    link = {"latency_us": 1.0, "gbits": 1.0}
    rates = [{"operation": name, "rate": 1.0} for name in ("Wx", "W'x", "δx'")]
    device = {"name": "d", "peak_gflops": 1.0, "memory_gb": 1.0, "bandwidth": 1.0, "rates": rates}
    values = {"name": "c", "about": "made up", "hosts": 4, "devices": 1, "device": device, "network": link}
    found = predict(Cluster.model_validate(values), work, grid)
    steps = len(work.stacks) if strategy == "joint" else 1
    scalars = steps * 2 * (grid.size - 1) * SCALARS_BYTES
    assert sum(on_ranks(grid.size, sent_bytes, work, grid)) == found.wire_bytes - scalars
