"""State and decisions of the leading controller; a new leader starts from the committed state.

Knows: its parts, which part receives which message. Does not know: whether it still leads, the metadata
store, how any part decides.

    event                                                     action of the leader
    Heartbeat, with claims that match the map                 `LeaseGrant`
    Heartbeat, with stale claims                              `Assign`, repeatedly; no lease meanwhile
    Heartbeat, with claims unknown to this leader             no lease: the next heartbeat has all claims
                                                              (`assignment_delivery`)
    Heartbeat, with data of an unknown run                    `DeleteRun` (`run_deletion`)
    Heartbeat, from another cluster                           no lease: the server keeps its data
    Heartbeat, from a server that receives no replies         its current lease is not extended
    a primary is lost                                         an election (`election`)
    the process of a secondary or a learner exited            a group without it (`placement`)
    a primary and all of its secondaries do not hear each     fence the primary, then an election
      other, and it is alive                                  (`failure_detector`)
    a live primary reports an unreachable replica             a group without that replica: one that is
                                                              unreachable to controllers only, stays
    a member was fenced, and its election was abandoned       an election
    every member of a group is lost                           query their disks (`disk_recovery`)
    servers report each other soon after the primary's        ignore it: without leases the primary was silent
      first lease, or after this leader stalled
    a learner has caught up                                   a group with it as a secondary
    a bucket is under-replicated, and a server is free        a group with the server as a learner
    a server is drained                                       copy its buckets elsewhere, drop it (`drain`)
    servers have more replicas or primaries than others       move some of them (`rebalancing`)
    a group is committed                                      `Assign` to its old and new servers
    a run is deleted                                          delete its keys (`run_deletion`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cotswold import wire as m
from cotswold.phrases import counted
from cotswold.replication.controller import event_text as sentences
from cotswold.replication.controller.assignment_delivery import AssignmentDelivery, PrimaryClaims
from cotswold.replication.controller.bucket_map import CommittedChanges
from cotswold.replication.controller.cluster_view import ClusterView, Reason
from cotswold.replication.controller.drain import DrainManager
from cotswold.replication.controller.election import ElectionManager, ElectionReason
from cotswold.replication.controller.event_log import ClusterEventLog
from cotswold.replication.controller.failure_detector import FailureArbiter
from cotswold.replication.controller.messages import FromClients, FromServers, is_host, servers_of
from cotswold.replication.controller.placement import BucketCreation
from cotswold.replication.controller.rebalancing import Rebalancer
from cotswold.replication.controller.replication_repair import RemovalCheck, ReplicationRepair
from cotswold.replication.controller.run_deletion import RunDeletion
from cotswold.replication.controller.settings import ControllerSettings
from cotswold.replication.controller.status import cluster_status, lookup_reply

_SETTLE_SECONDS = 2.0
"""Seconds without a planned election of a bucket after one was abandoned because members were silent."""
_SWEEP_SECONDS = 10.0
_DEAF = 0.4
"""Fraction of a lease. A server that has received no reply for that long may miss the following ones too."""
_MAX_STRANGERS = 1000
"""Maximum number of servers of other clusters that are reported."""


class LeaderState:
    """State of a controller from the moment when it begins to lead."""

    def __init__(
        self,
        name: str,
        control: ControllerSettings,
        epoch: int,
        cluster: str,
        events: ClusterEventLog,
        now: float,
    ) -> None:
        """``cluster``: name of the cluster."""
        self.name, self.control, self.epoch, self._events = name, control, epoch, events
        self._cluster = cluster
        self._unknown_servers: dict[str, None] = {}
        """Servers of other clusters."""
        self.is_loaded = False
        """True once all committed keys are loaded."""
        self.view = ClusterView(control, now)
        self.elections = ElectionManager(self.view, epoch)
        self._claims = PrimaryClaims(self.view)
        self._delivery = AssignmentDelivery(self.view, epoch)
        self._removals = RemovalCheck(epoch)
        self._repair = ReplicationRepair(self.view, self.elections, self._removals)
        self.arbiter = FailureArbiter(self.view, self.elections, self._repair)
        self._deletions = RunDeletion(self.view, epoch, cluster)
        self._creation = BucketCreation(self.view, self._deletions)
        self._drains = DrainManager(self.view, self._repair, now)
        self._rebalancer = Rebalancer(self.view, self.elections, self._repair, now)
        self._started_at = self._swept_at = now

    def load(self, items: Mapping[str, str]) -> None:
        """Load a page of committed keys."""
        for group in self.view.load(items):
            self._repair.enqueue((group.bucket,))
            self._delivery.enqueue(group.all_servers, group.bucket)

    def finish_loading(self, now: float) -> list[m.Send]:
        """Finish loading: all committed keys are loaded."""
        self.is_loaded = True
        self.view.finish_loading()
        self._drains = DrainManager(self.view, self._repair, now)
        return self._delivery.next_messages(now)

    def written(self, written: CommittedChanges, now: float) -> list[m.Send]:
        """Apply a committed transaction."""
        for old, group in written.groups:
            self._changed(old, group, now)
        if written.deleted:
            self._rebalancer.changed()
        for group in written.deleted:
            self.elections.forget(group.bucket)
            self.arbiter.forget(group.bucket)
            self._repair.forget(group.bucket)
            self._removals.forget(group.bucket)
            self._claims.changed(group.bucket, (group.primary,))
        sends = []
        if written.removed:
            self._events.note("removed", written.removed, f"nothing is left of {written.removed}", now)
            sends = self._deletions.removed(written.removed)
        return [*sends, *self._delivery.next_messages(now)]

    def _changed(self, old: m.Group | None, group: m.Group, now: float) -> None:
        bucket, reason = group.bucket, self.view.reasons.pop(group.bucket, Reason())
        election = self.elections.committed(group)
        self.arbiter.forget(bucket)
        self._removals.forget(bucket)
        self._repair.enqueue((bucket,))
        self._rebalancer.changed()
        self._claims.changed(bucket, (group.primary, *(() if old is None else (old.primary,))))
        if old is not None and election is not None:
            if election.cause is not ElectionReason.REBALANCE:
                self._rebalancer.postpone(now)
            self._events.changed(sentences.election_event(group, election, now), now)
            if election.cause.is_planned and group.primary == old.primary:
                self._repair.postpone(bucket, now + _SETTLE_SECONDS)
        elif old is not None:
            said = sentences.group_event(old, group, reason)
            if said is not None:
                self._events.changed(said, now)
        self._delivery.enqueue((*group.all_servers, *(() if old is None else old.all_servers)), bucket)

    # --- requests ---

    def create(self, request: m.Create, now: float) -> bool:
        """Place new buckets evenly on the available servers; False if there are too few servers."""
        made = self._creation.create(request)
        if made:
            self._events.note("created", request.run, f"{request.run} has {counted(made, 'bucket')}", now)
        return made is not None

    def receive(self, sender: str, message: FromServers, now: float) -> list[m.Send]:
        """Process a message and return the messages to send."""
        sends: list[m.Send] = []
        match message:
            case m.Heartbeat() if message.server == sender:
                sends = self._on_heartbeat(message, now)
            case m.Assigned() if message.server == sender:
                group = self.view.groups.get(message.bucket)
                if group is None or message.term >= group.term:
                    self._delivery.acknowledged(sender, message.bucket)
                if self._removals.record_reply(message):
                    self._repair.reconcile(message.bucket, now)
            case m.FenceReply() | m.DiskStateReply() if message.server == sender:
                self.elections.record_reply(message, now)
            case m.LearnerCaughtUp() | m.PeerUnreachable() | m.PrimaryUnreachable() if (
                message.server == sender
            ):
                self._on_report(sender, message, now)
            case m.ServerExited():
                self._on_exit(message, now)
            case (
                m.LookupRequest()
                | m.Create()
                | m.DeleteRunRequest()
                | m.Drain()
                | m.Undrain()
                | m.StatusRequest()
                | m.RunDescriptionRequest()
            ):
                sends = self._on_request(sender, message, now)
            case _:
                pass
        return [*sends, *self.elections.advance(now), *self._removals.take_messages()]

    def _on_request(self, sender: str, message: FromClients, now: float) -> list[m.Send]:
        match message:
            case m.LookupRequest():
                return [m.Send(sender, lookup_reply(message, self.view))]
            case m.RunDescriptionRequest(run, number):
                drained = () if run or not is_host(sender) else self._drains.drained(servers_of(sender))
                return [
                    m.Send(sender, m.RunDescription(run, self.view.map.runs.get(run, ""), number, drained))
                ]
            case m.Create():
                self.create(message, now)
                return []
            case m.DeleteRunRequest(run):
                return self._deletions.remove(sender, run)
            case m.Drain():
                return self._drain(sender, message, now)
            case m.Undrain(server):
                heir = self._drains.heir(server)
                was_drained = self._drains.end(server)
                if (heir != server and self._drains.end(heir)) or was_drained:
                    self._rebalancer.postpone(now)
                    self._events.note("drain_cancelled", server, f"{server} may have copies again", now)
                return [m.Send(sender, m.Undrained(server))]
            case m.StatusRequest(bucket, number):
                last = self._events.last(now, bucket)
                found = cluster_status(self.name, self.epoch, self.view, self._repair, last, now)
                return [m.Send(sender, replace(found, number=number))]

    def _drain(self, sender: str, wanted: m.Drain, now: float) -> list[m.Send]:
        known = self.view.servers.of.get(wanted.server)
        if wanted.is_lost:
            if known is not None and not known.is_alive and not known.has_exited:
                self.view.servers.record_exit(known.name)
                self.view.servers.declare_lost(known.name)
                sentence = f"{known.name} is declared lost by an operator"
                self._events.note("lost", known.name, sentence, now)
            return [m.Send(sender, self._drains.progress(wanted.server, now))]
        if known is None and now - self._started_at < self.control.lease_seconds:
            return []  # the server may still report; the client asks again
        name, by_host = self._drains.heir(wanted.server), is_host(sender)
        known = self.view.servers.of.get(name)
        may_begin = known is not None and not (known.has_exited and by_host)  # an operator means the disk
        if may_begin and self._drains.begin(name, wanted.seconds, now, by_host=by_host):
            sentence = f"{name} is being drained, within {wanted.seconds:g} s"
            self._events.note("draining", name, sentence, now)
        return [m.Send(sender, replace(self._drains.progress(name, now), server=wanted.server))]

    # --- messages of servers ---

    def _on_heartbeat(self, here: m.Heartbeat, now: float) -> list[m.Send]:
        servers, known = self.view.servers, self.view.servers.of.get(here.server)
        if here.cluster not in ("", self._cluster):
            if here.server not in self._unknown_servers and len(self._unknown_servers) < _MAX_STRANGERS:
                self._unknown_servers[here.server] = None
                sentence = sentences.foreign_server_text(here, self._cluster)
                self._events.note("unknown_server", here.server, sentence, now)
            return []
        deaf = 0.0 if known is None else known.record_acknowledged(here.answered, now)
        is_deaf = deaf >= _DEAF * self.control.lease_seconds
        none = m.LeaseGrant(self.epoch, here.server, here.number, 0.0, self._cluster)
        is_away = known is not None and (known.may_return or not (known.is_alive or known.has_exited))
        if is_deaf and is_away:
            return [m.Send(here.server, none)]
        is_new, is_first = not servers.is_alive(here.server), known is None or known.last_heartbeat is None
        known = servers.record_heartbeat(here, now)
        if known.has_exited:
            return []
        if here.key:
            self.view.map.bind(here.server, here.key)
        if is_new:
            self._events.note("joined", here.server, f"{here.server} has joined, on {here.host}", now)
            servers.lease(known, now + self.control.lease_seconds)  # so that it is not lost at once
            self._delivery.server_joined(here.server, known.copies)
            self._resume_drains(now)
        if is_new or is_first:
            self._repair.server_available()
            self._rebalancer.postpone(now)
        for bucket, term in here.fenced:  # by an earlier leader that stepped down before it decided
            group = self.view.groups.get(bucket)
            if group is None or here.server not in group.all_servers:
                continue
            if group.term < term and self.elections.is_settled(bucket):
                why = f"{here.server} was fenced by a controller that no longer leads"
                self.elections.start(group, ElectionReason.LOST, why, now)
        sends = self._deletions.deletions_for(here.server, here.runs, now)
        stale = self._claims.heard(here)
        if stale is None:
            return [*sends, m.Send(here.server, none)]
        for bucket in stale:
            self._delivery.resend(here.server, bucket)
        if stale or self.elections.blocks_lease(here.server):
            return [*sends, *self._delivery.next_messages(now)]
        seconds = self.control.lease_seconds
        if is_deaf:  # else a server that cannot hear controllers would stay an idle primary
            seconds = max(0.0, min(seconds, known.lease_until - now))
        else:
            servers.lease(known, now + seconds)
        known.lease_start = now if known.lease_start is None else known.lease_start
        leased = m.LeaseGrant(self.epoch, here.server, here.number, seconds, self._cluster)
        return [*sends, m.Send(here.server, leased)]

    def _on_report(
        self, sender: str, message: m.LearnerCaughtUp | m.PeerUnreachable | m.PrimaryUnreachable, now: float
    ) -> None:
        group = self.view.groups.get(message.bucket)
        if group is None or message.term != group.term:
            if group is not None:
                self._delivery.resend(sender, message.bucket)
        elif not isinstance(message, m.LearnerCaughtUp):
            # a primary without a lease sends nothing
            if self.view.servers.of[group.primary].leased_seconds(now) >= self.control.lease_seconds / 2:
                self.arbiter.record_report(sender, message, group, now)
        elif (
            self.elections.is_settled(group.bucket)
            and sender == group.primary
            and message.learner in group.learners
        ):
            learners = tuple(each for each in group.learners if each != message.learner)
            members = (*group.secondaries, message.learner)
            self.view.propose(replace(group, term=group.term + 1, secondaries=members, learners=learners))

    def _on_exit(self, ended: m.ServerExited, now: float) -> None:
        was_drained = self._drains.forget(ended.server)
        if self.view.servers.record_exit(ended.server):
            drained = "; it was drained and had no copies" if was_drained else ""
            self._events.note("lost", ended.server, f"{ended.server} {ended.why}{drained}", now)
            self._delivery.server_exited(ended.server)
            self._claims.forget(ended.server)
            self._on_lost(ended.server, f"primary {ended.server} {ended.why}", now)

    # --- time ---

    def extend_leases(self, seconds: float) -> None:
        """Extend all leases by a stall in which no heartbeats arrived and no leases were granted."""
        self.view.servers.extend_leases(seconds)

    def tick(self, now: float) -> list[m.Send]:
        """Process the passing of time; call it a few times per retry interval."""
        for known in self.view.servers.take_expired(now):
            self._drains.forget(known.name)
            last, recent = known.last_heartbeat, _DEAF * self.control.lease_seconds
            is_heard = last is not None and now - last < recent
            why = f"has sent no heartbeat for {self.control.lease_seconds:g} s"
            missed = known.missed_heartbeats(now)
            short = f"missed {counted(missed, 'heartbeat')}" if missed else "sent no more heartbeats"
            if is_heard:
                why = f"has received no reply for {now - known.answered_at:.1f} s, but sends heartbeats"
                short = "received no replies"
            self._events.note("lost", known.name, f"{known.name} {why}", now)
            self._on_lost(known.name, f"primary {known.name} {short}", now)
        self.arbiter.tick(now)
        self._creation.tick()
        self._repair.tick(now)
        self._resume_drains(now)
        for server in self._drains.tick(now):
            self._events.note("drained", server, f"{server} has no copies left", now)
        self._rebalancer.tick(now)
        if now - self._swept_at >= _SWEEP_SECONDS:
            self._sweep(now)
        sends = self.elections.tick(now)
        for group, silent, is_empty in self.elections.take_waiting_events():
            self._events.changed(sentences.waiting_event(group, silent, is_empty=is_empty), now)
        return [*sends, *self._removals.take_messages(), *self._delivery.next_messages(now)]

    def _resume_drains(self, now: float) -> None:
        """Continue drains on the servers that now own the disks."""
        for server in self._drains.resume(now):
            sentence = f"{server} is being drained, like the server that had its disk before"
            self._events.note("draining", server, sentence, now)

    def _on_lost(self, name: str, why: str, now: float) -> None:
        """Handle a server without a valid lease: start elections and repairs for its buckets."""
        known = self.view.servers.of[name]
        self._rebalancer.postpone(now)
        for bucket in list(known.copies):
            group = self.view.groups.get(bucket)
            if group is None:
                continue
            if group.primary == name:
                noticed = self.arbiter.suspected_since(bucket)
                self.elections.start(group, ElectionReason.LOST, why, now, noticed)
            elif known.has_exited:  # else the primary knows whether it is reachable
                self._repair.reconcile(bucket, now)

    def _sweep(self, now: float) -> None:
        """Forget servers that are lost, have no replicas, and have been silent for long."""
        self._swept_at = now
        for name, known in list(self.view.servers.of.items()):
            heard = self._started_at if known.last_heartbeat is None else known.last_heartbeat
            is_wanted = known.is_alive or known.copies or self._drains.keeps(name)
            if not is_wanted and now - heard > self.control.forget_seconds:
                self._drains.end(name)
                self._claims.forget(name)
                self._delivery.server_exited(name)
                self._deletions.on_server_lost(name)
                self.view.servers.forget(name)
        if now - self._started_at > self.control.forget_seconds:
            for name in [each for each in self.view.map.keys if each not in self.view.servers.of]:
                self.view.map.bind(name, None)
