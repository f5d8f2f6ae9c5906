"""The coordinator's side of an evaluator: a process of its own that judges parameters while replicas learn.

Knows: what it was asked and has answered, when it is started again. Does not know: how parameters are judged,
what follows from it.

One judgement at a time. Whoever ends, or says nothing for too long, is started again and asked again; two
ends in a row without an answer are an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cotswold import wire as m
from cotswold.errors import MachineError
from cotswold.host import Call
from cotswold.replicas.coordinator_loop import ReplicaConversation
from cotswold.shards.runtime.arithmetic import raw
from cotswold.wire.lifecycle import Give, Given, Judge, Judged, Judging
from cotswold.wire.messenger import AnyMessage

_START_SECONDS = 120.0
"""For so long it may say nothing while it makes its work."""
_STARTS = 2
"""In a row, without an answer."""


class EvaluatorError(MachineError):
    """No evaluator lives, so nothing can be judged."""


@dataclass(frozen=True)
class EvaluatorTask:
    """What an evaluator's work is made by, as that of replicas; it returns a `JudgeWork`."""

    work: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class EvaluatorStatus:
    """What an evaluator does."""

    name: str
    machine: str
    pid: int
    """0 for one whose process has ended."""
    doing: str
    """`starting`, `judging` or `idle`."""
    judges: int
    """So many samples counted in the parameters that it judges, or judged last."""
    for_seconds: float
    silent_seconds: float
    """Since anything was heard from it."""


class Evaluator:
    """Asks a process ``evaluator-1``, and those that follow it."""

    def __init__(
        self,
        conversation: ReplicaConversation,
        call_of: Callable[[str], Call],
        shards: Sequence[m.Shard],
        dtype: str,
    ) -> None:
        self._conversation, self._call_of = conversation, call_of
        machine = conversation.machine
        self._blank = Judge(0, machine.rules.run, tuple(shards), machine.servers, dtype)
        self._name = ""
        self._started = self._in_vain = 0
        self._heard = self._since = 0.0
        self._number = 0
        """Of the newest judgement."""
        self._has_said = False
        """Whether it has ever said that it is there."""
        self._asked: Judge | None = None
        self._is_sent = False
        self._judged: Judged | None = None
        self._given: Tensor | None = None
        conversation.listen(self._hear)
        self._start()

    @property
    def is_busy(self) -> bool:
        """Whether a judgement is under way, or was not taken."""
        return self._asked is not None

    def begin(self, number: int, parameters: Tensor | None = None) -> None:
        """Have parameters judged, by default those on the servers; ``number``: samples that count."""
        assert not self.is_busy, "one judgement at a time"
        buffers = () if parameters is None else (raw(parameters.numpy()),)
        self._asked, self._is_sent = replace(self._blank, number=number, buffers=buffers), False
        self._number, self._since = number, time.monotonic()
        self._send()

    def take(self) -> Judged | None:
        """The judgement, once; None while there is none. Raises EvaluatorError where none lives."""
        judged, self._judged = self._judged, None
        if judged is not None:
            self._asked, self._since = None, time.monotonic()
            return judged
        self._look_after()
        return None

    def wait(self) -> Judged | None:
        """The judgement that is under way; None where there is none. Raises as `take`."""
        found: list[Judged] = []

        def is_done() -> bool:
            found.extend(filter(None, [self.take()]))
            return not self.is_busy

        self._conversation.wait(is_done)
        return found[0] if found else None

    def parameters(self) -> Tensor | None:
        """What it has judged last; None where its process has ended since, or says nothing."""
        self._given, name = None, self._name
        if not self._conversation.post.send(name, Give()):
            return None
        staff, seconds = self._conversation.staff, self._conversation.machine.rules.silent_seconds

        def is_done() -> bool:
            is_silent = time.monotonic() - self._heard > seconds
            return self._given is not None or not staff.is_watched(name) or is_silent

        self._conversation.wait(is_done)
        return self._given

    def status(self) -> EvaluatorStatus:
        """What it does now."""
        staff, now = self._conversation.staff, time.monotonic()
        doing = "starting" if not self._has_said else "judging" if self.is_busy else "idle"
        pid = staff.pid_of(self._name) if staff.is_watched(self._name) else 0
        return EvaluatorStatus(
            *(self._name, staff.machine_of(self._name), pid, doing, self._number),
            for_seconds=now - self._since,
            silent_seconds=now - self._heard,
        )

    @property
    def _patience(self) -> float:
        """Seconds for which it may say nothing."""
        seconds = self._conversation.machine.rules.silent_seconds
        return seconds if self._has_said else max(seconds, _START_SECONDS)

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() - self._heard > self._patience

    def _start(self) -> None:
        self._started, self._has_said = self._started + 1, False
        self._name, self._is_sent = f"evaluator-{self._started}", False
        self._heard = self._since = time.monotonic()
        self._conversation.staff.start(self._call_of(self._name))

    def _send(self) -> None:
        """Ask, if it is there; otherwise once it says so."""
        if self._asked is not None and not self._is_sent:
            self._is_sent = self._conversation.post.send(self._name, self._asked)

    def _hear(self, message: AnyMessage) -> None:
        match message:
            case Judging(name) if name == self._name:
                self._heard = time.monotonic()
                if not self._has_said:
                    self._has_said, self._since = True, self._heard
                self._send()
            case Judged(name, number) if name == self._name and self._asked is not None:
                if number == self._asked.number:
                    self._judged, self._in_vain = message, 0
            case Given((buffer,)) if isinstance(buffer, bytes | bytearray | memoryview):
                self._given = torch.from_numpy(np.frombuffer(buffer, self._blank.dtype).copy())
            case _:
                pass

    def _look_after(self) -> None:
        conversation = self._conversation
        if self._is_silent:
            conversation.step(0.0)  # what it has said while nobody listened
        if self._is_silent and conversation.staff.is_watched(self._name):
            conversation.end(self._name, f"was ended: it had said nothing for {self._patience:g} s")
        if conversation.staff.is_watched(self._name):
            return
        why = conversation.why_of(self._name)
        self._in_vain += 1
        if self._in_vain >= _STARTS:
            raise EvaluatorError(f"{self._name} {why}: nothing can be judged; see to it, and resume the run")
        self._start()
