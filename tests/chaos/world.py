"""What a seeded life is made of: who is there, and what goes wrong how often.

Knows: numbers and rates. Does not know: what is done by them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cotswold.paramserver.core.replica_session import Pace
from cotswold.replication.replica.settings import Topology
from cotswold.simulate.protocols.network import Faults

DISK_SECONDS = 0.1
"""What a disk takes to read or write a bucket, at most, but where it is slow."""


@dataclass(frozen=True)
class Aim:
    """What befalls somebody at a moment that matters, rather than at any time."""

    moment: str
    """A message of this kind is sent: a name in `aims.MOMENTS`."""
    chance: float
    """With which anything befalls anybody then."""
    faults: tuple[str, ...]
    """One of these: names in `aims.FATES`."""
    then: Aim | None = None
    """What is aimed at for the next seconds, once this has befallen somebody."""


@dataclass(frozen=True)
class World:
    """What a life is made of. Rates are how often a second, all together, where nothing else is said."""

    servers: int = 5
    controllers: int = 3
    buckets: int = 3
    shards: int = 2
    """Of a bucket."""
    copies: int = 3
    least: int = 1
    way: Topology = "star"
    lease_seconds: float = 1.0
    replicas: int = 2
    readers: int = 0
    """Clients that pull and do not push."""
    pace: Pace = Pace(2)  # noqa: RUF009  # it is frozen
    """Of each replica."""
    hand: int = 4
    """Samples that a replica is handed at once."""
    speeds: tuple[float, ...] = (0.05, 0.1, 0.4)
    """Of these each replica has one: the seconds that a step takes, about."""
    order_seconds: float = 0.3
    """How often servers are told what they must know."""
    has_momentum: bool = False
    """Whether servers keep what was pushed besides the weights: then it is that which is judged."""
    epochs: int = 6
    window: int = 4
    """Indexes that may be under way."""
    faults: Faults = field(default_factory=Faults)
    between_seconds: float = 0.0
    """What a message between servers takes, at most: so others overtake it; likewise between servers and
    controllers."""
    slow_links: float = 1.0
    """The share of links between servers of which that is so."""
    control_seconds: float = 0.0
    kills: float = 0.0
    """Servers killed, so that every bucket keeps a member that nobody takes for gone."""
    massacres: float = 0.0
    """Deaths of all servers but one, likewise."""
    reckless: float = 0.0
    """Servers killed whatever becomes of the buckets: where all members of one are dead, the life is over."""
    seen: float = 0.5
    """The share of deaths that a supervisor sees."""
    again_seconds: float = 3.0
    """After which another server is there, at most."""
    single: float = 0.0
    """How often one server is killed, stopped or cut off, where nothing is the matter with any other, and has
    not been for a second: one trouble at a time."""
    waits_seconds: float = float("inf")
    """For so long at most may a bucket acknowledge nothing while an update waits."""
    pauses: float = 0.0
    cuts: float = 0.0
    """Links cut, one way or both, or a server from all."""
    camps: float = 0.0
    """A server and some clients are apart from all others; controllers are so too, or hear both."""
    controller_faults: float = 0.0
    replica_faults: float = 0.0
    replica_pauses: float = 0.0
    checkpoints: float = 0.0
    taking: float = 5.0
    """How soon a checkpoint is taken."""
    drains: float = 0.0
    """Servers that somebody has drained, two at a time at most; some time later they are taken back."""
    runs: float = 0.0
    """How often another run begins, or the one that has begun is to be forgotten."""
    evens_soon: bool = False
    """Whether what servers lead is evened soon after something has happened, rather than after seconds."""
    state_lost: float = 0.0
    """The share of requests to the state of which nobody hears the outcome; of those that are late."""
    state_late: float = 0.0
    aims: tuple[Aim, ...] = ()
    most_aims: int = 6
    """So many times in a life."""
    disks: bool = False
    """Whether each server has a disk, which the one that comes after it finds."""
    saving_seconds: float = 0.3
    """How often a server puts on its disk what is different."""
    outages: float = 0.0
    """Deaths of all servers at once; likewise disks that are full for a while, or slow, and, a death, the
    chance that some of what a disk has is damaged."""
    full: float = 0.0
    slow: float = 0.0
    damage: float = 0.0
    gone: float = 0.0
    """The share of outages from which one host does not return, with its disk."""
    exchanged: float = 0.0
    """The share of outages in which a disk is not what its server left: it is an older copy, or a copy of
    another server's, or two have changed places."""
    rots: float = 0.0
    """How often what a disk has of a bucket is damaged under a server that lives; it finds that out."""
    torn: float = 0.0
    """The share of deaths with which what was being written is there in part, and so is damaged."""
    controller_outages: float = 0.0
    """Deaths of all controllers at once."""
    kills_unled: bool = False
    """Whether servers are killed while no controller leads, too."""
    client_cuts: float = 0.0
    """Replicas, or their coordinator, that are cut off from servers, one way or both."""
    drift: float = 0.01
    """By which share clocks run faster or slower, at most."""

    @property
    def saved_within(self) -> float:
        """Seconds after which what a primary has acknowledged is on its disk; infinite where that may take
        any time: it may be stopped, or its disk has more to do than it can."""
        is_steady = self.disks and not (self.full or self.slow or self.pauses or self.aims)
        is_busy = self.buckets * DISK_SECONDS / 2 > 0.6 * self.saving_seconds
        if is_busy or not is_steady:
            return float("inf")
        return self.saving_seconds + 2 * self.buckets * DISK_SECONDS + 0.1

    @property
    def is_prompt(self) -> bool:
        """Whether whoever asks is answered at once: nobody dies either."""
        return self.is_calm and not (
            self.kills or self.massacres or self.reckless or self.outages or self.drains or self.runs
        )

    @property
    def is_calm(self) -> bool:
        """Whether whoever lives is heard in time."""
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
