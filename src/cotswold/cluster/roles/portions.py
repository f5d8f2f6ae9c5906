"""What a worker has to compute, and what it has computed: portions on a thread of their own.

Knows: the work, sums and their buffers, which portion belongs to which sum. Does not know: sockets, messages,
when an evaluation ends.

The thread takes the next portion by itself, so that a worker never waits for its own messages. Whatever else
needs the parameters (a new point, validation) is called on that thread, between two portions.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

from cotswold.cluster.arithmetic import Array, add
from cotswold.cluster.work import Work
from cotswold.errors import told
from cotswold.server.messages import Grant, Held, Node, PortionResult
from cotswold.server.tree import parent, sibling

T = TypeVar("T")
_BUFFERS_KEPT = 4
"""Gradient buffers that are kept for the next sums."""


@dataclass
class Sum:
    """What several portions add up to."""

    number: int
    gradient: Array | None
    grants: list[int] = field(default_factory=list)
    results: list[PortionResult] = field(default_factory=list)
    node: Node | None = None
    is_closed: bool = False
    """Whether no portion will be added any more."""

    @property
    def portions(self) -> list[int]:
        """Its portions."""
        return [one.portion for one in self.results]

    def held(self) -> list[Held]:
        """Its portions, as the coordinator is told."""
        pairs = zip(self.grants, self.results, strict=True)
        return [Held(grant, result, self.number, self.is_closed) for grant, result in pairs]


@dataclass(frozen=True)
class Done:
    """A portion is computed."""

    evaluation: int
    held: Held


@dataclass(frozen=True)
class NotDone:
    """A portion could not be computed."""

    evaluation: int
    grant: int
    portion: int
    error: str


@dataclass(frozen=True)
class Returned:
    """A call has returned, or raised."""

    then: Callable[[object], None]
    value: object


@dataclass(frozen=True)
class Broken:
    """The thread has ended, because of an error that no portion is to blame for."""

    error: BaseException


Event = Done | NotDone | Returned | Broken


@dataclass(frozen=True)
class Rules:
    """How portions become sums."""

    tree: bool
    flush_portions: int
    """Portions of a sum at most; 0 for no end."""
    patterns_of: Callable[[int], Sequence[int]]


class Portions:
    """The portions of one worker; all verbs are for one other thread, which listens to `fileno`."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._size = work.parameters.numel()
        self._changed = threading.Condition()
        self._calls: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()
        self._waiting: deque[tuple[Grant, int]] = deque()
        self._current: Grant | None = None
        self._sums: dict[int, Sum] = {}
        self._open: Sum | None = None
        self._numbers = 0
        self._evaluation = self._generation = 0
        self._with_gradient = self._apart = False
        self._rules: Rules | None = None
        self._told: deque[Event] = deque()
        self._spare: list[Array] = []
        self._stopped = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name="portions", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Can be read where `take` has something."""
        return self._woken

    def take(self) -> list[Event]:
        """What has happened since the last time, in order."""
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        found: list[Event] = []
        with self._changed:
            while self._told:
                found.append(self._told.popleft())
        return found

    def call(self, function: Callable[[], object], then: Callable[[object], None]) -> None:
        """Call a function between two portions; ``then`` gets what it returns, or the Exception it raises."""
        with self._changed:
            self._calls.append((function, then))
            self._changed.notify()

    def begin(self, evaluation: int, with_gradient: bool, rules: Rules) -> None:
        """Forget everything of earlier evaluations; the point must be set (by a `call`) before any grant."""
        with self._changed:
            self._clear()
            self._evaluation, self._with_gradient, self._rules = evaluation, with_gradient, rules
            self._apart = False

    def clear(self) -> None:
        """Forget everything; a portion that is being computed is thrown away when it ends."""
        with self._changed:
            self._clear()
            self._evaluation = 0

    def grant(self, grant: Grant) -> None:
        """Compute a portion after those that wait."""
        with self._changed:
            self._waiting.append((grant, self._generation))
            self._changed.notify()

    def set_apart(self, number: int) -> None:
        """A grant that waits becomes a sum of its own."""
        with self._changed:
            self._waiting = deque(
                (replace(grant, apart=True) if grant.number == number else grant, generation)
                for grant, generation in self._waiting
            )

    def flush(self) -> None:
        """Close all sums (the open one once the portion is done that is being added); from now on every
        portion is a sum of its own."""
        with self._changed:
            self._apart = True
            for each in self._sums.values():
                each.is_closed = each.is_closed or each is not self._open
            if self._current is None:
                self._close()

    def settle(self, number: int) -> None:
        """A sum is needed no more."""
        with self._changed:
            found = self._sums.pop(number, None)
            if found is not None:
                if found is not self._open:
                    self._keep(found)
                elif self._current is None:
                    self._open = None
                    self._keep(found)

    def sum(self, number: int) -> Sum | None:
        """A sum by its number."""
        with self._changed:
            return self._sums.get(number)

    def collect(self, numbers: Sequence[int]) -> list[Sum]:
        """These sums, as far as they are here, closed; to be called on the thread (by `call`)."""
        with self._changed:
            self._close()
            return [self._sums[number] for number in numbers if number in self._sums]

    def closed(self) -> list[Sum]:
        """The sums to which nothing will be added."""
        with self._changed:
            return [one for one in self._sums.values() if one.is_closed]

    def new_number(self) -> int:
        """A number for a sum that is made otherwise."""
        with self._changed:
            self._numbers += 1
            return self._numbers

    def state(self) -> tuple[tuple[int, ...], tuple[Held, ...]]:
        """Grants that wait or are being computed, and portions that are held."""
        with self._changed:
            granted = [grant.number for grant, _ in self._waiting]
            if self._current is not None:
                granted.insert(0, self._current.number)
            held = [one for each in self._sums.values() for one in each.held()]
            return tuple(granted), tuple(held)

    def close(self) -> None:
        """End the thread, after the portion that it computes."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            with self._changed:
                self._tell(Broken(error))

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._calls or self._waiting)
                if self._stopped:
                    return
                called = self._calls.popleft() if self._calls else None
                if called is None:
                    grant, generation = self._waiting.popleft()
                    self._current = grant
            if called is not None:
                value = _outcome(called[0])
                with self._changed:
                    self._tell(Returned(called[1], value))
            else:
                self._compute(grant, generation)

    def _compute(self, grant: Grant, generation: int) -> None:
        with self._changed:
            rules, evaluation = self._rules, self._evaluation
            if rules is None or generation != self._generation:
                self._current = None
                return
            alone = grant.apart or self._apart or rules.tree
            target = self._new_sum() if alone or self._open is None else self._open
        outcome = self._add(rules, grant.portion, target)
        with self._changed:
            self._current = None
            if generation != self._generation:
                self._keep(target)
            elif isinstance(outcome, PortionResult):
                self._sums[target.number] = target
                target.grants.append(grant.number)
                target.results.append(outcome)
                self._place(rules, grant, target, alone)
                self._tell(Done(evaluation, target.held()[-1]))
            else:
                self._tell(NotDone(evaluation, grant.number, grant.portion, told(outcome)))
                if target is not self._open:
                    self._keep(target)
            self._close_if_full(rules)

    def _add(self, rules: Rules, portion: int, target: Sum) -> PortionResult | Exception:
        """Add a portion to a sum, which keeps what it had if that fails."""
        began = time.perf_counter()
        outcome = _outcome(lambda: self._sum_up(rules, portion, target.gradient))
        if isinstance(outcome, PortionResult):
            return replace(outcome, seconds=time.perf_counter() - began)
        assert isinstance(outcome, Exception)
        if target.gradient is not None:  # a part may have been added already
            target.gradient.fill(0)
            for result in target.results:
                self._sum_up(rules, result.portion, target.gradient)
        return outcome

    def _sum_up(self, rules: Rules, portion: int, gradient: Array | None) -> PortionResult:
        whole = None if gradient is None else torch.from_numpy(gradient)
        found = self._work.add(rules.patterns_of(portion), whole)
        details = tuple(sorted((name, float(value)) for name, value in found.details.items()))
        return PortionResult(portion, int(found.samples), float(found.value), details)

    # --- sums; whoever calls these has the lock ---

    def _new_sum(self) -> Sum:
        self._numbers += 1
        if not self._with_gradient:
            return Sum(self._numbers, None)
        if self._spare:
            gradient = self._spare.pop()
            gradient.fill(0)
        else:
            gradient = np.zeros(self._size, self._work.parameters.numpy().dtype)
        return Sum(self._numbers, gradient)

    def _place(self, rules: Rules, grant: Grant, target: Sum, alone: bool) -> None:
        """What a portion's sum becomes: it stays open, is closed, or is merged along the tree."""
        if rules.tree:
            target.node = Node(0, grant.portion)
            if not (grant.apart or self._apart):
                self._merge(target, rules)
                return
        if alone:
            target.is_closed = True
        else:
            self._open = target

    def _merge(self, target: Sum, rules: Rules) -> None:
        """Add the halves that are here, as far as a node may reach."""
        while True:
            assert target.node is not None
            if rules.flush_portions and 1 << target.node.level >= rules.flush_portions:
                target.is_closed = True
                return
            wanted = sibling(target.node)
            other = next(
                (one for one in self._sums.values() if one.node == wanted and not one.is_closed), None
            )
            if other is None:
                return
            left, right = (target, other) if target.node.index % 2 == 0 else (other, target)
            if left.gradient is not None and right.gradient is not None:
                add(left.gradient, right.gradient)
            left.grants += right.grants
            left.results += right.results
            left.node = parent(target.node)
            del self._sums[right.number]
            self._keep(right)
            target = left

    def _close_if_full(self, rules: Rules) -> None:
        whole = self._open
        if whole is not None and (self._apart or 0 < rules.flush_portions <= len(whole.results)):
            self._close()

    def _close(self) -> None:
        """No portion is added to any sum of now."""
        for each in self._sums.values():
            each.is_closed = True
        self._open = None

    def _clear(self) -> None:
        for each in self._sums.values():
            if each is not self._open or self._current is None:  # otherwise the thread is writing to it
                self._keep(each)
        self._sums.clear()
        self._waiting.clear()
        self._generation += 1
        self._open = self._rules = None

    def _keep(self, sum_: Sum) -> None:
        """Its buffer serves another."""
        if sum_.gradient is not None and len(self._spare) < _BUFFERS_KEPT:
            self._spare.append(sum_.gradient)
            sum_.gradient = None

    def _tell(self, event: Event) -> None:
        self._told.append(event)
        with suppress(BlockingIOError):
            os.write(self._wake, b"!")


def _outcome(function: Callable[[], T]) -> T | Exception:
    try:
        return function()
    except Exception as error:
        return error
