"""A device model: the time of an operation is the larger of its arithmetic and its memory traffic.

Knows: measured rates, bandwidths, the cache (Chilimbi et al. 2014, section 3.2.4). Does not know: messages,
other ranks, preceding and following operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from cotswold.simulate.hardware.cluster import Device, MemoryBoundOp, Product, Rate

GIGA = 1e9


@dataclass(frozen=True)
class RateShape:
    """Key of rates: weights of a neuron, neurons of a block, images of the batch."""

    fan_in: int
    neurons: int
    images: int


@dataclass(frozen=True)
class DeviceModel:
    """A device, and its share of the host's memory bandwidth."""

    device: Device
    bandwidth: float
    contention: float = 0.0
    """Contention from 0 (no other device of the host computes) to 1 (all do)."""
    speedup: float = 1.0
    """Speedup over one device, if a rank has several cores."""

    def product(
        self, operation: Product, shape: RateShape, flops: int, moved_bytes: int, held_bytes: int
    ) -> float:
        """Seconds of a product that moves ``moved_bytes`` of a working set of ``held_bytes``."""
        if not flops:
            return 0.0
        rate = self._rate(operation, shape)
        assert rate is not None, "the schema requires a rate for every product"
        arithmetic = flops / (self.speedup * rate * GIGA)
        return self.launch + max(arithmetic, moved_bytes / self.bytes_per_second(held_bytes))

    def memory_bound(
        self, operation: MemoryBoundOp, shape: RateShape, moved_bytes: float, held_bytes: int
    ) -> float:
        """Seconds of a memory-bound operation."""
        if not moved_bytes:
            return 0.0
        rate = self._rate(operation, shape)
        bytes_per_second = self.bytes_per_second(held_bytes) if rate is None else self.speedup * rate * GIGA
        return self.launch + moved_bytes / bytes_per_second

    def gradient(self, shape: RateShape, flops: int) -> float | None:
        """Seconds of value and gradient of a portion, if they were measured together; otherwise None."""
        rate = self._rate("gradient", shape)
        return None if rate is None else self.launch + flops / (self.speedup * rate * GIGA)

    @property
    def launch(self) -> float:
        """Seconds before an operation begins."""
        return self.device.launch_us * 1e-6

    def bytes_per_second(self, held_bytes: int) -> float:
        """Bytes per second of the cache if the working set fits into it, otherwise of memory.

        A larger working set that is read repeatedly in order is evicted before its reuse.
        """
        if self.device.cache_bandwidth is not None and held_bytes <= self.device.cache_mb * 1e6:
            return self.device.cache_bandwidth * GIGA
        return self.bandwidth * GIGA

    def _rate(self, operation: str, shape: RateShape) -> float | None:
        """Rate of the nearest shape, by the ratios of its numbers."""
        rates = [rate for rate in self.device.rates if rate.operation == operation]
        if not rates:
            return None
        nearest = min(rates, key=lambda rate: _distance(rate, shape))
        alone, crowded = nearest.rate, nearest.crowded
        return alone if crowded is None else alone + self.contention * (crowded - alone)


def _distance(rate: Rate, shape: RateShape) -> float:
    pairs = (
        (rate.fan_in, shape.fan_in),
        (rate.neurons, shape.neurons),
        (rate.images, shape.images),
    )
    return sum(log(known / wanted) ** 2 for known, wanted in pairs if known is not None)
