"""Elections in progress, one per bucket, from the first suspicion to the committed group.

Knows: the election of each bucket, the replies of members and disks. Does not know: who requests an election.

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

from cotswold.replication.controller.cluster_view import ClusterView
from cotswold.replication.controller.disk_recovery import DiskRecovery
from cotswold.replication.controller.election import Election, ElectionReason
from cotswold.replication.replica.saved_bucket import is_restored
from cotswold.wire import DiskStateReply, FenceReply, Group, Send


class ElectionManager:
    """Elections of a leader."""

    def __init__(self, board: ClusterView, epoch: int) -> None:
        self._board, self._epoch = board, epoch
        self.of: dict[str, Election] = {}
        """Elections by bucket."""
        self._removing: dict[str, dict[str, None]] = {}
        """Buckets by primaries that lose their role, until that is committed."""
        self._due: dict[str, None] = {}
        """Buckets whose election may have a result."""
        self._waiting: list[tuple[Group, list[str], bool]] = []
        """Groups without an available member, to be reported: each with the members that may come back,
        and whether the disk that was restored has no data."""

    def is_settled(self, bucket: str) -> bool:
        """True if the bucket has no election and no other change in progress."""
        found = self._board.map
        return bucket not in self.of and not found.is_moving(bucket) and not found.is_removed(bucket)

    def hold(
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
        if group.bucket in self.of or self._board.map.is_removed(group.bucket):
            return
        self._board.call_back(group.bucket)  # it belongs to the old primary
        self._begin(Election(group, now, cause, why, now if noticed is None else noticed, preferred))

    def _begin(self, election: Election) -> None:
        bucket = election.group.bucket
        self.of[bucket] = election
        self._due[bucket] = None
        if election.removed:
            self._removing.setdefault(election.removed, {})[bucket] = None

    def forget(self, bucket: str) -> Election | None:
        """End and return the election of a bucket."""
        election = self.of.pop(bucket, None)
        if election is not None:
            self._removing.get(election.group.primary, {}).pop(bucket, None)
        return election

    def written(self, group: Group) -> Election | None:
        """End and return the election whose result this committed group is; None if there is none."""
        election = self.of.get(group.bucket)
        if election is None or election.elected != group:
            return None
        return self.forget(group.bucket)

    def holds_up(self, server: str) -> bool:
        """True if the server must reply to a fence before it gets a lease."""
        buckets = self._removing.get(server)
        return bool(buckets) and any(server not in self.of[each].answers for each in buckets or ())

    def take_waiting(self) -> list[tuple[Group, list[str], bool]]:
        """Return the groups, since the last call, that wait for silent members or for disks; True at the
        end if the restored disk has no data."""
        found, self._waiting = self._waiting, []
        return found

    def answered(self, answer: FenceReply | DiskStateReply, now: float) -> None:
        """Record a reply of a server."""
        election = self.of.get(answer.bucket)
        if election is None:
            return
        if isinstance(answer, FenceReply):
            election.answered(answer)
        elif election.revival is not None:
            election.revival.heard(answer, now)
        self._due[answer.bucket] = None

    def tick(self, now: float) -> list[Send]:
        """Process the passing of time."""
        self._due.update(dict.fromkeys(self.of))
        return self.advance(now)

    def advance(self, now: float) -> list[Send]:
        """Send requests and propose results where something has changed."""
        due, self._due = self._due, {}
        return [send for bucket in due if bucket in self.of for send in self._elect(self.of[bucket], now)]

    def _elect(self, election: Election, now: float) -> list[Send]:
        board, servers, group = self._board, self._board.servers, election.group
        if board.map.is_removed(group.bucket):
            self.forget(group.bucket)
            return []
        if board.map.is_moving(group.bucket):
            return []
        newest = board.groups[group.bucket]
        if group != newest:  # a group that was in flight is committed now
            self.forget(group.bucket)
            if servers.lives(newest.primary):
                return []
            election = Election(newest, now, ElectionReason.LOST, election.why, election.noticed)
            self._begin(election)
            group = newest
        living = [each for each in group.members if servers.lives(each)]
        may_act = servers.may_act(group.primary, now)
        control = board.control
        is_late = now - election.began >= control.disk_seconds
        if not may_act and (not living or (is_late and election.have_nothing(living))):
            return self._revive(election, now)
        election.revival = None
        # spread the primaries of a lost server over several others
        election.lightest = min(living, key=lambda name: (len(servers.of[name].leads), name), default="")
        patience = control.election_seconds, control.lease_seconds
        decided = election.decided(living, may_act, now, patience)
        if decided is None:
            return election.ask(living, self._epoch, now, control.fence_seconds)
        self._put(election, decided, election.why)
        return []

    def _put(self, election: Election, elected: Group, why: str) -> None:
        """Propose the result; the old primary may not act until it is committed."""
        election.elected = elected
        if elected.primary != election.group.primary:
            self._removing.setdefault(election.group.primary, {})[elected.bucket] = None
        self._board.put(elected, why)

    def _revive(self, election: Election, now: float) -> list[Send]:
        """Query the memory and disks of all servers, as no member has any data, and propose the result."""
        control, servers = self._board.control, self._board.servers
        revival = election.revival = election.revival or DiskRecovery(election.group, now)
        living = {each.name for each in servers.living}
        ended = {each for each in election.group.members if servers.of[each].has_ended}
        patience = control.disk_seconds, control.revive_seconds
        if is_restored(election.group.primary):
            patience = control.recover_seconds, control.recover_seconds
        decided = revival.decided(living, ended, now, patience, servers.of)
        if decided is None:
            silent = revival.silent(living, ended) or revival.missing
            is_late = now - revival.began >= (control.disk_seconds if silent else control.revive_seconds)
            tells = bool(silent), revival.is_empty
            if is_late and tells not in revival.told:
                revival.told.add(tells)
                self._waiting.append((election.group, silent, revival.is_empty))
            return revival.ask(living, self._epoch, now, control.retry_seconds)
        self._put(election, decided, "every copy was lost")
        return []
