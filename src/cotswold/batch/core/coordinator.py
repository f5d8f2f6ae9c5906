"""The coordinator: message in, messages out; rounds with the servers, evaluations with the workers.

Knows: who is there, which round and which evaluation is on. Does not know: sockets, clocks, processes,
vectors, what an optimiser does next.

    is asked for     while nothing is on       says when it is done
    run              one round                 `RoundDone`
    evaluate         an evaluation             `Counted`, or `RoundDone` with an error
    write            nothing of the kind       the shell sends `Write` and hears `Written` itself

What it is asked for may wait for ever, for workers may come; `trouble` says why nothing goes on, and
`abandon` gives the evaluation up.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotswold.batch.core.chunk_queues import Homes
from cotswold.batch.core.evaluation import Evaluation, State
from cotswold.batch.core.requests import Counted, Event, Planner, Request, Trouble
from cotswold.batch.core.rounds import RoundDone, Rounds
from cotswold.batch.core.settings import Rules
from cotswold.optim.vectors.base import Command
from cotswold.shards.core.membership import Member, Members
from cotswold.wire import (
    Aborted,
    Answer,
    Beat,
    Computed,
    Dismiss,
    End,
    Failed,
    FromServer,
    FromWorker,
    Join,
    Leave,
    Open,
    Pushed,
    Ready,
    Rejoin,
    Send,
    Shard,
    Validated,
    Welcome,
)


class Coordinator:
    """One coordinator, for a run."""

    def __init__(
        self,
        rules: Rules,
        shards: Sequence[Shard],
        servers: Sequence[tuple[str, str]],
        planner: Planner,
        now: float,
    ) -> None:
        assert {shard.server for shard in shards} <= {name for name, _ in servers}, (
            "every shard has its server"
        )
        self.rules, self.shards, self.servers, self.planner = rules, tuple(shards), tuple(servers), planner
        self.members = Members()
        self.homes = Homes()
        self.outcome: RoundDone | Counted | None = None
        """What was asked for last, once it is done."""
        self.events: list[Event] = []
        """Since they were taken."""
        self._rounds = Rounds([name for name, _ in servers], rules.retry_seconds)
        self._evaluation: Evaluation | None = None
        self._number = 0
        self._dead_servers: dict[str, str] = {}
        self._ready_at = now
        """When somebody was ready last, or nobody was needed."""

    # --- what it is asked for ---

    @property
    def is_busy(self) -> bool:
        """Whether something that was asked for is not done."""
        return self._rounds.is_under_way or self._evaluation is not None

    @property
    def is_round_under_way(self) -> bool:
        """Whether the servers have been asked for something."""
        return self._rounds.is_under_way

    @property
    def progress(self) -> tuple[int, int, int]:
        """The number of the newest evaluation; its portions while it is on, and how many are in some sum."""
        evaluation = self._evaluation
        if evaluation is None:
            return self._number, 0, 0
        ledger = evaluation.ledger
        wanted = len(ledger.counted) + len(ledger.open)
        return self._number, wanted, ledger.computed

    def run(self, commands: Sequence[Command], now: float, digest: str | None = None) -> list[Send]:
        """Commands for the shards, as one round."""
        assert not self.is_busy, "one thing at a time"
        self.outcome = None
        return self._rounds.start(now, commands, digest=digest)

    def evaluate(self, request: Request, now: float) -> list[Send]:
        """A value, and a gradient where one is wanted. Raises ValueError for portions that there are not."""
        assert not self.is_busy, "one thing at a time"
        names = [name for name, _ in self.servers]
        evaluation = Evaluation(
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
        """Give up the evaluation that is on, once its round is over; what it has counted is lost."""
        evaluation = self._evaluation
        if evaluation is None:
            return []
        assert not self._rounds.is_under_way, "a round that is under way ends first"
        self._evaluation = None
        return [Send(member.name, End(member.session, evaluation.number)) for member in self.members]

    def retry(self, now: float) -> list[Send]:
        """After trouble: the evaluation goes on with what is computed; what failed is tried again."""
        self._ready_at = now
        if self._evaluation is None:
            return []
        return self._dismissed(self._evaluation.retry(now), now)

    def silent_servers(self, now: float) -> list[str]:
        """Servers that have not answered for so long that they may never."""
        return self._rounds.silent_since(now - self.rules.lonely_seconds)

    def trouble(self, now: float) -> Trouble | None:
        """Why nothing goes on, if nothing does."""
        for name, why in self._dead_servers.items():  # its vectors are lost, whatever it is asked for
            return Trouble("server", f"parameter server {name} is gone: {why}")
        if silent := self.silent_servers(now):
            names, seconds = " and ".join(silent), self.rules.lonely_seconds
            return Trouble("server", f"parameter server {names} has not answered for {seconds:g} s")
        evaluation = self._evaluation
        if evaluation is None:
            return None
        if any(member.is_ready for member in self.members):
            self._ready_at = now
        elif now - self._ready_at > self.rules.lonely_seconds:
            there = (
                f"{len(self.members)} are there, and none has the parameters"
                if len(self.members)
                else "none is there"
            )
            return Trouble(
                "lonely",
                f"evaluation {evaluation.number} has had no worker for {self.rules.lonely_seconds:g} s "
                f"({there}); it goes on when one joins",
            )
        return evaluation.poisoned

    # --- what happens ---

    def receive(self, sender: str, message: FromWorker | FromServer, now: float) -> list[Send]:
        """A message of a worker or a server, by whose name the transport knows the sender."""
        match message:
            case Join():
                return self._join(message, now) if message.name == sender else []
            case Answer():
                return self._answer(message, now) if message.server == sender else []
            case Beat() | Ready() | Computed() | Failed() | Pushed() | Aborted() | Leave() | Validated():
                member = self.members.of.get(message.session)
                if member is None or member.name != sender:
                    return [Send(sender, Rejoin(message.session))]
                member.heard = now
                return self._dismissed(self._heard(member, message, now), now)
            case _:
                return []  # a server's answer to somebody else's question

    def tick(self, now: float) -> list[Send]:
        """Time has passed; to be called a few times in each of the rules' seconds."""
        sends = self._rounds.tick(now)
        for member in self.members.silent(now - self.rules.silent_seconds):
            sends += self._lose(member, None, now)
        if self._evaluation is not None:
            sends += self._evaluation.tick(now)
        return self._dismissed(sends, now)

    def ended(self, name: str, why: str, now: float) -> list[Send]:
        """The host says that a process has ended."""
        if name in dict(self.servers):
            self._dead_servers[name] = why
            return []
        session = self.members.session(name)
        if session is None:
            return []
        return self._dismissed(self._lose(self.members.of[session], why, now), now)

    def leave(self, name: str, reason: str, now: float) -> list[Send]:
        """A worker shall go once what it holds is settled."""
        session = self.members.session(name)
        if session is None:
            return []
        return self._dismissed(self._heard(self.members.of[session], Leave(session, reason), now), now)

    def take_events(self) -> list[Event]:
        """What has happened since they were taken last."""
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
                return []  # of a session that is over
            return [self._welcome(self.members.of[session])]
        sends = [] if session is None else self._lose(self.members.of[session], None, now)
        problem = self._misfit(join)
        if problem is not None:
            self.events.append(Event("refused", join.name, problem))
            return [*sends, Send(join.name, Dismiss(0))]
        member = self.members.add(join, now)
        self.events.append(Event("joined", member.name, f"session {member.session}"))
        sends.append(self._welcome(member))
        if self._evaluation is not None:
            sends += self._evaluation.joined(member, now)
        return sends

    def _misfit(self, join: Join) -> str | None:
        dealing = self.rules.dealing
        if join.patterns != dealing.patterns:
            return f"it has {join.patterns} patterns, and the run has {dealing.patterns}"
        if join.size != self.rules.size:
            return f"it has {join.size} parameters, and the run has {self.rules.size}"
        return None

    def _welcome(self, member: Member) -> Send:
        rules, dealing = self.rules, self.rules.dealing
        welcome = Welcome(
            member.name,
            member.join.attempt,
            member.session,
            dealing.seed,
            dealing.patterns,
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

    def _heard(
        self,
        member: Member,
        message: Beat | Ready | Computed | Failed | Pushed | Aborted | Leave | Validated,
        now: float,
    ) -> list[Send]:
        if isinstance(message, Validated):
            return []  # for the shell
        if isinstance(message, Leave):
            if not member.is_leaving:
                member.is_leaving = True
                self.events.append(Event("left", member.name, message.reason))
                return [] if self._evaluation is None else self._evaluation.leaving(member, now)
            return []
        evaluation = self._evaluation
        if isinstance(message, Beat) and evaluation is not None:
            return evaluation.beat(member, message, now)
        if evaluation is None or isinstance(message, Beat) or message.evaluation != evaluation.number:
            return self._over(member, message.evaluation)
        match message:
            case Ready():
                return evaluation.ready(member, message, now)
            case Computed():
                return evaluation.computed(member, message.held, now)
            case Failed():
                return evaluation.failed(member, message.grant, message.error, now)
            case Pushed():
                return evaluation.pushed(member, message, now)
            case Aborted():
                return evaluation.aborted(member, message, now)

    def _over(self, member: Member, number: int) -> list[Send]:
        """It speaks of an evaluation that is over."""
        if number == 0 or (self._evaluation is not None and number == self._evaluation.number):
            return []
        return [Send(member.name, End(member.session, number))]

    def _lose(self, member: Member, why: str | None, now: float) -> list[Send]:
        self.members.void(member.session)
        self.events.append(Event("lost", member.name, why or "it is silent"))
        sends = [] if why is not None else [Send(member.name, Rejoin(member.session))]
        if self._evaluation is not None:
            sends += self._evaluation.lost(member, why, now)
        return sends

    def _dismissed(self, sends: list[Send], now: float) -> list[Send]:
        """Whoever wanted to go and holds nothing goes; an evaluation that is complete is closed."""
        for member in self.members:
            if member.is_leaving and (self._evaluation is None or self._evaluation.may_go(member)):
                self.members.void(member.session)
                sends.append(Send(member.name, Dismiss(member.session)))
                if self._evaluation is not None:
                    sends += self._evaluation.lost(member, None, now)
        evaluation = self._evaluation
        if evaluation is not None and evaluation.state is State.CLOSING and not self._rounds.is_under_way:
            sends += self._rounds.start(now, evaluation.request.after, close=evaluation.close)
        return sends

    # --- servers ---

    def _answer(self, answer: Answer, now: float) -> list[Send]:
        done = self._rounds.answer(answer)
        if done is None:
            return []
        evaluation = self._evaluation
        if evaluation is None:
            self.outcome = done
        elif done.error is not None:
            self.outcome = done
            return self.abandon(now)
        elif evaluation.state is State.OPENING:
            return self._dismissed(evaluation.opened(done.digests, now), now)
        else:
            self.outcome = evaluation.closed(done.dots, now)
            self.events += evaluation.events
            self._evaluation = None
        return []
