"""Description of this machine as a cluster, with tiny stacks."""

from __future__ import annotations

import pytest
from tests.support.bench.small_cases import tiny_work

from cotswold.bench.machine.description import described
from cotswold.simulate import Cluster


@pytest.mark.soak
def test_a_measured_machine_is_a_cluster_with_rates_of_every_operation() -> None:
    values = described("here", [tiny_work()], cores=2, memory_bytes=10**9, rounds=1)
    cluster = Cluster.model_validate(values)
    assert (cluster.hosts, cluster.devices) == (1, 2)
    found = {(rate.operation, rate.fan_in) for rate in cluster.device.rates}
    operations = {"Wx", "W'x", "δx'", "pool", "pool'", "residual", "maps", "pack"}
    assert {(name, fan_in) for name in operations for fan_in in (108, 36)} <= found
    assert ("norm", 108) in found and ("norm", 36) not in found
    assert cluster.inside is not None and cluster.inside.gbits > 0
