"""Leader election among controllers, by keys in a metadata store that all of them share.

Knows: the keys, when each was last seen to change by its own clock, the name of the cluster. Does not know:
buckets, the kind of metadata store.

    state       event                                            next
    FOLLOWING   no leader yet, or the leader's heartbeat has     compare and set the key: CLAIMING
                not changed for too long
    CLAIMING    committed                                        LEADING, in a new epoch
    CLAIMING    another controller was faster                    FOLLOWING
    LEADING     a heartbeat is committed                         LEADING, for a fixed time since it was sent
    LEADING     a heartbeat is refused: the epoch is over        FOLLOWING
    LEADING     no heartbeat was committed for that time         LEADING, but grants no leases

Every transaction of a leader compares the key, so no transaction of an earlier epoch commits. Leases are not
stored: a leader grants them only while no other controller can lead. Another controller first waits until the
heartbeat has not changed for longer than that, by its own clock.

The first leader names the cluster, and the name stays. A metadata store that was lost and created again
belongs to another cluster; servers that know the old name detect it (`replication.replica.server`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from cotswold.replication.replica.lease import DRIFT

LEADER, BEAT, CLUSTER = "leader", "leader-beat", "leader-cluster"
"""Keys: the leader and its epoch; the count of its heartbeats; the cluster's name."""


class LeadershipState(Enum):
    """State of a controller."""

    FOLLOWING = "following"
    CLAIMING = "claiming"
    LEADING = "leading"


@dataclass(frozen=True)
class Read:
    """Request for the keys with this prefix, in order; the reply has their values."""

    prefix: str
    start: str = ""
    """Only keys greater than this one."""
    limit: int | None = None
    """Maximum number of keys [all]."""

    def of(self, items: Mapping[str, str]) -> dict[str, str]:
        """Return the requested keys among these."""
        keys = sorted(key for key in items if key.startswith(self.prefix) and key > self.start)
        return {key: items[key] for key in keys[: self.limit]}


@dataclass(frozen=True)
class Transact:
    """Request to put keys on condition that others have given values; the reply is True, False, or None if
    unknown."""

    compare: tuple[tuple[str, str | None], ...]
    put: tuple[tuple[str, str | None], ...]


StateRequest = Read | Transact
"""Request to the metadata store; one is in flight at a time."""


class LeaderElection:
    """The part of a controller that knows whether it leads."""

    def __init__(
        self, name: str, now: float, *, token: str, beat_seconds: float, leader_seconds: float
    ) -> None:
        """``token``: a word that is unique to this process; the name of a new cluster is made of it."""
        self.name, self.state = name, LeadershipState.FOLLOWING
        self.cluster = ""
        """Name of the cluster, once this controller has led."""
        self.epoch = 0
        """The newest epoch seen."""
        self.leader = ""
        self._beat_seconds, self._leader_seconds = beat_seconds, leader_seconds
        self._token = token
        self._last_record: tuple[str | None, str | None, str | None] | None = None
        self._unchanged_since = now
        """Time at which the keys were last seen to change."""
        self._claimed = ""
        """Name of the cluster if the current claim succeeds."""
        self._requested_at = float("-inf")
        self._lease_end = float("-inf")
        self._beats = 0

    @property
    def key(self) -> tuple[str, str | None]:
        """Condition of every transaction of this leader."""
        return LEADER, _record(self.name, self.epoch)

    def leads(self, now: float) -> bool:
        """True while no other controller can lead."""
        return self.state is LeadershipState.LEADING and now < self._lease_end

    def next_request(self, now: float) -> StateRequest | None:
        """Return the request to the metadata store that is due, if any."""
        if now - self._requested_at < self._beat_seconds:
            return None
        self._requested_at = now
        if self.state is LeadershipState.LEADING:
            self._beats += 1
            return Transact((self.key,), ((BEAT, f"{self.epoch} {self._beats}"),))
        is_still = self._last_record is not None and now - self._unchanged_since > self._leader_seconds
        if self._last_record is not None and (self._last_record[0] is None or is_still):
            self.state = LeadershipState.CLAIMING
            leader, beat, cluster = self._last_record
            self._claimed = f"{self._token}-{self.epoch + 1}" if cluster is None else cluster
            put = (LEADER, _record(self.name, self.epoch + 1)), (BEAT, f"{self.epoch + 1} 0")
            named = (*put, (CLUSTER, self._claimed)) if cluster is None else put
            return Transact(((LEADER, leader), (BEAT, beat), (CLUSTER, cluster)), named)
        return Read(LEADER)

    def read(self, items: dict[str, str], now: float) -> None:
        """Record the values of the keys."""
        seen = items.get(LEADER), items.get(BEAT), items.get(CLUSTER)
        if self._last_record is None or seen != self._last_record:
            self._last_record, self._unchanged_since = seen, now
        if seen[0] is not None:
            self.leader, self.epoch = json.loads(seen[0])

    def on_transaction(self, is_done: bool | None, now: float) -> bool:
        """Process the result of a transaction; True if it made this controller the leader."""
        if self.state is LeadershipState.CLAIMING:
            self.state, self._last_record = LeadershipState.FOLLOWING, None
            if is_done:
                self.state, self.leader, self.epoch = LeadershipState.LEADING, self.name, self.epoch + 1
                self.cluster = self._claimed
                self._beats, self._lease_end = 0, self._requested_at + self._leader_seconds * (1 - DRIFT)
                return True
        elif self.state is LeadershipState.LEADING and is_done:
            self._lease_end = self._requested_at + self._leader_seconds * (1 - DRIFT)
        elif is_done is False:
            self.step_down()
        return False

    def step_down(self) -> None:
        """Become a follower."""
        self.state, self._last_record, self._lease_end = LeadershipState.FOLLOWING, None, float("-inf")


def _record(name: str, epoch: int) -> str:
    return json.dumps([name, epoch])
