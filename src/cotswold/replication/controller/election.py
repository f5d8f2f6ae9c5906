"""One election: find the most complete replica among the members that are fenced below the new term.

Knows: which members were asked, the index of each. Does not know: the reason beyond its kind, the use of the
result.

    condition                                                      result
    all awaited members have replied                               decided
    some have replied, the others are silent for long              decided without the silent ones
    the same, but only one of several live members would be left   decided after the length of a lease
    a live member has no data                                      ask it again: it may not know the group yet
    the old primary may still act                                  undecided
    no member with data has replied                                undecided
    the primary was healthy, and not all others reply              the old group, in the next term
    it was healthy and hands over; it has the elected index        it becomes a secondary
    it was healthy and hands over; it has a higher index           a learner, or, of two, the old group

A healthy primary is fenced first, and the others a moment later: in between they receive what it has sent, so
all have the same index.

The member with the highest index is elected, for it has all acknowledged changes and the most of the others.
The other members then receive its additional changes. A member that has not replied leaves the group, so its
additional changes are never needed.

Elections in progress, one per bucket, from the first suspicion to the committed group.

    event                                                     action
    an election starts while a group is in flight             wait until that group is committed
    an election starts while the run is being deleted         none
    that group is committed and its primary is alive          none
    that group is committed and its primary is not            an election of the following term
    members are alive, or the primary may have a lease        `Fence`, until there is a result (`election`)
    no member is alive, or none has had any data for long,    query the memory and disks of all servers, until
      and the primary has no lease                              there is a result (`disk_recovery`)
    there is a result                                         propose the group; the old primary gets no lease
                                                              before the commit unless it has replied
    the group is committed                                    the election is over
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.disk_recovery import DiskRecovery
from cotswold.replication.replica.saved_bucket import is_restored
from cotswold.wire import DiskStateReply, Fence, FenceReply, Group, Send

_SETTLE_SECONDS = 0.05


class ElectionReason(Enum):
    """Reasons for an election."""

    LOST = "lost"
    """The primary is lost or has exited."""
    PARTITIONED = "cut off"
    """The primary is alive but partitioned: it is replaced unless it is the only member."""
    DRAINED = "drained"
    """The primary is alive and drained: it leaves if others can replace it."""
    REBALANCE = "even"
    """The primary is alive and leads more buckets than others."""

    @property
    def is_planned(self) -> bool:
        """True if the group may also stay as it is."""
        return self in (ElectionReason.DRAINED, ElectionReason.REBALANCE)


@dataclass
class Election:
    """Election of the primary of a bucket's next term."""

    group: Group
    """The current group."""
    started_at: float
    cause: ElectionReason = ElectionReason.LOST
    reason: str = ""
    """The reason in words."""
    noticed: float = 0.0
    """Time at which the cause was first known."""
    preferred: str = ""
    """Server to elect among those with the same index."""
    lightest: str = ""
    """Server with the fewest primaries; the second choice."""
    answers: dict[str, FenceReply] = field(default_factory=dict)
    recovery: DiskRecovery | None = None
    """Recovery from disks, once every member is lost."""
    elected: Group | None = None
    """The proposed group, until it is committed."""
    _requested_at: float = float("-inf")
    _stopped: float | None = None
    """Time at which the healthy primary was known to be fenced."""

    @property
    def removed(self) -> str:
        """The primary, if it is alive and loses its role."""
        return "" if self.cause is ElectionReason.LOST else self.group.primary

    @property
    def term(self) -> int:
        """The new term."""
        return self.group.term + 1

    def fence_requests(self, living: list[str], epoch: int, now: float, retry_seconds: float) -> list[Send]:
        """Return fence requests for the members that have not replied."""
        wanted = [name for name in living if name not in self.answers or self.answers[name].index < 0]
        if self.cause.is_planned and self.group.primary in wanted:
            wanted = [self.group.primary]
        elif self.cause.is_planned:
            if self._stopped is None:
                self._stopped, self._requested_at = now, float("-inf")
            if now - self._stopped < _SETTLE_SECONDS:
                return []
        if now - self._requested_at < retry_seconds:
            return []
        self._requested_at = now
        fence = Fence(epoch, self.group.bucket, self.term)
        return [Send(name, fence) for name in wanted]

    def record_reply(self, fenced: FenceReply) -> None:
        """Record the reply of a member."""
        if fenced.term == self.term and fenced.server in self.group.members:
            self.answers[fenced.server] = fenced

    def all_empty(self, living: list[str]) -> bool:
        """True if every live member has replied that it has no data."""
        return all(name in self.answers and self.answers[name].index < 0 for name in living)

    def result(
        self, living: list[str], may_act: bool, now: float, timeouts: tuple[float, float]
    ) -> Group | None:
        """Return the group of the next term; None while it is undecided.

        ``living``: live members; ``may_act``: True if the old primary may have a lease; ``timeouts``: seconds
        to wait for silent members, and seconds to wait if only one member would be left.
        """
        group, primary = self.group, self.group.primary
        if may_act and primary not in self.answers:
            return None
        able = {name: each.index for name, each in self.answers.items() if each.index >= 0 and name in living}
        is_complete = all(name in self.answers for name in living)
        began = self.started_at if self._stopped is None else self._stopped + _SETTLE_SECONDS
        is_alone = len(able) < min(2, len(living)) and not self.cause.is_planned
        if not able or (now - began < timeouts[is_alone] and not is_complete):
            return None
        if self.cause.is_planned and primary in able and not (is_complete and len(able) > 1):
            return replace(group, term=self.term)
        ranked = sorted(able, key=lambda name: self._rank(name, able[name]), reverse=True)
        others = tuple(name for name in ranked[1:] if name != primary)
        learners: tuple[str, ...] = ()
        if self.cause is ElectionReason.REBALANCE and primary in able:
            if able[primary] == able[ranked[0]]:
                others = (*others, primary)
            elif not others:
                return replace(group, term=self.term)
            else:
                learners = (primary,)
        return Group(group.bucket, self.term, ranked[0], others, learners, group.incarnation)

    def _rank(self, name: str, index: int) -> tuple[bool, int, bool, bool, str]:
        return name != self.removed, index, name == self.preferred, name == self.lightest, name


