"""Small clusters and networks of stacks, drawn by hypothesis.

Knows: the schema of clusters, geometry. Does not know: the tests.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from cotswold.geometry import BlockLocal, MapShape, Smoothing, StackGeometry, Window
from cotswold.simulate import Cluster, StackWork


def cluster(hosts: int = 2, devices: int = 1, **changes: Any) -> Cluster:
    """Return devices of 1 GFLOP/s (or the given rates) with links of one byte per nanosecond
    without latency.
    """
    rates = [{"operation": name, "rate": 1.0} for name in ("Wx", "W'x", "δx'")]
    device: dict[str, Any] = {
        "name": "d",
        "peak_gflops": 1.0,
        "memory_gb": 1.0,
        "bandwidth": 1.0,
        "rates": rates,
    }
    device |= changes.pop("device", {})
    device["peak_gflops"] = max(rate["rate"] for rate in device["rates"])
    link = {"latency_us": 0.0, "gbits": 8.0}
    values = {"name": "c", "about": "made up", "hosts": hosts, "devices": devices, "device": device}
    values |= {"inside": link, "network": link} | changes
    return Cluster.model_validate(values)


def link(latency_us: float = 0.0, gbits: float = 8.0, offload: float = 1.0) -> dict[str, float]:
    """Return a link of a cluster file; 8 Gbit/s are 1e9 bytes per second."""
    return {"latency_us": latency_us, "gbits": gbits, "offload": offload}


def stack(below: MapShape, field: int, step: int, maps: int, smoothing: Smoothing) -> StackGeometry:
    """Return a stack of blocks of 2 x 2."""
    window = Window(field, step)
    return StackGeometry(BlockLocal(below, window, window, 2, 2, maps), smoothing, smoothing)


@st.composite
def works(draw: DrawFn) -> StackWork:
    """Draw one or two small stacks."""
    size = draw(st.integers(9, 16))
    lower = stack(MapShape(draw(st.integers(1, 3)), size, size), 4, draw(st.integers(1, 3)), 2, _smooth(3))
    stacks = [lower]
    if draw(st.booleans()):
        stacks.append(stack(lower.output, 3, 1, 3, _smooth(draw(st.sampled_from([1, 3])))))
    return StackWork(tuple(stacks), draw(st.integers(1, 4)), draw(st.sampled_from(["greedy", "joint"])))


def _smooth(size: int) -> Smoothing:
    return Smoothing(size, keep=True)
