"""The schema of a cluster description: devices, hosts, links, prices.

Knows: names, units and limits of every field. Does not know: files, recipes, what is computed. The string
below a field is its documentation.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from cotswold.recipe.bounds import hidden_maximum, items
from cotswold.recipe.schema import Fraction, Section

Product = Literal["Wx", "W'x", "δx'"]
PRODUCTS: tuple[Product, ...] = get_args(Product)
MemoryBoundOp = Literal["pool", "pool'", "norm", "norm'", "residual", "maps", "update", "pack"]
WholeGradient = Literal["gradient"]


class Rate(Section):
    """A rate that was measured or published for one operation, on one shape or for any."""

    operation: Product | MemoryBoundOp | WholeGradient
    """Name of the operation.

    `Wx`, `W'x` and `δx'` are products, in GFLOP/s. `gradient`, in GFLOP/s of its products, is the value and
    gradient of a portion of samples with all related work; it replaces the products in strategy batch. The
    others are memory-bound, in GB/s: `pool` and `norm` are pooling and contrast normalisation, `pool'` and
    `norm'` their adjoints, `residual` the reconstruction error and its sums, `maps` other pointwise work,
    `update` momentum, step and normalisation of filters, `pack` copies into and out of messages.
    """
    rate: PositiveFloat
    """GFLOP/s of products, GB/s of memory-bound operations."""
    crowded: PositiveFloat | None = None
    """Rate of a device while all devices of its host compute (default: `rate`)."""
    fan_in: PositiveInt | None = None
    """Weights of a neuron, if the rate was measured for a shape."""
    neurons: PositiveInt | None = None
    """Neurons of a block."""
    images: PositiveInt | None = None
    """Images in the batch."""


class Device(Section):
    """The device of a rank: a GPU, a processor, a core."""

    name: str
    """Name of the device."""
    peak_gflops: PositiveFloat
    """GFLOP/s of a large dense product; efficiency is relative to it."""
    memory_gb: PositiveFloat
    """Memory in GB (1e9 bytes)."""
    bandwidth: PositiveFloat
    """Memory bandwidth in GB/s, reads and writes together."""
    cache_mb: NonNegativeFloat = 0.0
    """Last-level cache in MB (1e6 bytes); a working set that fits runs at `cache_bandwidth`; 0 for none."""
    cache_bandwidth: PositiveFloat | None = None
    """Bandwidth of the cache in GB/s; required with `cache_mb`."""
    launch_us: NonNegativeFloat = 0.0
    """Microseconds before an operation begins."""
    update_passes: NonNegativeFloat = 4.0
    """Number of passes of an update over the weights.

    Filters and momentum are read and written if the update runs while a block is in cache. Gradient and
    normalisation may be separate passes. Use 0 if the rate of `δx'` includes all of it.
    """
    rates: list[Rate]
    """Rates by operation and shape; each product needs at least one."""

    @model_validator(mode="after")
    def _complete(self) -> Device:
        for product in PRODUCTS:
            if not any(rate.operation == product for rate in self.rates):
                raise ValueError(f"device.rates must have at least one rate for {product}")
        for rate in self.rates:
            if rate.operation in PRODUCTS and rate.rate > self.peak_gflops:
                raise ValueError(
                    f"device.peak_gflops is {self.peak_gflops:g}, but device.rates has {rate.rate:g} for "
                    f"{rate.operation}; no product is faster than the peak"
                )
        if self.cache_mb and self.cache_bandwidth is None:
            raise ValueError("device.cache_mb needs device.cache_bandwidth, GB/s")
        return self


class Link(Section):
    """A link between devices, hosts or switches, equally fast in both directions."""

    latency_us: NonNegativeFloat
    """Latency in microseconds of an empty message from one end to the other."""
    gbits: PositiveFloat
    """Gbit/s in each direction."""
    offload: float = 1.0
    """Fraction of a message's time during which the device can compute.

    1 if the card moves the bytes by itself, 0 if the computing processor moves them.
    """

    @model_validator(mode="after")
    def _part(self) -> Link:
        if not 0 <= self.offload <= 1:
            raise ValueError(f"offload must be a fraction from 0 to 1, got {self.offload}")
        return self


class Switch(Section):
    """Switches to which hosts are attached; uplinks join them to a non-blocking fabric."""

    hosts: PositiveInt
    """Hosts at a switch."""
    uplink: Link
    """Link from a switch to the fabric."""


class Groups(Section):
    """Groups of hosts, with a switch between each pair of groups (Aberdeen et al. 2000, figure 1).

    A host has one card for each other group, and reaches its own group over any of their switches.
    """

    hosts: PositiveInt
    """Hosts of a group; the cluster has two or more groups of equal size."""


class Server(Section):
    """An additional first host with the coordinator, the parameter servers, and workers on its devices."""

    gbits: PositiveFloat
    """Gbit/s of each of its cards, in each direction."""
    switches: Annotated[list[list[NonNegativeInt]], items(64)]
    """One card at each of these switches, named by the two groups that they join: `[[0, 1], [2, 3]]`."""


class Price(Section):
    """Prices of the cluster."""

    host_dollars: PositiveFloat | None = None
    """Price in US dollars of a bought host with its devices and its share of the network."""
    host_dollars_per_hour: PositiveFloat | None = None
    """Price in US dollars per hour of a rented host."""


class Cluster(Section):
    """A cluster of equal hosts."""

    name: str
    """Short name."""
    about: str
    """Sources of all numbers."""
    hosts: Annotated[int, Field(gt=0), hidden_maximum(1 << 16)]
    """Number of hosts."""
    devices: Annotated[int, Field(gt=0), hidden_maximum(1 << 12)]
    """Devices of a host; ranks fill host after host. More ranks than devices share them."""
    threads: Fraction | None = None
    """Speed of each additional core of a rank, as a fraction of one core's rates.

    For devices that are cores, if there are fewer ranks than cores. None if each rank has one device.
    """
    host_memory_gb: PositiveFloat | None = None
    """Memory in GB (1e9 bytes) that all devices of a host share, if they have none of their own."""
    host_bandwidth: PositiveFloat | None = None
    """Total memory bandwidth in GB/s of all devices of a host, if they share it."""
    device: Device
    """Device of a rank."""
    inside: Link | None = None
    """Link between the devices of a host; required for more than one rank per host.

    Each device has its own port.
    """
    network: Link | None = None
    """Network card of a host, which its devices share. Required for more than one host."""
    switch: Switch | None = None
    """Switches, unless the network is non-blocking."""
    groups: Groups | None = None
    """Groups of hosts with several cards; then `network` is each card, and `switch` must be absent."""
    server: Server | None = None
    """An additional host, if there are groups; only strategy batch uses it."""
    price: Price = Price()
    """Prices."""

    @model_validator(mode="after")
    def _check_links(self) -> Cluster:
        if self.hosts > 1 and self.network is None:
            raise ValueError("a cluster of several hosts needs [network], the card of a host")
        if self.devices > 1 and self.inside is None:
            raise ValueError("a host of several devices needs [inside], the link between them")
        groups = self.groups
        if groups is None:
            if self.server is not None:
                raise ValueError(
                    "[server] has cards at switches between groups; describe [groups], or remove [server]"
                )
            return self
        if self.switch is not None or self.hosts % groups.hosts or self.hosts == groups.hosts:
            raise ValueError(
                f"groups.hosts is {groups.hosts} for {self.hosts} hosts; the cluster must have two or more "
                "whole groups, and no [switch]"
            )
        count = self.hosts // groups.hosts
        for pair in [] if self.server is None else self.server.switches:
            if len(pair) != 2 or pair[0] == pair[1] or max(pair) >= count:
                raise ValueError(f"server.switches has {pair}; name two of the groups 0 to {count - 1}")
        return self

    @property
    def size(self) -> int:
        """Total number of devices, without those of `server`."""
        return self.hosts * self.devices

    @property
    def workers(self) -> int:
        """Total number of devices."""
        return self.size + (self.devices if self.server is not None else 0)
