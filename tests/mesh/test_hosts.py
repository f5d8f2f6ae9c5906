"""Grids over several hosts (network namespaces): the bytes on the wire agree with the mesh's counters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cotswold.bench.ranks.pool import RankPool
from cotswold.bench.ranks.rank import PoolRank
from cotswold.mesh import Mesh, partition
from cotswold.testing import Hosts, why_not
from cotswold.testing.hosts import HEADER_BYTES

pytestmark = pytest.mark.skipif(
    why_not() is not None, reason="needs root and ip/tc (Debian's iproute2) to make hosts in namespaces"
)
SUMMED, GATHERED, CALLS = 300_000, 100_000, 5


def _work(rank: PoolRank) -> tuple[int, int]:
    """Return the bytes counted by the mesh for sums, maxima, gathering, and a module's calls and
    gradients.
    """
    if "partitioned" not in rank.cache:
        torch.manual_seed(0)
        rank.cache["partitioned"] = partition(
            nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.Conv2d(64, 64, 3)), "1x3"
        )
    mesh, partitioned = Mesh.of("1x3"), rank.cache["partitioned"]
    mesh.take_bytes_sent()
    for _ in range(CALLS):
        mesh.sum_in_place(torch.ones(SUMMED))
        mesh.largest_in_place(torch.ones(SUMMED // 2, dtype=torch.int64))
        mesh.gather(torch.ones(GATHERED))
    of_mesh = mesh.take_bytes_sent()
    for _ in range(CALLS):
        partitioned(torch.ones(2, 4, 20, 33)).square().mean().backward()
    return of_mesh, mesh.take_bytes_sent()


@pytest.mark.soak
def test_bytes_that_a_mesh_counts_are_those_on_the_wire_sums_and_gradients_too() -> None:
    with Hosts(3) as hosts, RankPool(3, hosts=hosts) as pool:
        pool.call(_work)  # which connects the ranks
        before = hosts.settled_traffic()
        counted = pool.call(_work)
        wire = hosts.settled_traffic().since(before)
    assert len(set(counted)) == 1
    of_mesh, of_partitioned = counted[0]
    # a ring of three: 2 (P - 1) n of a sum, P (P - 1) n of what is gathered
    assert of_mesh == CALLS * (4 * 4 * SUMMED + 4 * 8 * (SUMMED // 2) + 6 * 4 * GATHERED)
    assert of_partitioned > CALLS * 4 * 4 * (4 * 64 * 9 + 64 * 64 * 9)
    assert abs((wire.sent_bytes - wire.sent_packets * HEADER_BYTES) / (of_mesh + of_partitioned) - 1) < 0.01
