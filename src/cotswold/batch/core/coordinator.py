"""The coordinator: message in, messages out; rounds with the servers, evaluations with the workers.

Knows: connected workers, the current round and evaluation. Does not know: sockets, clocks, processes,
vectors, the next step of an optimiser.

    request          when idle                 result
    run              one round                 `RoundOutcome`
    evaluate         an evaluation             `EvaluationResult`, or `RoundOutcome` with an error
    write            nothing                   the caller sends `Write` and receives `WriteAck` itself

A request may wait forever, because workers may still join. `failure` returns the reason for a stall, and
`abandon` cancels the evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.batch.core.evaluation import EvaluationRun
from cotswold.batch.core.evaluation_state import EvaluationState
from cotswold.batch.core.portion_queues import PortionHomes
from cotswold.batch.core.requests import EvaluationRequest, EvaluationResult, Failure, PlanFunction
from cotswold.batch.core.rounds import RoundManager, RoundOutcome
from cotswold.batch.core.settings import EvaluationSettings
from cotswold.optim.vectors.base import Command
from cotswold.shards.core.events import Event
from cotswold.shards.core.membership import Member, Members
from cotswold.wire import (
    Aborted,
    EndEvaluation,
    FromServer,
    FromWorker,
    Join,
    Leave,
    Open,
    PointReady,
    PortionFailed,
    PortionsComputed,
    RoundReply,
    Send,
    SessionExpired,
    Shard,
    Shutdown,
    SumPushed,
    Validated,
    Welcome,
    WorkerHeartbeat,
)


class Coordinator:
    """The coordinator of one run."""

    def __init__(
        self,
        rules: EvaluationSettings,
        shards: Sequence[Shard],
        servers: Sequence[tuple[str, str]],
        planner: PlanFunction,
        now: float,
    ) -> None:
        assert {shard.server for shard in shards} <= {name for name, _ in servers}, (
            "a shard names an unknown server"
        )
        self.rules, self.shards, self.servers, self.planner = rules, tuple(shards), tuple(servers), planner
        self.members = Members()
        self.homes = PortionHomes()
        self.outcome: RoundOutcome | EvaluationResult | None = None
        """Result of the last request, once it is done."""
        self.events: list[Event] = []
        """Events that have not been taken yet."""
        self._rounds = RoundManager([name for name, _ in servers], rules.retry_seconds)
        self._evaluation: EvaluationRun | None = None
        self._number = 0
        self._dead_servers: dict[str, str] = {}
        self._ready_at = now
        """Last time at which a worker was ready, or none was needed."""

    # --- requests of the caller ---

    @property
    def is_busy(self) -> bool:
        """True while a request is in progress."""
        return self._rounds.is_active or self._evaluation is not None

    @property
    def is_round_active(self) -> bool:
        """True while servers have not answered a round."""
        return self._rounds.is_active

    @property
    def progress(self) -> tuple[int, int, int]:
        """Number of the newest evaluation; while it runs, its number of portions and how many are in some
        sum."""
        evaluation = self._evaluation
        if evaluation is None:
            return self._number, 0, 0
        ledger = evaluation.ledger
        wanted = len(ledger.counted) + len(ledger.open)
        return self._number, wanted, ledger.computed

    def run(self, commands: Sequence[Command], now: float, digest: str | None = None) -> list[Send]:
        """Run commands on the shards, as one round."""
        assert not self.is_busy, "one thing at a time"
        self.outcome = None
        return self._rounds.start(now, commands, digest=digest)

    def evaluate(self, request: EvaluationRequest, now: float) -> list[Send]:
        """Start an evaluation of a value, with a gradient if requested. Raise ValueError for unknown
        portions."""
        assert not self.is_busy, "one thing at a time"
        names = [name for name, _ in self.servers]
        evaluation = EvaluationRun(
            self._number + 1, request, self.rules, self.members, self.homes, self.planner, names, now
        )
        self._number += 1
        self.outcome, self._evaluation, self._ready_at = None, evaluation, now
        opened = Open(self._number, request.at, request.gradient is not None, self.rules.tree)
        digest = request.at if request.keeps else None
        return [
            *self._rounds.start(now, request.before, open=opened, digest=digest),
            *evaluation.begin(now),
        ]

    def abandon(self, now: float) -> list[Send]:
        """Cancel the current evaluation after its round; its counted portions are lost."""
        evaluation = self._evaluation
        if evaluation is None:
            return []
        assert not self._rounds.is_active, "the current round must end first"
        self._evaluation = None
        return [
            Send(member.name, EndEvaluation(member.session, evaluation.number)) for member in self.members
        ]

    def retry(self, now: float) -> list[Send]:
        """Continue the evaluation after a failure: results are kept, failed portions are tried again."""
        self._ready_at = now
        if self._evaluation is None:
            return []
        return self._dismissed(self._evaluation.retry(now), now)

    def silent_servers(self, now: float) -> list[str]:
        """Return the servers that have exceeded the timeout of a round."""
        return self._rounds.unanswered_since(now - self.rules.no_worker_seconds)

    def failure(self, now: float) -> Failure | None:
        """Return the reason why the request is stalled, or None."""
        for name, why in self._dead_servers.items():  # its vectors are lost, so every request fails
            return Failure("server", f"parameter server {name} is lost: {why}")
        if silent := self.silent_servers(now):
            names, seconds = " and ".join(silent), self.rules.no_worker_seconds
            return Failure("server", f"parameter server {names} has not answered for {seconds:g} s")
        evaluation = self._evaluation
        if evaluation is None:
            return None
        if any(member.is_ready for member in self.members):
            self._ready_at = now
        elif now - self._ready_at > self.rules.no_worker_seconds:
            there = (
                f"{len(self.members)} are connected, none has the parameters"
                if len(self.members)
                else "none is connected"
            )
            return Failure(
                "lonely",
                f"evaluation {evaluation.number} has had no worker for {self.rules.no_worker_seconds:g} s "
                f"({there}); it continues when one joins",
            )
        return evaluation.unprocessable

    # --- received messages and time ---

    def receive(self, sender: str, message: FromWorker | FromServer, now: float) -> list[Send]:
        """Handle a message of a worker or a server; the transport has authenticated the sender's name."""
        match message:
            case Join():
                return self._join(message, now) if message.name == sender else []
            case RoundReply():
                return self._answer(message, now) if message.server == sender else []
            case (
                WorkerHeartbeat()
                | PointReady()
                | PortionsComputed()
                | PortionFailed()
                | SumPushed()
                | Aborted()
                | Leave()
                | Validated()
            ):
                member = self.members.of.get(message.session)
                if member is None or member.name != sender:
                    return [Send(sender, SessionExpired(message.session))]
                member.last_heartbeat = now
                return self._dismissed(self._on_computed(member, message, now), now)
            case _:
                return []  # a server's reply to another request

    def tick(self, now: float) -> list[Send]:
        """Advance the time; call it a few times within each interval of the settings."""
        sends = self._rounds.tick(now)
        for member in self.members.silent_members(now - self.rules.silent_seconds):
            sends += self._remove(member, None, now)
        if self._evaluation is not None:
            sends += self._evaluation.tick(now)
        return self._dismissed(sends, now)

    def on_exit(self, name: str, why: str, now: float) -> list[Send]:
        """Handle the host's report that a process has exited."""
        if name in dict(self.servers):
            self._dead_servers[name] = why
            return []
        session = self.members.session(name)
        if session is None:
            return []
        return self._dismissed(self._remove(self.members.of[session], why, now), now)

    def leave(self, name: str, reason: str, now: float) -> list[Send]:
        """Ask a worker to leave once its results are settled."""
        session = self.members.session(name)
        if session is None:
            return []
        return self._dismissed(self._on_computed(self.members.of[session], Leave(session, reason), now), now)

    def take_events(self) -> list[Event]:
        """Return the events since the last call."""
        if self._evaluation is not None:
            self.events += self._evaluation.events
            self._evaluation.events.clear()
        events, self.events = self.events, []
        return events

    # --- workers ---

    def _join(self, join: Join, now: float) -> list[Send]:
        session = self.members.session(join.name)
        if self.members.is_known(join):
            if session is None or self.members.of[session].join != join:
                return []  # from an ended session
            return [self._send_welcome(self.members.of[session])]
        sends = [] if session is None else self._remove(self.members.of[session], None, now)
        problem = self._misfit(join)
        if problem is not None:
            self.events.append(Event("refused", join.name, problem))
            return [*sends, Send(join.name, Shutdown(0))]
        member = self.members.add(join, now)
        self.events.append(Event("joined", member.name, f"session {member.session}"))
        sends.append(self._send_welcome(member))
        if self._evaluation is not None:
            sends += self._evaluation.joined(member, now)
        return sends

    def _misfit(self, join: Join) -> str | None:
        dealing = self.rules.permutation
        if join.samples != dealing.samples:
            return f"it has {join.samples} samples, but the run has {dealing.samples}"
        if join.size != self.rules.size:
            return f"it has {join.size} parameters, but the run has {self.rules.size}"
        return None

    def _send_welcome(self, member: Member) -> Send:
        rules, dealing = self.rules, self.rules.permutation
        welcome = Welcome(
            member.name,
            member.join.attempt,
            member.session,
            dealing.seed,
            dealing.samples,
            dealing.portion,
            rules.tree,
            rules.pushes,
            rules.flush_seconds,
            rules.beat_seconds,
            rules.retry_seconds,
            self.shards,
            self.servers,
            rules.settings,
        )
        return Send(member.name, welcome)

    def _on_computed(
        self,
        member: Member,
        message: WorkerHeartbeat
        | PointReady
        | PortionsComputed
        | PortionFailed
        | SumPushed
        | Aborted
        | Leave
        | Validated,
        now: float,
    ) -> list[Send]:
        if isinstance(message, Validated):
            return []  # for the caller
        if isinstance(message, Leave):
            if not member.is_leaving:
                member.is_leaving = True
                self.events.append(Event("left", member.name, message.reason))
                return [] if self._evaluation is None else self._evaluation.on_leaving(member, now)
            return []
        evaluation = self._evaluation
        if isinstance(message, WorkerHeartbeat) and evaluation is not None:
            return evaluation.beat(member, message, now)
        if (
            evaluation is None
            or isinstance(message, WorkerHeartbeat)
            or message.evaluation != evaluation.number
        ):
            return self._end_for(member, message.evaluation)
        match message:
            case PointReady():
                return evaluation.on_ready(member, message, now)
            case PortionsComputed():
                return evaluation.computed(member, message.computed, now)
            case PortionFailed():
                return evaluation.failed(member, message.grant, message.error, now)
            case SumPushed():
                return evaluation.pushed(member, message, now)
            case Aborted():
                return evaluation.aborted(member, message, now)

    def _end_for(self, member: Member, number: int) -> list[Send]:
        """Handle a message about an evaluation that is over."""
        if number == 0 or (self._evaluation is not None and number == self._evaluation.number):
            return []
        return [Send(member.name, EndEvaluation(member.session, number))]

    def _remove(self, member: Member, why: str | None, now: float) -> list[Send]:
        self.members.end(member.session)
        self.events.append(Event("lost", member.name, why or "no heartbeat"))
        sends = [] if why is not None else [Send(member.name, SessionExpired(member.session))]
        if self._evaluation is not None:
            sends += self._evaluation.on_lost(member, why, now)
        return sends

    def _dismissed(self, sends: list[Send], now: float) -> list[Send]:
        """Shut down leaving workers without unsettled results; close a complete evaluation."""
        for member in self.members:
            if member.is_leaving and (self._evaluation is None or self._evaluation.may_go(member)):
                self.members.end(member.session)
                sends.append(Send(member.name, Shutdown(member.session)))
                if self._evaluation is not None:
                    sends += self._evaluation.on_lost(member, None, now)
        evaluation = self._evaluation
        if (
            evaluation is not None
            and evaluation.state is EvaluationState.CLOSING
            and not self._rounds.is_active
        ):
            sends += self._rounds.start(now, evaluation.request.after, close=evaluation.close)
        return sends

    # --- servers ---

    def _answer(self, answer: RoundReply, now: float) -> list[Send]:
        done = self._rounds.answer(answer)
        if done is None:
            return []
        evaluation = self._evaluation
        if evaluation is None:
            self.outcome = done
        elif done.error is not None:
            self.outcome = done
            return self.abandon(now)
        elif evaluation.state is EvaluationState.OPENING:
            return self._dismissed(evaluation.on_opened(done.digests, now), now)
        else:
            self.outcome = evaluation.finish(done.dots, now)
            self.events += evaluation.events
            self._evaluation = None
        return []
