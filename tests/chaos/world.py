"""Settings of a seeded life: its processes, and the rates of faults.

Knows: numbers and rates. Does not know: their use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cotswold.paramserver.core.replica_session import Pace
from cotswold.replication.replica.settings import Topology
from cotswold.simulate.protocols.network import Faults

DISK_SECONDS = 0.1
"""Largest seconds to read or write a bucket on a disk that is not slow."""


@dataclass(frozen=True)
class Aim:
    """Faults aimed at a critical moment, not at random times."""

    moment: str
    """Name in `fault_targets.MOMENTS`: the kind of message that marks the moment."""
    chance: float
    """Probability of a fault at the moment."""
    faults: tuple[str, ...]
    """Names in `fault_targets.FATES` to choose from."""
    then: Aim | None = None
    """Aim for the next seconds after this one has hit."""


@dataclass(frozen=True)
class World:
    """Settings of a life. Unless stated otherwise, rates are events per second over all processes."""

    servers: int = 5
    controllers: int = 3
    buckets: int = 3
    shards: int = 2
    """Shards per bucket."""
    copies: int = 3
    least: int = 1
    way: Topology = "star"
    lease_seconds: float = 1.0
    replicas: int = 2
    readers: int = 0
    """Number of clients that pull and do not push."""
    pace: Pace = Pace(2)  # noqa: RUF009  # frozen
    """Pace of each replica."""
    hand: int = 4
    """Samples handed to a replica at once."""
    speeds: tuple[float, ...] = (0.05, 0.1, 0.4)
    """Approximate seconds of a step; each replica has one of these."""
    order_seconds: float = 0.3
    """Seconds between orders to servers."""
    has_momentum: bool = False
    """True if servers keep the sum of pushes in addition to the weights; then that sum is judged."""
    epochs: int = 6
    window: int = 4
    """Largest number of indices in flight."""
    faults: Faults = field(default_factory=Faults)
    between_seconds: float = 0.0
    """Largest extra seconds of messages between servers, which lets messages overtake; likewise between
    servers and controllers."""
    slow_links: float = 1.0
    """Fraction of links between servers with extra seconds."""
    control_seconds: float = 0.0
    kills: float = 0.0
    """Rate of killed servers; every bucket keeps a member that counts as alive."""
    massacres: float = 0.0
    """Rate of deaths of all servers but one, with the same restriction."""
    reckless: float = 0.0
    """Rate of killed servers without restriction: the life ends if all members of a bucket are dead."""
    seen: float = 0.5
    """Fraction of deaths that a supervisor notices."""
    again_seconds: float = 3.0
    """Largest seconds until a killed server restarts."""
    single: float = 0.0
    """Rate of single troubles: one server is killed, stopped or cut off if all has been well for a second."""
    waits_seconds: float = float("inf")
    """Longest seconds that a bucket may acknowledge nothing while an update waits."""
    pauses: float = 0.0
    cuts: float = 0.0
    """Rate of cut links, in one or both directions, or of a server cut off completely."""
    camps: float = 0.0
    """Rate of partitions: a server and some clients against the others; controllers are on one side, or reach
    both."""
    controller_faults: float = 0.0
    replica_faults: float = 0.0
    replica_pauses: float = 0.0
    checkpoints: float = 0.0
    taking: float = 5.0
    """Seconds until a checkpoint is taken."""
    drains: float = 0.0
    """Rate of drained servers, at most two at a time; they are undrained later."""
    runs: float = 0.0
    """Rate at which another run starts, or the started one is deleted."""
    evens_soon: bool = False
    """True if primaries are rebalanced soon after an event, not after seconds."""
    state_lost: float = 0.0
    """Fraction of late requests to the metadata store whose outcome is lost."""
    state_late: float = 0.0
    aims: tuple[Aim, ...] = ()
    most_aims: int = 6
    """Largest number of aimed faults in a life."""
    disks: bool = False
    """True if each server has a disk that survives it."""
    saving_seconds: float = 0.3
    """Seconds between a server's saves."""
    outages: float = 0.0
    """Rate of deaths of all servers at once; also of disks that are full for a while, or slow; and, per
    death, the probability that part of a disk is damaged."""
    full: float = 0.0
    slow: float = 0.0
    damage: float = 0.0
    gone: float = 0.0
    """Fraction of outages in which one host with its disk is lost."""
    exchanged: float = 0.0
    """Fraction of outages in which a disk is replaced: by an older copy, by a copy of another server's disk,
    or two are exchanged."""
    rots: float = 0.0
    """Rate at which a bucket on the disk of a live server is damaged; the server detects it."""
    torn: float = 0.0
    """Fraction of deaths in which a write is torn, and so damages the disk."""
    controller_outages: float = 0.0
    """Rate of deaths of all controllers at once."""
    kills_unled: bool = False
    """True if servers are also killed while no controller leads."""
    client_cuts: float = 0.0
    """Rate at which replicas or their coordinator are cut off from servers, in one or both directions."""
    drift: float = 0.01
    """Largest relative drift of clocks."""

    @property
    def saved_within(self) -> float:
        """Seconds after which acknowledged updates are on the primary's disk; infinite if unbounded: the
        primary may be stopped, or its disk overloaded."""
        is_steady = self.disks and not (self.full or self.slow or self.pauses or self.aims)
        is_busy = self.buckets * DISK_SECONDS / 2 > 0.6 * self.saving_seconds
        if is_busy or not is_steady:
            return float("inf")
        return self.saving_seconds + 2 * self.buckets * DISK_SECONDS + 0.1

    @property
    def is_prompt(self) -> bool:
        """True if requests are answered at once; this excludes deaths, too."""
        return self.is_calm and not (
            self.kills or self.massacres or self.reckless or self.outages or self.drains or self.runs
        )

    @property
    def is_calm(self) -> bool:
        """True if all live processes are reachable in time."""
        return not (
            self.controller_outages
            or self.client_cuts
            or self.single
            or self.pauses
            or self.cuts
            or self.camps
            or self.controller_faults
            or self.aims
        ) and (self.faults == Faults() and not self.between_seconds and not self.control_seconds)
