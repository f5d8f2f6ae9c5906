"""Which of several controllers leads, by keys in a state that all of them see.

Knows: the keys, when each was seen to be different, by its own clock, what the cluster is called of which
this is the state. Does not know: buckets, where the state is kept.

    state       what happens                                     next
    FOLLOWING   nobody has led, or the leader's beat stands      the key is compared and set: CLAIMING
                still for too long
    CLAIMING    done                                             LEADING, in an epoch of its own
    CLAIMING    another was faster                               FOLLOWING
    LEADING     its beats are in                                 LEADING, until so long after it sent the last
    LEADING     its beat is refused: there is another epoch      FOLLOWING
    LEADING     no beat was in for so long                       LEADING, and gives nothing

Every transaction of a leader compares the key, so none of an epoch that is over is done. What a leader gives
by word alone (leases) it gives only while nobody else can lead: another waits until the beat has stood still
for longer, by its own clock.

Whoever leads first in a state gives the cluster its name, which stays. A state that was lost and begun anew
is that of another cluster, and whoever knows the name of the one that was can tell (`copies.keeper`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cotswold.replication.replica.lease import DRIFT

LEADER, BEAT, CLUSTER = "leader", "leader-beat", "leader-cluster"
"""Keys: who leads in which epoch; how often that one has said so; the cluster's name."""


class Standing(Enum):
    """What a controller is."""

    FOLLOWING = "following"
    CLAIMING = "claiming"
    LEADING = "leading"


@dataclass(frozen=True)
class Read:
    """Keys that begin so are wanted, in their order; answered by what they are."""

    prefix: str
    after: str = ""
    """Only those that come after this."""
    most: int | None = None
    """So many at most; all by default."""

    def of(self, items: Mapping[str, str]) -> dict[str, str]:
        """What is wanted of these."""
        keys = sorted(key for key in items if key.startswith(self.prefix) and key > self.after)
        return {key: items[key] for key in keys[: self.most]}


@dataclass(frozen=True)
class Transact:
    """These are put if those are so; answered by whether they were, or None where that is not known."""

    compare: tuple[tuple[str, str | None], ...]
    put: tuple[tuple[str, str | None], ...]


Wish = Read | Transact
"""What is wanted of the state; the next is asked for once this one is answered."""


class Leading:
    """The part of one controller that knows whether it leads."""

    def __init__(
        self, name: str, now: float, *, fresh: str, beat_seconds: float, leader_seconds: float
    ) -> None:
        """``fresh``: a word that no other process has, from which a cluster's name is made."""
        self.name, self.standing = name, Standing.FOLLOWING
        self.cluster = ""
        """Its name, once this has led."""
        self.epoch = 0
        """The newest that was seen."""
        self.leader = ""
        self._beat_seconds, self._leader_seconds = beat_seconds, leader_seconds
        self._fresh = fresh
        self._seen: tuple[str | None, str | None, str | None] | None = None
        self._since = now
        """When what was seen was different last."""
        self._claimed = ""
        """What the cluster is called if it leads next."""
        self._asked = float("-inf")
        self._until = float("-inf")
        self._beats = 0

    @property
    def key(self) -> tuple[str, str | None]:
        """What every transaction of this leader compares."""
        return LEADER, _said(self.name, self.epoch)

    def leads(self, now: float) -> bool:
        """Whether nobody else can lead now."""
        return self.standing is Standing.LEADING and now < self._until

    def wish(self, now: float) -> Wish | None:
        """What is to be asked of the state now, if anything is due."""
        if now - self._asked < self._beat_seconds:
            return None
        self._asked = now
        if self.standing is Standing.LEADING:
            self._beats += 1
            return Transact((self.key,), ((BEAT, f"{self.epoch} {self._beats}"),))
        is_still = self._seen is not None and now - self._since > self._leader_seconds
        if self._seen is not None and (self._seen[0] is None or is_still):
            self.standing = Standing.CLAIMING
            leader, beat, cluster = self._seen
            self._claimed = f"{self._fresh}-{self.epoch + 1}" if cluster is None else cluster
            put = (LEADER, _said(self.name, self.epoch + 1)), (BEAT, f"{self.epoch + 1} 0")
            named = (*put, (CLUSTER, self._claimed)) if cluster is None else put
            return Transact(((LEADER, leader), (BEAT, beat), (CLUSTER, cluster)), named)
        return Read(LEADER)

    def read(self, items: dict[str, str], now: float) -> None:
        """What the keys are."""
        seen = items.get(LEADER), items.get(BEAT), items.get(CLUSTER)
        if self._seen is None or seen != self._seen:
            self._seen, self._since = seen, now
        if seen[0] is not None:
            self.leader, self.epoch = json.loads(seen[0])

    def transacted(self, is_done: bool | None, now: float) -> bool:
        """What became of the wish; whether it leads from now on, and did not before."""
        if self.standing is Standing.CLAIMING:
            self.standing, self._seen = Standing.FOLLOWING, None
            if is_done:
                self.standing, self.leader, self.epoch = Standing.LEADING, self.name, self.epoch + 1
                self.cluster = self._claimed
                self._beats, self._until = 0, self._asked + self._leader_seconds * (1 - DRIFT)
                return True
        elif self.standing is Standing.LEADING and is_done:
            self._until = self._asked + self._leader_seconds * (1 - DRIFT)
        elif is_done is False:
            self.step_down()
        return False

    def step_down(self) -> None:
        """Somebody else leads."""
        self.standing, self._seen, self._until = Standing.FOLLOWING, None, float("-inf")


def _said(name: str, epoch: int) -> str:
    return json.dumps([name, epoch])
