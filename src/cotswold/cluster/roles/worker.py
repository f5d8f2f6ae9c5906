"""A worker: makes its work, gets the point of each evaluation, sums portions, pushes or reduces the sums.

Knows: the messages between coordinator, workers and servers, when each is due. Does not know: which portions
come next, what counts: the coordinator decides.

The process has two threads: this one speaks with others, the other computes (`portions`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cotswold.cluster.arithmetic import Array, add, raw
from cotswold.cluster.messages import Give, Given, Made
from cotswold.cluster.post import AnyMessage, Letter, Post
from cotswold.cluster.roles.exchanges import HELD_SECONDS, Exchanges, reduction_number
from cotswold.cluster.roles.points import Points
from cotswold.cluster.roles.portions import Broken, Done, NotDone, Portions, Returned, Rules
from cotswold.cluster.roles.pulls import Pulls
from cotswold.cluster.roles.pushes import Pushes
from cotswold.cluster.transport import Endpoint, Lost, Ready
from cotswold.cluster.transport import Message as Piece
from cotswold.cluster.work import Work
from cotswold.errors import MachineError, UserError, told
from cotswold.host import token_of
from cotswold.host.processes import function_of
from cotswold.server import messages as m
from cotswold.server.dealing import Dealing

_PATTERNS_KEPT = 1 << 22
"""Numbers of dealt patterns that a worker remembers: to deal them anew takes a while."""


def main(
    *,
    name: str,
    coordinator: str,
    work: str,
    arguments: Mapping[str, object],
    threads: int = 1,
    host: str | None = None,
    encrypt: bool = True,
) -> int:
    """The life of the worker called ``name``, whose coordinator is at the address ``coordinator``.

    The token is in the environment. Raises UserError where there is no such work, MachineError where the
    coordinator ends first.
    """
    torch.set_num_threads(threads)
    token = token_of(os.environ)
    if token is None:
        raise UserError("a worker needs the run's token in COTSWOLD_TOKEN; let the coordinator start it")
    made = function_of(work)(**arguments)
    with Endpoint(token, name, host=host, encrypt=encrypt) as endpoint:
        endpoint.connect(m.COORDINATOR, coordinator)
        worker = Worker(made, Post(endpoint), name, endpoint.address)  # type: ignore[arg-type]  # its function says so
        signal.signal(signal.SIGTERM, lambda *_: worker.leave("it was asked to end"))
        try:
            worker.run()
        finally:
            worker.close()
    return 0


class Session:
    """What a worker is told when it joins, and what lasts as long."""

    def __init__(
        self, welcome: m.Welcome, dtype: np.dtype[np.floating], post: Post, exchanges: Exchanges
    ) -> None:
        self.welcome = welcome
        self.number = welcome.session
        self.dealing = Dealing(welcome.seed, welcome.patterns, welcome.portion)
        self.pulls = Pulls(welcome.shards, dtype, post.send)
        self.pushes = Pushes(welcome.shards, post.send, lambda message: post.send(m.COORDINATOR, message))
        self.points = Points(welcome.session, welcome.shards, dtype, self.pulls, exchanges, welcome.name)
        self.begin: m.Begin | None = None
        self.ready: m.Ready | None = None
        self.reduce: m.Reduce | None = None
        self.granted = 0
        """The newest grant."""
        self.is_flushed = False
        """Whether sums are pushed that would else wait for a reduction."""

    @property
    def pushes_sums(self) -> bool:
        """Whether sums go to the servers by themselves; a value alone waits for no reduction."""
        return self.welcome.pushes or self.is_flushed or (self.begin is not None and not self.begin.gradient)


class Worker:
    """One worker, from its joining to its end."""

    def __init__(self, work: Work, post: Post, name: str, address: str) -> None:
        self._work, self._post, self._name, self._address = work, post, name, address
        parameters = work.parameters
        if parameters.dim() != 1 or parameters.dtype not in (torch.float32, torch.float64):
            raise UserError(
                f"the work's parameters are {tuple(parameters.shape)} of {parameters.dtype}; they must lie "
                "in one vector of float32 or float64"
            )
        self._parameters: Array = parameters.detach().numpy()
        self._initial = self._parameters.copy()
        self._attempt = 1
        self._session: Session | None = None
        self._portions = Portions(work)
        self._exchanges = Exchanges(post.endpoint, name)
        self._dealt: dict[int, Any] = {}
        self._leaving: str | None = None
        self._is_over = False
        self._said = 0.0
        post.endpoint.watch(self._portions.fileno())
        self._handlers: Mapping[type, Callable[[Any, Session], None]] = {
            m.Begin: self._begin,
            m.Grant: self._grant,
            m.Apart: self._apart,
            m.Flush: self._flush,
            m.Settled: self._settled,
            m.End: self._end,
            m.Reduce: self._reduce,
            m.Validate: self._validate,
            m.Pulled: lambda message, session: session.pulls.take(message),
            m.Kept: lambda message, session: session.pushes.kept(message),
            m.Refused: self._refused,
        }

    def run(self) -> None:
        """Work until the coordinator dismisses it; raises MachineError where the coordinator is lost."""
        size, patterns = self._work.parameters.numel(), self._work.patterns
        dtype = str(self._parameters.dtype)
        self._tell(Made(self._name, dtype, size, patterns, self._work.flops))
        self._join()
        while not self._is_over:
            event = self._post.receive(self._patience())
            match event:
                case Letter(_, message):
                    self._hear(message)
                case Ready():
                    self._take_done()
                case Lost(peer, why) if peer == m.COORDINATOR:
                    raise MachineError(f"{self._name} lost its coordinator ({why}); resume the run")
                case Lost():
                    self._exchanges.lost(event)
                case Piece():
                    self._exchanges.take(event)
                case _:
                    pass
            self._exchanges.proceed()
            self._tick(time.monotonic())

    def leave(self, reason: str) -> None:
        """Go once what it holds is settled; may be called by a signal's handler."""
        self._leaving = reason

    def close(self) -> None:
        """Let go of the thread."""
        self._portions.close()

    # --- time ---

    def _patience(self) -> float:
        if self._exchanges.is_held:
            return HELD_SECONDS
        if self._session is None:
            return 0.5
        return max(0.01, self._said + self._session.welcome.beat_seconds - time.monotonic())

    def _tick(self, now: float) -> None:
        session = self._session
        if session is None:
            if now - self._said >= 1:
                self._join()
            return
        if now - self._said < session.welcome.beat_seconds:
            return
        granted, held = self._portions.state()
        begin = session.begin
        self._tell(
            m.Beat(
                session.number,
                begin.evaluation if begin else 0,
                begin.attempt if begin else 0,
                session.ready is not None,
                granted,
                held,
            )
        )
        if self._leaving is not None:
            self._tell(m.Leave(session.number, self._leaving))
        session.pulls.ask_again(now, session.welcome.retry_seconds)
        session.pushes.send_again(now, session.welcome.retry_seconds)

    def _tell(self, message: AnyMessage) -> None:
        self._post.send(m.COORDINATOR, message)
        self._said = time.monotonic()

    # --- what comes ---

    def _hear(self, message: AnyMessage) -> None:
        match message:
            case Give():
                self._tell(Given((raw(self._initial),)))
            case m.Welcome():
                self._welcome(message)
            case m.Rejoin(number) | m.Dismiss(number):
                if self._session is not None and number == self._session.number:
                    self._leave_session(is_over=isinstance(message, m.Dismiss))
            case _:
                handler = self._handlers.get(type(message))
                session = self._session
                meant = getattr(message, "session", None)
                if handler is not None and session is not None and meant == session.number:
                    handler(message, session)

    def _join(self) -> None:
        if self._leaving is not None:  # nothing is held
            self._is_over = True
            return
        size, patterns = self._work.parameters.numel(), self._work.patterns
        self._tell(m.Join(self._name, self._attempt, self._address, patterns, size))

    def _welcome(self, welcome: m.Welcome) -> None:
        if self._session is not None or welcome.attempt != self._attempt:
            return
        for name, address in welcome.servers:
            self._post.endpoint.connect(name, address)
        self._dealt.clear()
        self._session = Session(welcome, self._parameters.dtype, self._post, self._exchanges)

    def _leave_session(self, *, is_over: bool) -> None:
        self._portions.clear()
        self._exchanges.abandon()
        self._session = None
        self._attempt += 1
        self._is_over = is_over
        if not is_over:
            self._join()

    def _patterns_of(self, session: Session, portion: int) -> Any:
        found = self._dealt.get(portion)
        if found is None:
            found = session.dealing.patterns_of(portion)
            if (len(self._dealt) + 1) * session.dealing.portion <= _PATTERNS_KEPT:
                self._dealt[portion] = found
        return found

    # --- the point ---

    def _begin(self, begin: m.Begin, session: Session) -> None:
        known = session.begin
        if known is not None and (known.evaluation, known.attempt) >= (begin.evaluation, begin.attempt):
            if known == begin and session.ready is not None:
                self._tell(session.ready)
            return
        session.begin, session.ready, session.reduce, session.is_flushed = begin, None, None, False
        session.pushes.clear()
        self._portions.begin(begin.evaluation, begin.gradient, self._rules(session))

        def broke(lost: str) -> None:
            self._tell(m.Aborted(session.number, begin.evaluation, begin.attempt, lost))

        session.points.fetch(begin, lambda: self._set_point(begin, session), broke)

    def _rules(self, session: Session) -> Rules:
        """How portions become sums: alone where no gradient is summed, of any number where they are reduced."""
        begin, welcome = session.begin, session.welcome
        portions = welcome.flush_portions if welcome.pushes else 0
        if begin is not None and not begin.gradient:
            portions = 1
        return Rules(
            welcome.tree and begin is not None and begin.gradient,
            portions,
            lambda portion: self._patterns_of(session, portion),
        )

    def _set_point(self, begin: m.Begin, session: Session) -> None:
        """Make the point and hand it to the work, between two portions."""

        def set_parameters() -> tuple[int, ...]:
            point, digests = session.points.make(begin)
            np.copyto(self._parameters, point)
            return digests

        def done(digests: object) -> None:
            if self._session is session and session.begin is begin:
                assert isinstance(digests, tuple)
                session.ready = m.Ready(session.number, begin.evaluation, begin.attempt, digests)
                self._tell(session.ready)

        self._portions.call(set_parameters, done)

    # --- reductions ---

    def _reduce(self, reduce: m.Reduce, session: Session) -> None:
        known, begin = session.reduce, session.begin
        if begin is None or reduce.evaluation != begin.evaluation or reduce.attempt <= begin.attempt:
            return
        if known is not None and known.attempt >= reduce.attempt:
            return
        session.reduce = reduce

        def broke(lost: str) -> None:
            self._tell(m.Aborted(session.number, reduce.evaluation, reduce.attempt, lost))

        def reduced(result: Array) -> None:
            if reduce.plan.members[0] == self._name:
                self._push_reduced(result, reduce, session)

        def collected(sums: object) -> None:
            assert isinstance(sums, list)
            if self._session is not session or session.reduce is not reduce:
                return
            if tuple(tuple(sorted(one.portions)) for one in sums) != reduce.portions:
                broke("")
                return
            self._exchanges.begin(
                reduction_number(reduce.evaluation, reduce.attempt),
                reduce.plan,
                _added([one.gradient for one in sums]),
                is_broadcast=False,
                done=reduced,
                broke=broke,
            )

        self._portions.call(lambda: self._portions.collect(reduce.numbers), collected)

    def _push_reduced(self, result: Array, reduce: m.Reduce, session: Session) -> None:
        session.pushes.push(
            session=session.number,
            evaluation=reduce.evaluation,
            number=self._portions.new_number(),
            node=None,
            gradient=result,
            results=reduce.results,
            attempt=reduce.attempt,
            now=time.monotonic(),
        )

    # --- portions ---

    def _is_now(
        self, message: m.Grant | m.Apart | m.Flush | m.Settled | m.End | m.Refused, session: Session
    ) -> bool:
        return session.begin is not None and message.evaluation == session.begin.evaluation

    def _grant(self, grant: m.Grant, session: Session) -> None:
        if grant.number > session.granted and self._is_now(grant, session):
            session.granted = grant.number
            self._portions.grant(grant)

    def _apart(self, apart: m.Apart, session: Session) -> None:
        if self._is_now(apart, session):
            self._portions.set_apart(apart.grant)

    def _flush(self, flush: m.Flush, session: Session) -> None:
        if self._is_now(flush, session):
            session.is_flushed = True
            self._portions.flush()
            self._push_closed(session)

    def _settled(self, settled: m.Settled, session: Session) -> None:
        if self._is_now(settled, session):
            session.pushes.settle(settled.number)
            self._portions.settle(settled.number)

    def _refused(self, refused: m.Refused, session: Session) -> None:
        if self._is_now(refused, session):
            session.pushes.refused(refused)
            self._portions.settle(refused.number)

    def _end(self, end: m.End, session: Session) -> None:
        if self._is_now(end, session):
            session.pushes.clear()
            session.pulls.clear()
            self._exchanges.abandon()
            self._portions.clear()

    def _take_done(self) -> None:
        for event in self._portions.take():
            match event:
                case Returned(then, value):
                    if isinstance(value, Exception):
                        raise value
                    then(value)
                case Broken(error):
                    raise MachineError(f"{self._name} cannot go on: {told(error)}") from error
                case Done(evaluation, held) if self._session is not None:
                    self._tell(m.Computed(self._session.number, evaluation, held))
                case NotDone(evaluation, grant, portion, error) if self._session is not None:
                    self._tell(m.Failed(self._session.number, evaluation, grant, portion, error))
                case _:
                    pass
        if self._session is not None:
            self._push_closed(self._session)

    def _push_closed(self, session: Session) -> None:
        """Sums to which nothing will be added go to the servers, unless they wait for a reduction."""
        if session.begin is None or not session.pushes_sums:
            return
        for each in self._portions.closed():
            if each.number not in session.pushes:
                session.pushes.push(
                    session=session.number,
                    evaluation=session.begin.evaluation,
                    number=each.number,
                    node=each.node,
                    gradient=each.gradient,
                    results=each.results,
                    attempt=0,
                    now=time.monotonic(),
                )

    # --- held-out patterns ---

    def _validate(self, asked: m.Validate, session: Session) -> None:
        def measure(point: Array) -> m.Validated:
            before = self._parameters.copy()
            np.copyto(self._parameters, point)
            try:
                found = self._work.validate()
            except Exception as error:
                return m.Validated(session.number, asked.number, None, told(error))
            finally:
                np.copyto(self._parameters, before)
            means = None if found is None else tuple(sorted((key, float(one)) for key, one in found.items()))
            return m.Validated(session.number, asked.number, means)

        def measured(validated: object) -> None:
            assert isinstance(validated, m.Validated)
            self._tell(validated)

        session.pulls.fetch(
            session=session.number,
            evaluation=0,
            name=asked.at,
            now=time.monotonic(),
            then=lambda point: self._portions.call(lambda: measure(point), measured),
        )


def _added(gradients: Sequence[Array | None]) -> Array:
    """Their sum, in order; a single one as it lies."""
    found = [one for one in gradients if one is not None]
    assert found, "a reduction is of sums with gradients"
    if len(found) == 1:
        return found[0]
    total = found[0].copy()
    for each in found[1:]:
        add(total, each)
    return total