class ElectionManager:
    """Elections of a leader."""

    def __init__(self, view: ClusterView, epoch: int) -> None:
        self._view, self._epoch = view, epoch
        self.of: dict[str, Election] = {}
        """Elections by bucket."""
        self._removed_members: dict[str, dict[str, None]] = {}
        """Buckets by primaries that lose their role, until that is committed."""
        self._requests: dict[str, None] = {}
        """Buckets whose election may have a result."""
        self._waiting_events: list[tuple[Group, list[str], bool]] = []
        """Groups without an available member, to be reported: each with the members that may come back,
        and whether the disk that was restored has no data."""

    def is_settled(self, bucket: str) -> bool:
        """True if the bucket has no election and no other change in progress."""
        found = self._view.map
        return bucket not in self.of and not found.has_pending_change(bucket) and not found.is_removed(bucket)

    def start(
        self,
        group: Group,
        cause: ElectionReason,
        why: str,
        now: float,
        noticed: float | None = None,
        preferred: str = "",
    ) -> None:
        """Start an election unless one is in progress; ``noticed``: time at which the cause was first
        known."""
        if group.bucket in self.of or self._view.map.is_removed(group.bucket):
            return
        self._view.cancel_pending(group.bucket)  # it belongs to the old primary
        self._begin(Election(group, now, cause, why, now if noticed is None else noticed, preferred))

    def _begin(self, election: Election) -> None:
        bucket = election.group.bucket
        self.of[bucket] = election
        self._requests[bucket] = None
        if election.removed:
            self._removed_members.setdefault(election.removed, {})[bucket] = None

    def forget(self, bucket: str) -> Election | None:
        """End and return the election of a bucket."""
        election = self.of.pop(bucket, None)
        if election is not None:
            self._removed_members.get(election.group.primary, {}).pop(bucket, None)
        return election

    def committed(self, group: Group) -> Election | None:
        """End and return the election whose result this committed group is; None if there is none."""
        election = self.of.get(group.bucket)
        if election is None or election.elected != group:
            return None
        return self.forget(group.bucket)

    def blocks_lease(self, server: str) -> bool:
        """True if the server must reply to a fence before it gets a lease."""
        buckets = self._removed_members.get(server)
        return bool(buckets) and any(server not in self.of[each].answers for each in buckets or ())

    def take_waiting_events(self) -> list[tuple[Group, list[str], bool]]:
        """Return the groups, since the last call, that wait for silent members or for disks; True at the
        end if the restored disk has no data."""
        found, self._waiting_events = self._waiting_events, []
        return found

    def record_reply(self, answer: FenceReply | DiskStateReply, now: float) -> None:
        """Record a reply of a server."""
        election = self.of.get(answer.bucket)
        if election is None:
            return
        if isinstance(answer, FenceReply):
            election.record_reply(answer)
        elif election.recovery is not None:
            election.recovery.record_reply(answer, now)
        self._requests[answer.bucket] = None

    def tick(self, now: float) -> list[Send]:
        """Process the passing of time."""
        self._requests.update(dict.fromkeys(self.of))
        return self.advance(now)

    def advance(self, now: float) -> list[Send]:
        """Send requests and propose results where something has changed."""
        due, self._requests = self._requests, {}
        return [send for bucket in due if bucket in self.of for send in self._elect(self.of[bucket], now)]

    def _elect(self, election: Election, now: float) -> list[Send]:
        view, servers, group = self._view, self._view.servers, election.group
        if view.map.is_removed(group.bucket):
            self.forget(group.bucket)
            return []
        if view.map.has_pending_change(group.bucket):
            return []
        newest = view.groups[group.bucket]
        if group != newest:  # a group that was in flight is committed now
            self.forget(group.bucket)
            if servers.is_alive(newest.primary):
                return []
            election = Election(newest, now, ElectionReason.LOST, election.reason, election.noticed)
            self._begin(election)
            group = newest
        living = [each for each in group.members if servers.is_alive(each)]
        may_act = servers.may_act(group.primary, now)
        control = view.control
        is_late = now - election.started_at >= control.disk_seconds
        if not may_act and (not living or (is_late and election.all_empty(living))):
            return self._revive(election, now)
        election.recovery = None
        # spread the primaries of a lost server over several others
        election.lightest = min(living, key=lambda name: (len(servers.of[name].leads), name), default="")
        patience = control.election_seconds, control.lease_seconds
        decided = election.result(living, may_act, now, patience)
        if decided is None:
            return election.fence_requests(living, self._epoch, now, control.fence_seconds)
        self._propose(election, decided, election.reason)
        return []

    def _propose(self, election: Election, elected: Group, why: str) -> None:
        """Propose the result; the old primary may not act until it is committed."""
        election.elected = elected
        if elected.primary != election.group.primary:
            self._removed_members.setdefault(election.group.primary, {})[elected.bucket] = None
        self._view.propose(elected, why)

    def _revive(self, election: Election, now: float) -> list[Send]:
        """Query the memory and disks of all servers, as no member has any data, and propose the result."""
        control, servers = self._view.control, self._view.servers
        revival = election.recovery = election.recovery or DiskRecovery(election.group, now)
        living = {each.name for each in servers.live}
        ended = {each for each in election.group.members if servers.of[each].has_exited}
        patience = control.disk_seconds, control.revive_seconds
        if is_restored(election.group.primary):
            patience = control.recover_seconds, control.recover_seconds
        decided = revival.result(living, ended, now, patience, servers.of)
        if decided is None:
            silent = revival.unanswered(living, ended) or revival.silent_members
            is_late = now - revival.started_at >= (control.disk_seconds if silent else control.revive_seconds)
            tells = bool(silent), revival.is_empty
            if is_late and tells not in revival.reported:
                revival.reported.add(tells)
                self._waiting_events.append((election.group, silent, revival.is_empty))
            return revival.disk_requests(living, self._epoch, now, control.retry_seconds)
        self._propose(election, decided, "every copy was lost")
        return []
