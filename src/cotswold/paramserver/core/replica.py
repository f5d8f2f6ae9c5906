"""A replica: when it steps, pushes and pulls; message in, messages out.

Knows: assigned samples, versions, unanswered updates. Does not know: weights, gradients, sockets, clocks,
threads.

The caller takes a `task`, executes it and calls `finish_step`. Meanwhile it passes messages to `receive` and
calls `tick`, which sends heartbeats and repeats unanswered messages. The caller computes in one thread and
exchanges messages in others: pulls and pushes continue while a step is computed.

    state      event                               next
    OUTSIDE    SessionOpened: pull from all        FETCHING
    FETCHING   every shard has arrived             READY
    READY      ReplicaInstructions, Applied, ...   READY
    any        SessionExpired                      OUTSIDE    (all assignments are dropped)
    any        Shutdown                            GONE

    condition in READY                    action
    samples are assigned                  a step, added to the accumulation
    n_push steps, or the last sample      close the accumulation and push it to every server
    an assignment to push alone           close the accumulation before its first and after its last step
    a push is not answered by all         continue stepping until the next accumulation is closed
    n_fetch steps                         pull newer shards; continue stepping meanwhile
    the same, with ``applies_locally``    pull after one push is applied and before the next
    ``overlap`` off                       no step until the push is applied and its pull has arrived
    a checkpoint is announced             send its marker to every server, once the previous push is answered
    no samples are assigned               send an update without shards, so that servers do not wait

A push has the same number on every server, so markers separate the same updates on all servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from cotswold.paramserver.core.replica_session import (
    Pace,
    ReplicaSession,
    SampleAssignment,
    StepAccumulation,
    StepTask,
)
from cotswold.paramserver.core.update_sequence import ServerUpdate, UpdateSequence, UpdateSource
from cotswold.wire import (
    COORDINATOR,
    Applied,
    Join,
    Leave,
    PulledNewer,
    PullNewer,
    ReplicaHeartbeat,
    ReplicaInstructions,
    Send,
    SessionExpired,
    SessionOpened,
    Shutdown,
    ToReplica,
    UpdateRefused,
)
from cotswold.wire.ranges import union


class ReplicaState(Enum):
    """State of a replica."""

    OUTSIDE = "outside"
    FETCHING = "fetching"
    READY = "ready"
    GONE = "gone"


class Replica:
    """One replica process, from its first `Join` to its end."""

    def __init__(self, join: Join, pace: Pace) -> None:
        self.name, self.pace, self.state = join.name, pace, ReplicaState.OUTSIDE
        self.steps = 0
        self._join = join
        self._joined: float | None = None
        self._session: ReplicaSession | None = None
        self._step_session: ReplicaSession | None = None
        """Session of the task in progress."""
        self._leave_reason: str | None = None

    @property
    def session(self) -> int:
        """Number of its session; 0 without one."""
        return 0 if self._session is None else self._session.admitted.session

    @property
    def activity(self) -> tuple[str, tuple[str, ...]]:
        """Current activity, and the names of the processes it waits for: `computing`; `pushing`, until its
        push is applied; `pulling`, until parameters arrive; `idle`, until samples are assigned; `joining`;
        `exiting`."""
        session = self._session
        if session is None:
            return ("exiting", ()) if self.state is ReplicaState.GONE else ("joining", (COORDINATOR,))
        if self._step_session is not None:
            return "computing", ()
        pushing, pulling = session.pushing, tuple(session.pulling)
        if self.state is ReplicaState.FETCHING:
            return "pulling", pulling
        if pushing and (session.closed is not None or not session.assignments or not self.pace.overlap):
            return "pushing", pushing
        if pulling and (session.must_pull or not self.pace.overlap):
            return "pulling", pulling
        if not session.assignments:
            return "idle", (COORDINATOR,)
        return "computing", ()

    # --- received messages ---

    def receive(self, sender: str, message: ToReplica, now: float) -> list[Send]:
        """Handle a message of the coordinator or of a server."""
        if isinstance(message, SessionOpened):
            return self._on_session_opened(message, now)
        session = self._session
        if isinstance(message, Shutdown) and message.session in (0, self.session):
            return self._exit()
        if isinstance(message, SessionExpired) and message.session == self.session:
            return self._rejoin(now)
        if session is None or message.session != self.session:
            return []
        match message:
            case ReplicaInstructions():
                self._on_instructions(session, message)
            case PulledNewer() if message.server == sender:
                self._on_pulled(session, message)
            case Applied() if message.server == sender:
                session.updates.record_answer(sender, message.number)
            case UpdateRefused() if message.server == sender:
                session.updates.record_refusal(sender, message)
            case _:
                return []
        return self._send_due(session, now)

    def tick(self, now: float) -> list[Send]:
        """Advance the time; call it a few times per heartbeat interval, also while a step is computed."""
        if self.state is ReplicaState.GONE:
            return []
        session = self._session
        if session is None:
            if self._joined is not None and now - self._joined < 1.0:
                return []
            self._joined = now
            return [Send(COORDINATOR, self._join)]
        sends: list[Send] = []
        retry = session.admitted.retry_seconds
        if session.pulling and now - session.pull_sent_at >= retry:
            session.pull_sent_at = now
            sends += [Send(server, pull) for server, pull in session.pulling.items()]
        sends += session.updates.resend(now)
        if now - session.last_beat >= session.admitted.beat_seconds:
            sends += self._release_waiting(session, now)
            sends += self._beat(session, now)
            if self._leave_reason is not None:
                sends.append(Send(COORDINATOR, Leave(self.session, self._leave_reason)))
        return sends

    def resend(self, server: str) -> list[Send]:
        """Return the unanswered messages for a server that was replaced."""
        session = self._session
        if session is None:
            return []
        owed = session.pulling.get(server), session.updates.unanswered.get(server)
        return [Send(server, each) for each in owed if each is not None]

    def leave(self, reason: str) -> list[Send]:
        """Ask to leave; the replica is GONE once its assigned samples count."""
        self._leave_reason = reason
        return [Send(COORDINATOR, Leave(self.session, reason))] if self._session else self._exit()

    # --- steps ---

    def task(self) -> StepTask | None:
        """Return the next step; None if there is none, or while one is computed."""
        session = self._session
        if session is None or self.state is not ReplicaState.READY or self._step_session is not None:
            return None
        if not session.assignments or session.closed is not None or session.instructions is None:
            return None
        if session.must_pull or (not self.pace.overlap and (session.pushing or session.pulling)):
            return None
        start, stop, is_alone = session.assignments.pop(0)
        samples = (start, min(stop, start + self.pace.batch))
        if samples[1] < stop:
            session.assignments.insert(0, SampleAssignment(samples[1], stop, is_alone))
        opens = session.accumulation is None
        if session.accumulation is None:
            session.accumulation = StepAccumulation(dict(session.versions), session.instructions.rate)
        accumulation = session.accumulation
        accumulation.steps += 1
        accumulation.samples = union(accumulation.samples, (samples,))
        accumulation.is_exclusive, accumulation.ends_assignment = is_alone, samples[1] == stop
        closes = accumulation.steps >= self.pace.n_push or self._must_close(session, accumulation)
        installs, session.installs = session.installs, []
        self._step_session = session
        pull, behind = (self.session, session.pulls), session.closed_count - session.applied_count
        return StepTask(installs, samples, session.instructions.rate_value, opens, closes, pull, behind)

    @property
    def can_extend(self) -> bool:
        """True if the accumulation with the step of the task need not be pushed yet, because the previous
        push is unanswered."""
        session = self._session
        if session is None or session.accumulation is None or not session.pushing:
            return False
        if self._must_close(session, session.accumulation):
            return False
        return session.accumulation.steps < self.pace.n_push * self.pace.stretch

    @staticmethod
    def _must_close(session: ReplicaSession, accumulation: StepAccumulation) -> bool:
        """True if the next step, if any, belongs to another push."""
        if not session.assignments:
            return True
        return accumulation.ends_assignment and (
            accumulation.is_exclusive or session.assignments[0].is_exclusive
        )

    def upcoming(self, count: int) -> list[tuple[int, int]]:
        """Return the sample positions of the steps after the current one, at most ``count``, from the current
        assignments."""
        found: list[tuple[int, int]] = []
        for start, stop, _ in () if self._session is None else self._session.assignments:
            for first in range(start, stop, self.pace.batch):
                if len(found) == count:
                    return found
                found.append((first, min(stop, first + self.pace.batch)))
        return found

    def finish_step(self, parts: Mapping[str, ServerUpdate] | None, now: float) -> list[Send]:
        """Record that the step of the task is accumulated; ``parts``, if given, close the accumulation, one
        part per server."""
        session, self._step_session = self._step_session, None
        assert session is not None, "no step was in progress"
        self.steps += 1
        if session is not self._session:
            return []
        session.steps_since_pull += 1
        if parts is not None:
            assert session.accumulation is not None and session.closed is None, "no accumulation was open"
            session.closed, session.accumulation = session.accumulation, None
            session.closed.parts = parts
            session.closed_count += 1
        sends = self._send_due(session, now)
        if session.remaining_samples < self.pace.batch:
            sends += self._beat(session, now)
        return sends

    # --- joining and leaving ---

    def _on_session_opened(self, admitted: SessionOpened, now: float) -> list[Send]:
        if self._session is not None or (admitted.name, admitted.attempt) != (self.name, self._join.attempt):
            return []
        versions = {shard.number: -1 for shard in admitted.shards}
        self._session = session = ReplicaSession(admitted, UpdateSequence(admitted), versions)
        self.state = ReplicaState.FETCHING
        return [*self._pull(session, now), *self._beat(session, now)]

    def _rejoin(self, now: float) -> list[Send]:
        self._session = None
        if self._leave_reason is not None:
            return self._exit()
        self.state, self._joined = ReplicaState.OUTSIDE, now
        self._join = replace(self._join, attempt=self._join.attempt + 1)
        return [Send(COORDINATOR, self._join)]

    def _exit(self) -> list[Send]:
        self._session, self.state = None, ReplicaState.GONE
        return []

    def _beat(self, session: ReplicaSession, now: float) -> list[Send]:
        session.last_beat = now
        return [
            Send(
                COORDINATOR,
                ReplicaHeartbeat(self.session, session.newest_assignment, session.remaining_samples),
            )
        ]

    def _on_instructions(self, session: ReplicaSession, directions: ReplicaInstructions) -> None:
        before = session.instructions
        if before is None or (directions.rate, directions.checkpoint) >= (before.rate, before.checkpoint):
            session.instructions = directions
        for number, start, stop in directions.assignments:
            if number == session.newest_assignment + 1:
                session.newest_assignment = number
                session.assignments.append(SampleAssignment(start, stop, number in directions.exclusive))

    # --- pulls ---

    def _shards(self, session: ReplicaSession) -> dict[str, tuple[int, ...]]:
        return {
            server: tuple(each.number for each in session.admitted.shards if each.server == server)
            for server, _ in session.admitted.servers
        }

    def _pull(self, session: ReplicaSession, now: float) -> list[Send]:
        """Ask every server for newer shards."""
        # while a push is queued somewhere, the next may wait for it, so no replica may wait for the next; a
        # marker waits for no update
        number = 0 if session.updates.is_unanswered or session.closed else session.updates.last_computed + 1
        session.pull_sent_at, session.steps_since_pull = now, 0
        session.pulls, session.applied_count = session.pulls + 1, session.closed_count - bool(session.closed)
        session.has_pulled = session.has_pulled or number > 0
        session.pulling = {
            server: PullNewer(
                session.admitted.run,
                self.session,
                number,
                shards,
                tuple(session.versions[each] for each in shards),
            )
            for server, shards in self._shards(session).items()
        }
        return [Send(server, pull) for server, pull in session.pulling.items()]

    def _on_pulled(self, session: ReplicaSession, pulled: PulledNewer) -> None:
        pull = session.pulling.get(pulled.server)
        if pull is None or pulled.error is not None or pulled.number != pull.number:
            return  # `tick` asks again
        del session.pulling[pulled.server]
        newer = [
            place
            for place, (number, version) in enumerate(zip(pulled.shards, pulled.versions, strict=True))
            if version > session.versions[number]
        ]
        if newer:
            kept = replace(
                pulled,
                shards=tuple(pulled.shards[place] for place in newer),
                versions=tuple(pulled.versions[place] for place in newer),
                buffers=tuple(pulled.buffers[place] for place in newer),
            )
            session.versions.update(zip(kept.shards, kept.versions, strict=True))
            session.installs.append(kept)
        if not session.pulling:
            session.must_pull = False
            if self.state is ReplicaState.FETCHING and min(session.versions.values()) >= 0:
                self.state = ReplicaState.READY

    # --- pushes ---

    def _send_due(self, session: ReplicaSession, now: float) -> list[Send]:
        """Send what is due: one push at a time, a pull when one is due."""
        if self.state is not ReplicaState.READY:
            return []
        sends: list[Send] = []
        if self.pace.applies_locally and self.pace.overlap and not session.pushing:
            sends += self._pull_if_due(session, now)
        checkpoint = 0 if session.instructions is None else session.instructions.checkpoint
        if not session.pushing and checkpoint > session.updates.sent_marker:
            sends += session.updates.mark(checkpoint, now)
        elif not session.pushing and session.closed is not None:
            closed, session.closed = session.closed, None
            session.has_pulled = False
            origin = UpdateSource(closed.versions, closed.rate, closed.samples)
            sends += session.updates.push(closed.parts, origin, now)
        is_free = self.pace.overlap and not self.pace.applies_locally
        if is_free or not (session.pushing or session.closed):
            sends += self._pull_if_due(session, now)
        return sends

    def _pull_if_due(self, session: ReplicaSession, now: float) -> list[Send]:
        is_due = (session.must_pull and session.assignments) or session.steps_since_pull >= self.pace.n_fetch
        # the steps missing from a pull are known once the previous pull is installed
        is_busy = session.pulling or (
            self.pace.applies_locally and session.installs and not session.must_pull
        )
        return self._pull(session, now) if is_due and not is_busy else []

    def _release_waiting(self, session: ReplicaSession, now: float) -> list[Send]:
        """Release replicas that wait for an update from its pull, because no samples are assigned."""
        busy = (
            session.assignments
            or session.accumulation
            or session.closed
            or session.pushing
            or session.pulling
        )
        if busy or self._step_session or not session.has_pulled or self.state is not ReplicaState.READY:
            return []
        session.must_pull, session.has_pulled = True, False
        return session.updates.push({}, UpdateSource(), now)
