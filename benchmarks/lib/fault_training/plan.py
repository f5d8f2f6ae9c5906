"""Who stands on which host, and which faults befall whom: a schedule from a seed.

Knows: roles, kinds of faults, what must not fall at the same time. Does not know: processes, how a fault is
made.

What the system promises to survive, and no more: one fault at a time, healed before the next; so at most
one member of etcd of three, one controller of three, one host with copies. The trainer's own process is no
target, and its host is not cut off: the coordinator must stay. Ray's head is killed once, late, for what it
knew of machines dies with it: a replica that ends afterwards is not started again, so none is killed then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cotswold.errors import UserError

Role = Literal["server", "controller", "etcd", "replica", "head"]
Kind = Literal["kill", "stop", "cut", "deafen", "mute", "fill", "slow"]
"""`cut`: nothing comes or goes; `deafen`: it is heard, and hears nobody; `mute`: the opposite."""
KINDS: dict[Kind, tuple[Role, ...]] = {
    "kill": ("server", "controller", "etcd", "replica", "head"),
    "stop": ("server", "controller", "etcd", "replica", "head"),
    "cut": ("server", "controller", "etcd", "replica", "head"),
    "deafen": ("server", "controller", "etcd", "replica", "head"),
    "mute": ("server", "controller", "etcd", "replica", "head"),
    "fill": ("server", "etcd"),
    "slow": ("server", "controller", "etcd", "replica", "head"),
}
LINKS: tuple[Kind, ...] = ("cut", "deafen", "mute")
_Drawn = tuple[Kind, Role, int]
HOSTS_LEAST, HOSTS_MOST = 4, 6
_MAJORITY = 3
_HEAD_DIES_AFTER = 0.75
"""Of the schedule."""
_SECONDS = (3.0, 8.0)
"""A fault lasts so long at least and at most, and never more than this part of the interval."""
_PART = 0.6


@dataclass(frozen=True)
class Places:
    """Which hosts have what; host numbers."""

    hosts: int

    def __post_init__(self) -> None:
        if not HOSTS_LEAST <= self.hosts <= HOSTS_MOST:
            raise UserError(
                f"--hosts {self.hosts}: three have etcd and controllers, and one at least is beside them; "
                f"give {HOSTS_LEAST} to {HOSTS_MOST}"
            )

    @property
    def keepers(self) -> Sequence[int]:
        """Those of the members of etcd, and of the controllers."""
        return range(_MAJORITY)

    @property
    def servers(self) -> Sequence[int]:
        """Those with parameter servers: all but the last."""
        return range(self.hosts - 1)

    @property
    def head(self) -> int:
        """That of Ray's head."""
        return 0

    @property
    def replicas(self) -> Sequence[int]:
        """Those that are lent for replicas."""
        return range(self.hosts - 2, self.hosts)

    @property
    def trainer(self) -> int:
        """That of `cotswold train`."""
        return self.hosts - 2

    def of(self, role: Role) -> Sequence[int]:
        """The hosts where a role is played."""
        if role == "server":
            return self.servers
        if role == "replica":
            return self.replicas
        return (self.head,) if role == "head" else self.keepers


@dataclass(frozen=True)
class Fault:
    """One of a schedule."""

    at: float
    """Seconds after the first could have been."""
    kind: Kind
    role: Role
    host: int
    seconds: float
    """Until it is healed; a process that was killed is started again so late, where nobody else does so."""

    def __str__(self) -> str:
        return f"{self.kind} {self.role} on host {self.host}"


def named(words: str) -> tuple[Kind, Role]:
    """The fault that is called so, as in ``kill server``; raises UserError."""
    for kind, roles in KINDS.items():
        for role in roles:
            if words == f"{kind} {role}":
                return kind, role
    known = ", ".join(f"{kind} {role}" for kind, roles in KINDS.items() for role in roles)
    raise UserError(f"--fault {words!r} is none; these are: {known}")


def schedule(
    places: Places, seed: int, interval: float, seconds: float, only: Sequence[tuple[Kind, Role]] = ()
) -> list[Fault]:
    """One fault an interval, the first after one; every kind of every role, or of ``only`` those, before any
    comes again."""
    if not interval > 0:
        raise UserError(f"--interval {interval:g} is no time between faults; give more than 0 s")
    chance = random.Random(seed)
    count = max(1, int(seconds / interval) - 1)
    head_dies = round(_HEAD_DIES_AFTER * count)
    drawn, found = _drawn(places, chance, only), []
    for number in range(count):
        is_heads = number == head_dies and count > 1 and not only
        head: _Drawn = "kill", "head", places.head
        one = head if is_heads else next(each for each in drawn if _may_be(each, number > head_dies, only))
        lasts = min(chance.uniform(*_SECONDS), _PART * interval)
        found.append(Fault((number + 1) * interval, *one, round(lasts, 2)))
    return found


def _drawn(places: Places, chance: random.Random, only: Sequence[tuple[Kind, Role]]) -> Iterator[_Drawn]:
    """Kinds and roles in an order by chance, again and again, each time on another host."""
    while True:
        pairs = list(only) or [(kind, role) for kind, roles in KINDS.items() for role in roles]
        chance.shuffle(pairs)
        for kind, role in pairs:
            hosts = [host for host in places.of(role) if kind not in LINKS or host != places.trainer]
            yield kind, role, chance.choice(hosts)


def _may_be(drawn: _Drawn, head_is_dead: bool, only: Sequence[tuple[Kind, Role]]) -> bool:
    kind, role, _ = drawn
    if only:
        return True
    if role == "head":
        return kind != "kill" and not head_is_dead
    return not (head_is_dead and kind == "kill" and role == "replica")
