"""Elections that are under way, and who is gone for good: from the first notice to the next group.

Knows: the election of each bucket, what members and disks have answered. Does not know: who asks for one.

    what happens                                              what follows
    one is held, another group is on its way                  it waits until that is written down
    one is held, the bucket's run is being removed            it is over
    that is written down, and its primary lives               none is held
    that is written down, and its primary does not            one of the term after that
    members live, or a lease of the primary may hold          `Fence`, until it is decided (`electing`)
    none lives, or none has anything for long, and no lease   servers are asked what memory and disks have,
      can hold                                                until it is (`reviving`)
    it is decided                                             the group is to be written down; who was primary
                                                              gets no lease before, or has answered
    that is written down                                      it is over
"""

from __future__ import annotations

from cotswold.replication.controller.cluster_view import Board
from cotswold.replication.controller.disk_recovery import Revival
from cotswold.replication.controller.election import Cause, Election
from cotswold.replication.replica.saved_bucket import is_restored
from cotswold.wire import Fenced, FoundSaved, Group, Send


class Elections:
    """Those of a leader."""

    def __init__(self, board: Board, epoch: int) -> None:
        self._board, self._epoch = board, epoch
        self.of: dict[str, Election] = {}
        """By bucket."""
        self._removing: dict[str, dict[str, None]] = {}
        """Buckets by primaries that are to be so no more, or of which that is being written down."""
        self._due: dict[str, None] = {}
        """Those that may be decided."""
        self._waiting: list[tuple[Group, list[str], bool]] = []
        """Groups of which nobody is there, with those that may come back, if any, and whether the disk on
        which one was restored has nothing: people are to be told."""

    def is_settled(self, bucket: str) -> bool:
        """Whether nothing is under way for a bucket."""
        found = self._board.map
        return bucket not in self.of and not found.is_moving(bucket) and not found.is_removed(bucket)

    def hold(
        self,
        group: Group,
        cause: Cause,
        why: str,
        now: float,
        noticed: float | None = None,
        preferred: str = "",
    ) -> None:
        """Elect a primary, if that is not under way; ``noticed``: when it was known that one must be."""
        if group.bucket in self.of or self._board.map.is_removed(group.bucket):
            return
        self._board.call_back(group.bucket)  # it is of the primary that was
        self._begin(Election(group, now, cause, why, now if noticed is None else noticed, preferred))

    def _begin(self, election: Election) -> None:
        bucket = election.group.bucket
        self.of[bucket] = election
        self._due[bucket] = None
        if election.removed:
            self._removing.setdefault(election.removed, {})[bucket] = None

    def forget(self, bucket: str) -> Election | None:
        """It is over, or the bucket is not there any more."""
        election = self.of.pop(bucket, None)
        if election is not None:
            self._removing.get(election.group.primary, {}).pop(bucket, None)
        return election

    def written(self, group: Group) -> Election | None:
        """A group is written down: the election that it is of, which is over."""
        election = self.of.get(group.bucket)
        if election is None or election.elected != group:
            return None
        return self.forget(group.bucket)

    def holds_up(self, server: str) -> bool:
        """Whether a server must say first what it has, before it gets a lease."""
        buckets = self._removing.get(server)
        return bool(buckets) and any(server not in self.of[each].answers for each in buckets or ())

    def take_waiting(self) -> list[tuple[Group, list[str], bool]]:
        """Groups that wait for members that are silent, or for disks, and whether the disk on which one was
        restored has nothing; since this was called last."""
        found, self._waiting = self._waiting, []
        return found

    def answered(self, answer: Fenced | FoundSaved, now: float) -> None:
        """A server says what it has."""
        election = self.of.get(answer.bucket)
        if election is None:
            return
        if isinstance(answer, Fenced):
            election.answered(answer)
        elif election.revival is not None:
            election.revival.heard(answer, now)
        self._due[answer.bucket] = None

    def tick(self, now: float) -> list[Send]:
        """Time has passed."""
        self._due.update(dict.fromkeys(self.of))
        return self.advance(now)

    def advance(self, now: float) -> list[Send]:
        """Ask, and decide, where something has happened."""
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
        if group != newest:  # what was on its way has been written down meanwhile
            self.forget(group.bucket)
            if servers.lives(newest.primary):
                return []
            election = Election(newest, now, Cause.LOST, election.why, election.noticed)
            self._begin(election)
            group = newest
        living = [each for each in group.members if servers.lives(each)]
        may_act = servers.may_act(group.primary, now)
        control = board.control
        is_late = now - election.began >= control.disk_seconds
        if not may_act and (not living or (is_late and election.have_nothing(living))):
            return self._revive(election, now)
        election.revival = None
        # what one server has led is led by several after it
        election.lightest = min(living, key=lambda name: (len(servers.of[name].leads), name), default="")
        patience = control.election_seconds, control.lease_seconds
        decided = election.decided(living, may_act, now, patience)
        if decided is None:
            return election.ask(living, self._epoch, now, control.fence_seconds)
        self._put(election, decided, election.why)
        return []

    def _put(self, election: Election, elected: Group, why: str) -> None:
        """It is decided: the primary that was may not act while that is written down."""
        election.elected = elected
        if elected.primary != election.group.primary:
            self._removing.setdefault(election.group.primary, {})[elected.bucket] = None
        self._board.put(elected, why)

    def _revive(self, election: Election, now: float) -> list[Send]:
        """No member has anything: ask what others have, and all disks, and decide."""
        control, servers = self._board.control, self._board.servers
        revival = election.revival = election.revival or Revival(election.group, now)
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
