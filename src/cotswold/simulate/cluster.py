"""The schema of a cluster: devices, hosts, links, a price.

Knows: names, units and limits of every field. Does not know: files, recipes, what is computed. A comment
string below a field is its documentation.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from cotswold.recipe.bounds import at_most, items
from cotswold.recipe.schema import Fraction, Section

Product = Literal["Wx", "W'x", "δx'"]
PRODUCTS: tuple[Product, ...] = get_args(Product)
Passing = Literal["pool", "pool'", "norm", "norm'", "residual", "maps", "update", "pack"]
Whole = Literal["gradient"]


class Rate(Section):
    """A rate that was measured or published for one operation, on one shape or for any."""

    operation: Product | Passing | Whole
    """`Wx`, `W'x` and `δx'` are products, in GFLOP/s. `gradient`, value and gradient of a portion of patterns
    with all that belongs to it, in GFLOP/s of its products, stands for these in strategy batch. The others
    pass over memory, in GB/s: `pool` and `norm` are pooling and contrast normalisation, `pool'` and `norm'`
    their adjoints, `residual` the error of reconstruction and its sums, `maps` what else is done value by
    value, `update` momentum, step and normalisation of filters, `pack` copies into and out of messages."""
    rate: PositiveFloat
    """GFLOP/s of products, GB/s of what passes over memory."""
    crowded: PositiveFloat | None = None
    """The rate that a device keeps while all devices of its host compute; `rate` by default."""
    fan_in: PositiveInt | None = None
    """Weights of a neuron, where the rate was measured for a shape."""
    neurons: PositiveInt | None = None
    """Neurons of a block."""
    images: PositiveInt | None = None
    """Pictures in the batch."""


class Device(Section):
    """What one rank computes on: a GPU, a processor, a core."""

    name: str
    """What it is called."""
    peak_gflops: PositiveFloat
    """The rate of a large dense product; efficiency is measured against it."""
    memory_gb: PositiveFloat
    """Memory, 1e9 bytes."""
    bandwidth: PositiveFloat
    """GB/s of memory, read and written."""
    cache_mb: NonNegativeFloat = 0.0
    """Last cache, 1e6 bytes; what a rank works on runs at `cache_bandwidth` if it fits; 0 for none."""
    cache_bandwidth: PositiveFloat | None = None
    """GB/s of the cache; needed where there is one."""
    launch_us: NonNegativeFloat = 0.0
    """Microseconds before an operation begins."""
    update_passes: NonNegativeFloat = 4.0
    """How often an update passes over the weights: read and write filters and momentum where it is done while
    a block is in cache; more where gradient and normalisation are passes of their own; 0 where the rate of
    `δx'` was measured with all of it."""
    rates: list[Rate]
    """Rates by operation and shape; each product needs at least one."""

    @model_validator(mode="after")
    def _whole(self) -> Device:
        for product in PRODUCTS:
            if not any(rate.operation == product for rate in self.rates):
                raise ValueError(f"device.rates has none for {product}; give each product at least one")
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
    """A way between devices, hosts or switches; as fast in either direction."""

    latency_us: NonNegativeFloat
    """Microseconds from one end to the other for a message of no length."""
    gbits: PositiveFloat
    """Gbit/s in each direction."""
    offload: float = 1.0
    """The part of a message's time during which the device can compute: 1 where cards move bytes by
    themselves, 0 where the processor that computes moves them."""

    @model_validator(mode="after")
    def _part(self) -> Link:
        if not 0 <= self.offload <= 1:
            raise ValueError(f"offload is a part, from 0 to 1, not {self.offload}")
        return self


class Switch(Section):
    """Hosts stand at switches, which are joined by uplinks to a fabric that never blocks."""

    hosts: PositiveInt
    """Hosts at a switch."""
    uplink: Link
    """The way from a switch to the fabric."""


class Groups(Section):
    """Hosts stand in groups, with a switch between each two groups: a host has as many cards as there are
    other groups, and reaches its own group over any of their switches (Aberdeen et al. 2000, figure 1)."""

    hosts: PositiveInt
    """Hosts of a group; the cluster has two groups or more of as many."""


class Server(Section):
    """A further host, which is the first: the coordinator and the parameter servers are there, and workers
    on its devices."""

    gbits: PositiveFloat
    """Gbit/s of each of its cards, in each direction."""
    switches: Annotated[list[list[NonNegativeInt]], items(64)]
    """A card at each of these switches, named by the two groups between which it is: `[[0, 1], [2, 3]]`."""


class Price(Section):
    """What the cluster costs."""

    host_dollars: PositiveFloat | None = None
    """Price of a bought host with its devices and its share of the network, US dollars."""
    host_dollars_per_hour: PositiveFloat | None = None
    """Price of a rented host, US dollars an hour."""


class Cluster(Section):
    """A whole cluster of equal hosts."""

    name: str
    """A short name."""
    about: str
    """Where every number is from."""
    hosts: Annotated[int, Field(gt=0), at_most(1 << 16)]
    """How many."""
    devices: Annotated[int, Field(gt=0), at_most(1 << 12)]
    """Devices of a host; ranks fill host after host. More ranks than devices share them."""
    threads: Fraction | None = None
    """Where devices are cores: fewer ranks than cores have several each, and a core adds this part of its
    rates. Nothing where a rank has one device."""
    host_memory_gb: PositiveFloat | None = None
    """Memory that all devices of a host share, 1e9 bytes, where none has its own."""
    host_bandwidth: PositiveFloat | None = None
    """GB/s of memory that all devices of a host have together, where they share it."""
    device: Device
    """A device."""
    inside: Link | None = None
    """Between the devices of a host; each has a port of its own. Needed for more than one rank a host."""
    network: Link | None = None
    """A host's network card, which its devices share. Needed for more than one host."""
    switch: Switch | None = None
    """Switches, where the network is not one that never blocks."""
    groups: Groups | None = None
    """Groups of hosts with several cards; then `network` is each card, and there is no `switch`."""
    server: Server | None = None
    """A further host beside `hosts`, where there are groups; only strategy batch makes use of it."""
    price: Price = Price()
    """Money."""

    @model_validator(mode="after")
    def _joined(self) -> Cluster:
        if self.hosts > 1 and self.network is None:
            raise ValueError("a cluster of several hosts needs [network], the card of a host")
        if self.devices > 1 and self.inside is None:
            raise ValueError("a host of several devices needs [inside], the link between them")
        groups = self.groups
        if groups is None:
            if self.server is not None:
                raise ValueError(
                    "[server] has cards at switches between groups; describe [groups], or take it out"
                )
            return self
        if self.switch is not None or self.hosts % groups.hosts or self.hosts == groups.hosts:
            raise ValueError(
                f"groups of {groups.hosts} of {self.hosts} hosts: there are two or more whole groups, and no "
                "[switch] beside them"
            )
        count = self.hosts // groups.hosts
        for pair in [] if self.server is None else self.server.switches:
            if len(pair) != 2 or pair[0] == pair[1] or max(pair) >= count:
                raise ValueError(f"server.switches has {pair}; name two of the groups 0 to {count - 1}")
        return self

    @property
    def size(self) -> int:
        """Devices in all, but for those of `server`."""
        return self.hosts * self.devices

    @property
    def workers(self) -> int:
        """Devices in all."""
        return self.size + (self.devices if self.server is not None else 0)
