"""Roles of the hosts, and the schedule of faults drawn from a seed.

Knows: roles, kinds of faults, which faults exclude each other. Does not know: processes, how a fault is
injected.

The schedule covers what the system promises to survive: one fault at a time, healed before the next. So at
most one of three members of etcd, one of three controllers, and one host with copies is affected. The
trainer's process is no target, and its host is not cut off, because the coordinator must stay. Ray's head is
killed once, late, because its knowledge of machines dies with it: a replica that exits afterwards is not
restarted, so no replica is killed then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cotswold.errors import UserError

Role = Literal["server", "controller", "etcd", "replica", "head"]
Kind = Literal["kill", "stop", "cut", "deafen", "mute", "fill", "slow"]
"""`cut`: no messages in or out; `deafen`: messages out only; `mute`: messages in only."""
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
"""Fraction of the schedule after which Ray's head is killed."""
_SECONDS = (3.0, 8.0)
"""Shortest and longest duration of a fault; it is also limited to `_PART` of the interval."""
_PART = 0.6


@dataclass(frozen=True)
class Places:
    """Roles of the hosts, by host number."""

    hosts: int

    def __post_init__(self) -> None:
        if not HOSTS_LEAST <= self.hosts <= HOSTS_MOST:
            raise UserError(
                f"--hosts {self.hosts}: three run etcd and controllers, and at least one does not; "
                f"give {HOSTS_LEAST} to {HOSTS_MOST}"
            )

    @property
    def keepers(self) -> Sequence[int]:
        """Hosts of etcd members and controllers."""
        return range(_MAJORITY)

    @property
    def servers(self) -> Sequence[int]:
        """Hosts of parameter servers: all but the last."""
        return range(self.hosts - 1)

    @property
    def head(self) -> int:
        """Host of Ray's head."""
        return 0

    @property
    def replicas(self) -> Sequence[int]:
        """Hosts of replicas."""
        return range(self.hosts - 2, self.hosts)

    @property
    def trainer(self) -> int:
        """Host of `cotswold train`."""
        return self.hosts - 2

    def of(self, role: Role) -> Sequence[int]:
        """Return the hosts of a role."""
        if role == "server":
            return self.servers
        if role == "replica":
            return self.replicas
        return (self.head,) if role == "head" else self.keepers


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule."""

    at: float
    """Seconds from the start."""
    kind: Kind
    role: Role
    host: int
    seconds: float
    """Seconds until the fault is healed; a killed process without a supervisor is restarted then."""

    def __str__(self) -> str:
        return f"{self.kind} {self.role} on host {self.host}"


def named(words: str) -> tuple[Kind, Role]:
    """Return the fault of a name, as in ``kill server``; raise UserError if it is unknown."""
    for kind, roles in KINDS.items():
        for role in roles:
            if words == f"{kind} {role}":
                return kind, role
    known = ", ".join(f"{kind} {role}" for kind, roles in KINDS.items() for role in roles)
    raise UserError(f"--fault {words!r} is unknown; choose from: {known}")


def schedule(
    places: Places, seed: int, interval: float, seconds: float, only: Sequence[tuple[Kind, Role]] = ()
) -> list[Fault]:
    """Return one fault per interval, starting after the first interval. Every kind of every role, or of
    ``only``, comes once before any comes again."""
    if not interval > 0:
        raise UserError(f"--interval {interval:g} must be greater than 0 s")
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
    """Yield kinds and roles in endless random permutations, each on a random host."""
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
