"""The coordinator of replicas: message in, messages out. It tracks live sessions, assigned samples and the
servers' state.

Knows: sessions, the ledger of samples, coordinator states, versions of the learning rate, checkpoints. Does
not know: weights, sockets, clocks, the choice of the learning rate, storage of checkpoints.

    state      event                                         next
    WARMING    the first samples count                       RUNNING
    WARMING    the last epoch is over                        DRAINING
    RUNNING    the last epoch is over                        DRAINING
    DRAINING   no sample is open, all is on disks            FINISHED
    DRAINING   servers have lost samples that counted        RUNNING
    after an epoch that is not the last, the next begins in the same state

    state      replicas that are assigned samples
    WARMING    the replica with the oldest session
    RUNNING    all
    DRAINING   none
    FINISHED   none; a replica that sends a heartbeat is shut down
    any        none while paused

Everything that servers must know (live sessions, rates, the newest checkpoint) is sent to all of them in one
coordinator state. The next one is sent after all servers have acknowledged it. Replicas learn of a session, a
rate or a checkpoint only after all servers know it. Each acknowledgement reports the samples that the server
has applied, and only these reports move the ledger: reports of replicas do not count. A session is over once
every server has acknowledged a coordinator state without it; then its samples are settled.

    checkpoint      event                                      next
    none            begin_checkpoint                           begun
    begun           next state sent; `CheckpointLedger` begins begun
    begun           every server has kept its state            frozen: its ledger is `frozen_ledger`
    frozen          take_checkpoint                            none: servers forget the state

If a server lost its memory and restarts from its disk, its acknowledgement reports a new incarnation. Samples
that counted and that it lost are free again. Every session ends, because the updates missing from that
server's shards are unknown. A checkpoint that is not taken is begun again. So no sample is settled before the
disks of all servers have it.

Samples that some servers have and others lack are handed out again in separate assignments, pushed alone:
servers that have them reply without applying them. While such samples exist, no checkpoint is announced. A
checkpoint whose states have samples that others lack is begun again, up to `_TRIES` times; then they are
torn.

One checkpoint runs at a time. Training does not end during a checkpoint, and none begins after training has
ended: to save the final state, pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cotswold import wire as m
from cotswold.paramserver.core.checkpoint_ledger import EMPTY_REPORT, CheckpointLedger
from cotswold.paramserver.core.dispatcher_state import NEXT, DispatcherState, lost_samples_event
from cotswold.paramserver.core.durability import LedgerDurability
from cotswold.paramserver.core.session_dispatcher import SessionDispatcher
from cotswold.paramserver.core.settings import DispatcherCounters, DispatcherSettings
from cotswold.shards.core.events import Event
from cotswold.shards.core.sample_ledger import SampleLedger, SampleReport
from cotswold.wire.ranges import intersection, union

_TRIES = 5
"""Maximum number of consecutive checkpoints to begin again because sessions ended meanwhile."""
RATES = 16
"""Number of versions of the learning rate that servers keep; an update with an older one is refused."""


class Dispatcher(SessionDispatcher):
    """The coordinator of one run's replicas."""

    def __init__(
        self,
        rules: DispatcherSettings,
        shards: Sequence[m.Shard],
        servers: Sequence[tuple[str, str]],
        now: float,
        ledger: SampleLedger | None = None,
        counters: DispatcherCounters | None = None,
    ) -> None:
        """``ledger`` and ``counters`` are those of a resumed run."""
        super().__init__(rules, shards, servers, ledger, counters)
        self.checkpoint = 0
        """Newest checkpoint that has begun."""
        self.frozen = 0
        """Newest checkpoint whose state all servers have kept."""
        self.released_checkpoint = 0
        """Newest checkpoint whose state is no longer needed."""
        self.frozen_ledger: SampleLedger | None = None
        """Ledger of the newest frozen checkpoint, until it is taken."""
        self._answers: dict[str, m.CoordinatorStateAck] = {}
        """Acknowledgements of the newest one, by server."""
        self._last_state_at = self._sent_at = now - rules.retry_seconds
        self._incarnations: dict[str, int] = {}
        """Last reported incarnation of each server."""
        self._sessions_with_loss: set[int] = set()
        """Void sessions with samples that servers have lost."""
        self._attempts = 0
        """Consecutive restarts of a checkpoint because their states were divided."""
        self._durability = LedgerDurability(self.ledger.settled)
        self.is_unsaved = False
        """True if training ended before disks had all counted samples; lost ones are not trained again."""
        self.failure = ""
        """Reason why the counted samples are unknown, or empty; only resuming from a checkpoint helps."""
        self._finished_at: float | None = None
        """Time since which only disk writes are pending."""

    # --- requests of the caller ---

    @property
    def is_freezing(self) -> bool:
        """True while a checkpoint is begun that some server has not kept."""
        return self.frozen < self.checkpoint

    @property
    def may_begin_checkpoint(self) -> bool:
        """True if the previous checkpoint was taken and training has not ended."""
        is_training = self.state in (DispatcherState.WARMING, DispatcherState.RUNNING)
        return is_training and self.released_checkpoint == self.checkpoint

    @property
    def is_settling(self) -> bool:
        """True while an ended session awaits the final reports of servers."""
        return bool(self._voided)

    def begin_checkpoint(self) -> int:
        """Begin a checkpoint and return its number; replicas send their markers from now on."""
        assert self.may_begin_checkpoint, "one checkpoint at a time, before training has ended"
        self.checkpoint += 1
        return self.checkpoint

    def take_checkpoint(self) -> SampleLedger:
        """Return the ledger of the frozen checkpoint, whose state servers may now forget."""
        assert self.frozen_ledger is not None, "the checkpoint is not frozen yet"
        kept, self.frozen_ledger, self.released_checkpoint = self.frozen_ledger, None, self.checkpoint
        return kept

    @property
    def counters(self) -> DispatcherCounters:
        """Counters for a resumed run."""
        return DispatcherCounters(self.members.newest, tuple(self._rates.items()))

    def set_rate(self, rate: float) -> int:
        """Set a new learning rate and return its version."""
        version = max(self._rates) + 1
        self._rates[version] = rate
        self._rates.pop(version - RATES, None)
        return version

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    # --- received messages and time ---

    def receive(
        self, sender: str, message: m.Join | m.ReplicaHeartbeat | m.Leave | m.CoordinatorStateAck, now: float
    ) -> list[m.Send]:
        """Handle a message of a replica or a server; the transport has authenticated the sender's name."""
        match message:
            case m.CoordinatorStateAck():
                return self._on_acknowledgement(message, now) if message.server == sender else []
            case m.Join():
                return self._join(message, now) if message.name == sender else []
            case m.ReplicaHeartbeat() | m.Leave():
                member = self.members.of.get(message.session)
                if member is None or member.name != sender:
                    return [
                        m.Send(
                            sender,
                            m.Shutdown(message.session)
                            if self._is_finished
                            else m.SessionExpired(message.session),
                        )
                    ]
                member.last_heartbeat = now
                if isinstance(message, m.Leave):
                    return self._leave(member, message.reason)
                return self._on_heartbeat(member, message)

    def tick(self, now: float) -> list[m.Send]:
        """Advance the time; call it a few times within each interval of the settings."""
        sends: list[m.Send] = []
        for member in self.members.silent_members(now - self.rules.silent_seconds):
            sends += self._expire(member, "no heartbeat")
        if self._acknowledged_state.number < self._newest_state.number:
            if now - self._sent_at >= self.rules.retry_seconds:
                self._sent_at = now
                sends += [
                    m.Send(name, self._newest_state) for name, _ in self.servers if name not in self._answers
                ]
        elif now - self._last_state_at >= self._state_seconds or self._has_changes:
            sends += self._issue_state(now)
        return sends

    def resend(self, server: str) -> list[m.Send]:
        """Return the unacknowledged coordinator state for a server that was replaced."""
        is_owed = self._acknowledged_state.number < self._newest_state.number and server not in self._answers
        return [m.Send(server, self._newest_state)] if is_owed else []

    def silent_servers(self, now: float, seconds: float) -> list[str]:
        """Return the servers that have not acknowledged a coordinator state for this time; nothing is settled
        until they do."""
        if (
            self._acknowledged_state.number == self._newest_state.number
            or now - self._last_state_at < seconds
        ):
            return []
        return [name for name, _ in self.servers if name not in self._answers]

    def on_exit(self, name: str, why: str) -> None:
        """Handle the host's report that a process has exited."""
        session = self.members.session(name)
        if session is not None:
            self._expire(self.members.of[session], why)

    # --- servers ---

    @property
    def _has_changes(self) -> bool:
        """True if servers lack something of the current state."""
        old, new = self._newest_state, self._next_state()
        new = replace(new, settled_below=old.settled_below, settled_above=old.settled_above)
        new = replace(new, recorded=old.recorded, recorded_at_checkpoint=old.recorded_at_checkpoint)
        return replace(new, incarnations=old.incarnations) != old

    @property
    def _state_seconds(self) -> float:
        is_tail = not self.ledger.free and any(hands.needs_samples for hands in self._assignments.values())
        return self.rules.tail_seconds if is_tail else self.rules.state_seconds

    def _next_state(self) -> m.CoordinatorState:
        sessions = tuple((member.session, member.name) for member in self.members)
        forgotten, known = self._durability.settled, self.ledger.settled
        if self.is_freezing:  # the state of a checkpoint has everything applied since it began
            forgotten = self._newest_state.settled
        is_first = bool(forgotten) and forgotten[0][0] == 0
        return m.CoordinatorState(
            self._newest_state.number,
            sessions,
            tuple(self._rates.items()),
            self._newest_state.checkpoint if self.ledger.divided else self.checkpoint,
            forgotten[0][1] if is_first else 0,
            self.released_checkpoint,
            forgotten[1:] if is_first else forgotten,
            known,
            tuple(self._incarnations.items()),
            self._newest_state.recorded_at_checkpoint if self.is_freezing else (),
        )

    def _issue_state(self, now: float) -> list[m.Send]:
        """Send the next coordinator state to all servers."""
        before = self._newest_state
        self._newest_state = replace(self._next_state(), number=before.number + 1)
        if self._newest_state.checkpoint > before.checkpoint:
            self._checkpoint_ledger = CheckpointLedger(self.ledger)
            self._newest_state = replace(
                self._newest_state, recorded_at_checkpoint=self._newest_state.recorded
            )
        self._last_state_at = self._sent_at = now
        self._answers = {}
        return [m.Send(name, self._newest_state) for name, _ in self.servers]

    def _on_acknowledgement(self, answer: m.CoordinatorStateAck, now: float) -> list[m.Send]:
        newest = self._newest_state.number
        if answer.number != newest or self._acknowledged_state.number == newest:
            return []
        self._answers.setdefault(answer.server, answer)
        if len(self._answers) < len(self.servers):
            return []
        before, self._acknowledged_state = self._acknowledged_state, self._newest_state
        answers = [self._answers[name] for name, _ in self.servers]
        self.frozen = min(each.frozen for each in answers)
        sends = self._on_restarts(answers)
        self._settle(
            [{session: (applied, missed) for session, applied, missed in each.samples} for each in answers]
        )
        if self._checkpoint_ledger is not None and self.frozen == self._acknowledged_state.checkpoint:
            cuts = [
                {session: (applied, missed) for session, applied, missed in each.checkpoint_samples}
                for each in answers
            ]
            self._finish_checkpoint(self._checkpoint_ledger.finish(cuts))
        on_disks = self._durability.settled
        self._durability.record_acknowledgement(
            self._acknowledged_state.number, self.ledger.settled, [each.durable_state for each in answers]
        )
        if self._durability.settled != on_disks:
            self.ledger.forget(self._durability.settled)
        self._advance(now)
        fresh = set(self._acknowledged_state.sessions) - set(before.sessions)
        admitted = [
            self._session_opened(self.members.of[session])
            for session, _ in sorted(fresh)
            if session in self.members.of
        ]
        offers = [(member, self._assignments[member.session]) for member in self.members]
        return [*sends, *admitted, *(self._instructions(*each) for each in offers if self._assign(*each))]

    def _finish_checkpoint(self, ledger: SampleLedger) -> None:
        """Keep the ledger of the newest checkpoint, whose state all servers have kept."""
        self._checkpoint_ledger = None
        if ledger.divided and self._attempts < _TRIES:
            self._attempts += 1
            self.released_checkpoint = self.checkpoint
            self.checkpoint += 1
            return
        ledger.tear()
        self._attempts, self.frozen_ledger = 0, ledger

    def _on_restarts(self, answers: Sequence[m.CoordinatorStateAck]) -> list[m.Send]:
        """Handle restarts of servers that lost their memory: free the lost samples and end all sessions."""
        revived = [each for each in answers if each.incarnation > self._incarnations.get(each.server, 0)]
        if not revived:
            return []
        places: list[m.Ranges] = []
        for each in revived:
            if each.restored < self._durability.state:
                self.failure = (
                    f"{each.server} has lost data that were on disks: it has state {each.restored}"
                    f", all disks had state {self._durability.state}; resume from a checkpoint"
                )
            self._incarnations[each.server] = each.incarnation
            has = {session: applied for session, applied, _ in each.samples}
            places.append(self.ledger.revoke(has | dict(each.earlier_sessions)))
        self._durability.retain(self.ledger.settled)
        sends = []
        for member in list(self.members):
            self._end_session(member)
            sends.append(m.Send(member.name, m.SessionExpired(member.session)))
        names = {each.server for each in revived}
        self._sessions_with_loss.update(self._voided)
        if self.checkpoint > self.released_checkpoint:  # some servers no longer have a state of it
            self.frozen_ledger, self._checkpoint_ledger, self.released_checkpoint = (
                None,
                None,
                self.checkpoint,
            )
            self.checkpoint += 1
        self.events += [Event("recovered", each, "continues from a disk") for each in sorted(names)]
        self._report_lost(union(*places), "that counted")
        return sends

    def _report_lost(self, places: m.Ranges, of: str) -> None:
        self.events.append(lost_samples_event(places, self.rules.samples, of))

    def _settle(self, servers: Sequence[Mapping[int, SampleReport]]) -> None:
        """Move the ledger by all servers' reports, by session."""
        living = dict(self._acknowledged_state.sessions)
        for session in living:
            self.ledger.record_report(session, [each.get(session, EMPTY_REPORT) for each in servers])
        for session in [each for each in self._voided if each not in living]:
            name = self._voided.pop(session)
            self.members.forget(name)
            # the last reports of every server on this session
            is_bereft = session in self._sessions_with_loss
            self._sessions_with_loss.discard(session)
            back = self.ledger.open_of(session) if is_bereft else ()
            gone = self.ledger.end_session(
                session, [each.get(session, EMPTY_REPORT) for each in servers], back
            )
            if is_bereft and gone:
                self._report_lost(gone, f"assigned to {name}")
            if self._checkpoint_ledger is not None:
                self._checkpoint_ledger.end_session(session, intersection(gone, self.ledger.divided))

    def _advance(self, now: float) -> None:
        """Advance the epoch and the state of the training."""
        ledger, rules = self.ledger, self.rules
        if self.state is DispatcherState.WARMING and ledger.total.counted >= rules.warm_samples:
            self._move(DispatcherState.RUNNING)
        if self.state is DispatcherState.DRAINING and ledger.free:
            self._move(DispatcherState.RUNNING)
        if self.state in (DispatcherState.WARMING, DispatcherState.RUNNING):
            # includes a session that died after servers were asked: its samples on them are still unknown
            sessions = [session for session, _ in self._acknowledged_state.sessions]
            if not ledger.can_end_epoch(rules.fraction, rules.of, sessions):
                return
            account = ledger.accounts[ledger.epoch]
            self.events.append(
                Event("epoch", "", f"epoch {ledger.epoch + 1} ended: {account.counted} samples counted")
            )
            if ledger.epoch + 1 < rules.epochs:
                ledger.next_epoch()
                if self._checkpoint_ledger is not None:
                    self._checkpoint_ledger.next_epoch()
            else:
                ledger.stop()
                self._move(DispatcherState.DRAINING)
        if self.state is DispatcherState.DRAINING and not ledger.open and not self.is_freezing:
            self._finished_at = now if self._finished_at is None else self._finished_at
            is_saved = self._durability.settled == ledger.settled or not self._durability.is_pending
            if is_saved or now - self._finished_at > rules.silent_seconds:  # a disk may fail to store them
                self.is_unsaved = not is_saved
                self._move(DispatcherState.FINISHED)

    def _move(self, state: DispatcherState) -> None:
        assert state in NEXT[self.state], f"training cannot change from {self.state} to {state}"
        self.state = state
