"""A parameter server: vectors in shards, pending sums, rounds that are executed once.

Knows: its shards by number and size, vectors by name, evaluations and their sums. Does not know: the memory
and arithmetic of numbers (`Arithmetic`), sockets, time.

    message    while evaluation e is open                      otherwise
    Pull       of e or 0: `Pulled`; of a later one: wait       the same; of an earlier one: an error
    Push       of e: pending, `PushAck`; again: `PushAck`      `PushRejected`
    AcceptSums of e, without a gap in the log: add the sums    ignore
    Round      the next: execute it, `RoundReply`; the same: `RoundReply` again; an earlier one: ignore
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from cotswold.optim.vectors.base import Combine, Command, Dot, Drop, Multiply
from cotswold.shards.core.sum_tree import SumTree, leaves_of
from cotswold.wire import (
    COORDINATOR,
    AcceptSums,
    Close,
    Node,
    Open,
    Pull,
    Pulled,
    Push,
    PushAck,
    PushRejected,
    Round,
    RoundReply,
    Send,
    Shard,
    SumName,
    ToServer,
    Write,
    WriteAck,
)

Values = TypeVar("Values")

PENDING = 64
"""Maximum pending sums of one session; its square is the maximum number of waiting pulls."""


class Arithmetic(Protocol[Values]):
    """Operations of a server on the numbers of one shard."""

    def zeros(self, size: int) -> Values:
        """Return ``size`` zeros."""
        ...

    def read(self, buffer: object, size: int) -> Values:
        """Return a copy of a received buffer. Raise ValueError if it does not hold ``size`` numbers."""
        ...

    def borrow(self, buffer: object, size: int) -> Values:
        """Return a received buffer, read-only; it may stay in the message's memory and keep it alive.

        Raise ValueError if it does not hold ``size`` numbers.
        """
        ...

    def fits(self, buffer: object, size: int) -> bool:
        """True if the received buffer holds ``size`` numbers."""
        ...

    def fit_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> bool:
        """True if the next buffers are a result of `write_all` for shards of these sizes."""
        ...

    def write(self, values: Values) -> object:
        """Return a buffer for a message; later changes of ``values`` must not change it."""
        ...

    def contiguous(self, values: Sequence[Values]) -> list[Values]:
        """Return the numbers of several shards, contiguous in memory if that helps `write_all`."""
        ...

    def write_all(self, values: Sequence[Values]) -> tuple[object, ...]:
        """Return buffers for several shards, as `write` does; contiguous shards may share one buffer."""
        ...

    def read_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[Values]:
        """Read the next buffers of `write_all` for shards of these sizes, as `read` does."""
        ...

    def borrow_all(self, buffers: Iterator[object], sizes: Sequence[int]) -> list[Values]:
        """Return the same values in the memory of the buffers, as `borrow` does."""
        ...

    def combine(self, terms: Sequence[tuple[float, Values]], out: Values | None) -> Values:
        """Return Σ factor · vector in the order of the terms (at least one), in the memory of ``out``, which
        may be one of them, or in new memory."""
        ...

    def multiply(self, left: Values, right: Values, out: Values | None) -> Values:
        """Return the elementwise product, in memory as for `combine`."""
        ...

    def dot(self, left: Values, right: Values) -> float:
        """Return the inner product in float64."""
        ...

    def add(self, left: Values, right: Values) -> Values:
        """Add in place: return the sum in the memory of ``left``."""
        ...

    def scale(self, values: Values, factor: float) -> Values:
        """Scale in place."""
        ...

    def digest(self, values: Values) -> int:
        """Return a checksum of the bits."""
        ...


@dataclass
class _Pending(Generic[Values]):
    node: Node | None
    values: list[Values]


@dataclass
class _Sums(Generic[Values]):
    """Sums of the open evaluation."""

    open: Open
    log: dict[SumName, None] = field(default_factory=dict)
    """Accepted sums that were added, in this order."""
    pending: dict[SumName, _Pending[Values]] = field(default_factory=dict)
    total: list[Values] | None = None
    """Total in the order of the log."""
    ended: set[int] = field(default_factory=set)
    """Sessions that push nothing more."""


class ShardServer(Generic[Values]):
    """One server and its shards."""

    def __init__(self, name: str, shards: Sequence[Shard], arithmetic: Arithmetic[Values]) -> None:
        self.name = name
        self.shards = tuple(
            sorted((each for each in shards if each.server == name), key=lambda each: each.number)
        )
        self._arithmetic = arithmetic
        self._vectors: dict[str, list[Values]] = {}
        self._answer: RoundReply | None = None
        self._sums: _Sums[Values] | None = None
        self._newest = 0
        """Newest evaluation that was opened."""
        self._waiting_pulls: dict[tuple[str, str], Pull] = {}
        """Pulls of an evaluation that is not open yet, by (client, vector)."""
        self._tree: SumTree[list[Values]] = SumTree(self._add)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of its shards."""
        return tuple(shard.number for shard in self.shards)

    @property
    def vectors(self) -> dict[str, list[Values]]:
        """The live shards of each vector; changes take effect."""
        return self._vectors

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its vectors."""
        return tuple(self._vectors)

    @property
    def pending(self) -> int:
        """Number of sums that are not accepted yet."""
        return 0 if self._sums is None else len(self._sums.pending)

    def receive(self, sender: str, message: ToServer) -> list[Send]:
        """Handle a message; commands are accepted from the coordinator only."""
        match message:
            case Pull():
                return self._pull(sender, message)
            case Push():
                return [Send(sender, self._push(message))]
            case Round() if sender == COORDINATOR:
                return self._on_round(message)
            case AcceptSums() if sender == COORDINATOR:
                self._accept(message)
            case Write() if sender == COORDINATOR:
                return [Send(sender, self._write(message))]
            case _:
                pass
        return []

    # --- vectors ---

    def _pull(self, sender: str, pull: Pull) -> list[Send]:
        if pull.evaluation > self._newest:
            if len(self._waiting_pulls) < PENDING * PENDING:
                self._waiting_pulls[sender, pull.name] = pull
            return []
        error = None
        if pull.evaluation and (self._sums is None or self._sums.open.evaluation != pull.evaluation):
            error = f"evaluation {pull.evaluation} is over"
        elif pull.name not in self._vectors:
            error = f"unknown vector {pull.name!r}"
        elif not set(pull.shards) <= set(self.numbers):
            error = f"shards {sorted(set(pull.shards) - set(self.numbers))} are not on {self.name}"
        elif len(set(pull.shards)) < len(pull.shards):
            error = "the pull names a shard twice"
        if error is not None:
            return [Send(sender, Pulled(pull.session, pull.evaluation, pull.name, self.name, (), (), error))]
        place = {number: place for place, number in enumerate(self.numbers)}
        buffers = tuple(
            self._arithmetic.write(self._vectors[pull.name][place[number]]) for number in pull.shards
        )
        return [
            Send(sender, Pulled(pull.session, pull.evaluation, pull.name, self.name, pull.shards, buffers))
        ]

    def _write(self, write: Write) -> WriteAck:
        try:
            self._vectors[write.name] = self._read(write.shards, write.buffers)
        except ValueError as error:
            return WriteAck(write.number, self.name, str(error))
        return WriteAck(write.number, self.name)

    def _read(self, shards: Sequence[int], buffers: Sequence[object]) -> list[Values]:
        if tuple(shards) != self.numbers or len(buffers) != len(shards):
            raise ValueError(
                f"{len(buffers)} buffers for shards {list(shards)}; {self.name} has {list(self.numbers)}"
            )
        return [
            self._arithmetic.read(buffer, shard.stop - shard.start)
            for shard, buffer in zip(self.shards, buffers, strict=True)
        ]

    # --- sums ---

    def _push(self, push: Push) -> PushAck | PushRejected:
        name, sums = SumName(push.session, push.number), self._sums
        kept = PushAck(push.session, push.evaluation, push.number, self.name)
        if sums is None or sums.open.evaluation != push.evaluation:
            return self._rejection(push, f"evaluation {push.evaluation} is not open")
        if name in sums.pending or name in sums.log:
            return kept
        if push.session in sums.ended:
            return self._rejection(push, f"session {push.session} is over")
        if not sums.open.gradient:
            return self._rejection(push, f"evaluation {push.evaluation} has no gradient")
        if sums.open.tree is (push.node is None):
            return self._rejection(
                push, "a sum must be a node" if sums.open.tree else "a sum must not be a node"
            )
        if push.node is not None and tuple(leaves_of(push.node)) != push.portions:
            return self._rejection(push, f"{push.node} is not made of portions {list(push.portions)}")
        if sum(each.session == push.session for each in sums.pending) >= PENDING:
            return self._rejection(push, f"{PENDING} sums of session {push.session} are pending")
        try:
            values = self._read(push.shards, push.buffers)
        except ValueError as error:
            return self._rejection(push, str(error))
        sums.pending[name] = _Pending(push.node, values)
        return kept

    def _rejection(self, push: Push, reason: str) -> PushRejected:
        return PushRejected(push.session, push.evaluation, push.number, self.name, reason)

    def _accept(self, accept: AcceptSums) -> None:
        sums = self._sums
        if sums is None or sums.open.evaluation != accept.evaluation or accept.start > len(sums.log):
            return  # the log has a gap; the whole log arrives when the evaluation closes
        self._extend(sums, accept.log[len(sums.log) - accept.start :])
        sums.ended |= set(accept.ended_sessions)
        for name in [each for each in sums.pending if each.session in sums.ended]:
            del sums.pending[name]

    def _extend(self, sums: _Sums[Values], log: Sequence[SumName]) -> None:
        """Add the next sums of the log."""
        for name in log:
            assert name not in sums.log, f"{name} is accepted twice"
            if sums.open.gradient:
                pending = sums.pending.pop(name)  # a sum is accepted only after every shard has it
                if pending.node is not None:
                    self._tree.insert(pending.node, pending.values)
                else:
                    sums.total = (
                        pending.values if sums.total is None else self._add(sums.total, pending.values)
                    )
            sums.log[name] = None

    def _add(self, left: list[Values], right: list[Values]) -> list[Values]:
        return [self._arithmetic.add(one, other) for one, other in zip(left, right, strict=True)]

    # --- rounds ---

    def _on_round(self, round: Round) -> list[Send]:
        done = 0 if self._answer is None else self._answer.number
        if round.number == done and self._answer is not None:
            return [Send(COORDINATOR, self._answer)]
        if round.number != done + 1:
            return []
        error = self._mistake(round)
        dots: list[list[float]] = [[] for _ in self.shards]
        digests: tuple[int, ...] = ()
        woken: list[Send] = []
        if error is None:
            if round.close is not None:
                self._close(round.close)
            for command in round.commands:
                self._command(command, dots)
            if round.open is not None:
                woken = self._open_evaluation(round.open)
            if round.digest is not None:
                digests = tuple(self._arithmetic.digest(each) for each in self._vectors[round.digest])
        self._answer = RoundReply(
            round.number, self.name, self.numbers, tuple(map(tuple, dots)), digests, error
        )
        return [Send(COORDINATOR, self._answer), *woken]

    def _mistake(self, round: Round) -> str | None:
        """Return the reason why the round cannot be executed; all checks precede the execution."""
        names = set(self._vectors)
        if round.close is not None:
            if self._sums is None or self._sums.open.evaluation != round.close.evaluation:
                return f"evaluation {round.close.evaluation} is not open"
            if round.close.gradient is not None:
                names.add(round.close.gradient)
        for command in round.commands:
            match command:
                case Combine(out, terms):
                    needed, made = [name for _, name in terms], [out]
                case Multiply(out, left, right):
                    needed, made = [left, right], [out]
                case Dot(left, right):
                    needed, made = [left, right], []
                case Drop(name):
                    needed, made = [], []
                    names.discard(name)
            missing = next((name for name in needed if name not in names), None)
            if missing is not None:
                return f"unknown vector {missing!r}"
            names.update(made)
        wanted = [round.digest, None if round.open is None else round.open.at]
        missing = next((name for name in wanted if name is not None and name not in names), None)
        return None if missing is None else f"unknown vector {missing!r}"

    def _command(self, command: Command, dots: list[list[float]]) -> None:
        vectors, arithmetic = self._vectors, self._arithmetic
        match command:
            case Drop(name):
                vectors.pop(name, None)
            case Dot(left, right):
                for row, one, other in zip(dots, vectors[left], vectors[right], strict=True):
                    row.append(arithmetic.dot(one, other))
            case Multiply(out, left, right):
                old: Sequence[Values | None] = vectors.get(out, [None] * len(self.shards))
                pairs = zip(vectors[left], vectors[right], old, strict=True)
                vectors[out] = [arithmetic.multiply(one, other, to) for one, other, to in pairs]
            case Combine(out, ()):
                vectors[out] = [arithmetic.zeros(shard.stop - shard.start) for shard in self.shards]
            case Combine(out, terms):
                old = vectors.get(out, [None] * len(self.shards))
                vectors[out] = [
                    arithmetic.combine([(factor, vectors[name][place]) for factor, name in terms], old[place])
                    for place in range(len(self.shards))
                ]

    def _open_evaluation(self, open: Open) -> list[Send]:
        assert open.evaluation > self._newest, f"evaluation {open.evaluation} is opened after {self._newest}"
        self._newest = open.evaluation
        self._sums, self._tree.nodes = _Sums(open), {}
        waiting, self._waiting_pulls = self._waiting_pulls, {}
        return [each for (sender, _), pull in waiting.items() for each in self._pull(sender, pull)]

    def _close(self, close: Close) -> None:
        sums = self._sums
        assert sums is not None, "no evaluation is open"
        assert tuple(sums.log) == close.log[: len(sums.log)], "the log has lost accepted sums"
        self._extend(sums, close.log[len(sums.log) :])
        if close.gradient is not None:
            total = self._tree.total() if sums.open.tree else sums.total
            if total is None:
                total = [self._arithmetic.zeros(shard.stop - shard.start) for shard in self.shards]
            self._vectors[close.gradient] = [self._arithmetic.scale(each, close.scale) for each in total]
        self._sums = None
        self._waiting_pulls = {
            key: pull for key, pull in self._waiting_pulls.items() if pull.evaluation > close.evaluation
        }
