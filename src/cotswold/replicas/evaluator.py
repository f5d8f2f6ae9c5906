"""The coordinator's side of evaluation: a separate process evaluates parameters while replicas train.

Knows: its requests and answers, when to restart the process. Does not know: how parameters are evaluated,
how the result is used.

One evaluation at a time. If the evaluator exits, or is silent for too long, it is restarted and receives the
request again; two exits in a row without an answer are an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cotswold import wire as m
from cotswold.errors import RESUME, ResumableError
from cotswold.host import Call
from cotswold.replicas.coordinator_loop import ReplicaCoordinator
from cotswold.shards.runtime.arithmetic import raw
from cotswold.wire.lifecycle import Evaluate, EvaluateReply, EvaluatorHeartbeat, GetParameters, Parameters
from cotswold.wire.messenger import AnyMessage

_START_SECONDS = 120.0
"""Seconds that it may be silent while it creates its work."""
_STARTS = 2
"""Starts in a row without an answer, at most."""


class EvaluatorError(ResumableError):
    """No evaluator is running, so no parameters can be evaluated."""


@dataclass(frozen=True)
class EvaluatorTask:
    """Function and arguments that create an evaluator's work, an `EvaluationWork`, as for replicas."""

    work: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class EvaluatorStatus:
    """Status of an evaluator."""

    name: str
    machine: str
    pid: int
    """Process number; 0 if the process has exited."""
    activity: str
    """`starting`, `evaluating` or `idle`."""
    evaluated_samples: int
    """Samples counted in the parameters that it evaluates, or evaluated last."""
    activity_seconds: float
    silent_seconds: float
    """Seconds since its last message."""


class EvaluatorHandle:
    """Sends evaluations to a process ``evaluator-1``, and to its successors."""

    def __init__(
        self,
        coordinator: ReplicaCoordinator,
        call_of: Callable[[str], Call],
        shards: Sequence[m.Shard],
        dtype: str,
    ) -> None:
        self._coordinator, self._call_of = coordinator, call_of
        machine = coordinator.machine
        self._template = Evaluate(0, machine.rules.run, tuple(shards), machine.servers, dtype)
        self._name = ""
        self._started = self._failed_starts = 0
        self._last_message = self._since = 0.0
        self._number = 0
        """Number of the newest evaluation."""
        self._has_said = False
        """True if the present process has sent a message."""
        self._request: Evaluate | None = None
        self._is_sent = False
        self._reply: EvaluateReply | None = None
        self._parameters: Tensor | None = None
        coordinator.add_handler(self._on_message)
        self._start()

    @property
    def is_busy(self) -> bool:
        """True while an evaluation is in progress, or its result was not taken."""
        return self._request is not None

    def begin(self, number: int, parameters: Tensor | None = None) -> None:
        """Start an evaluation of parameters (default: those on the servers); ``number`` is the samples
        counted in them."""
        assert not self.is_busy, "one evaluation at a time"
        buffers = () if parameters is None else (raw(parameters.numpy()),)
        self._request, self._is_sent = replace(self._template, number=number, buffers=buffers), False
        self._number, self._since = number, time.monotonic()
        self._send()

    def take_result(self) -> EvaluateReply | None:
        """Return the result, once; None if there is none yet. Raises EvaluatorError if no evaluator is
        running."""
        judged, self._reply = self._reply, None
        if judged is not None:
            self._request, self._since = None, time.monotonic()
            return judged
        self._check_process()
        return None

    def wait(self) -> EvaluateReply | None:
        """Wait for the evaluation in progress; None if there is none. Raises as `take_result`."""
        found: list[EvaluateReply] = []

        def is_done() -> bool:
            found.extend(filter(None, [self.take_result()]))
            return not self.is_busy

        self._coordinator.wait(is_done)
        return found[0] if found else None

    def parameters(self) -> Tensor | None:
        """The parameters that it evaluated last; None if its process has exited since, or is silent."""
        self._parameters, name = None, self._name
        if not self._coordinator.messenger.send(name, GetParameters()):
            return None
        process_group, seconds = (
            self._coordinator.process_group,
            self._coordinator.machine.rules.silent_seconds,
        )

        def is_done() -> bool:
            is_silent = time.monotonic() - self._last_message > seconds
            return self._parameters is not None or not process_group.is_watched(name) or is_silent

        self._coordinator.wait(is_done)
        return self._parameters

    def status(self) -> EvaluatorStatus:
        """The present status."""
        process_group, now = self._coordinator.process_group, time.monotonic()
        activity = "starting" if not self._has_said else "evaluating" if self.is_busy else "idle"
        pid = process_group.pid_of(self._name) if process_group.is_watched(self._name) else 0
        return EvaluatorStatus(
            *(self._name, process_group.machine_of(self._name), pid, activity, self._number),
            activity_seconds=now - self._since,
            silent_seconds=now - self._last_message,
        )

    @property
    def _patience(self) -> float:
        """Seconds that it may be silent."""
        seconds = self._coordinator.machine.rules.silent_seconds
        return seconds if self._has_said else max(seconds, _START_SECONDS)

    @property
    def _is_silent(self) -> bool:
        return time.monotonic() - self._last_message > self._patience

    def _start(self) -> None:
        self._started, self._has_said = self._started + 1, False
        self._name, self._is_sent = f"evaluator-{self._started}", False
        self._last_message = self._since = time.monotonic()
        self._coordinator.process_group.start(self._call_of(self._name))

    def _send(self) -> None:
        """Send the request if the evaluator is connected; otherwise its first message triggers it."""
        if self._request is not None and not self._is_sent:
            self._is_sent = self._coordinator.messenger.send(self._name, self._request)

    def _on_message(self, message: AnyMessage) -> None:
        match message:
            case EvaluatorHeartbeat(name) if name == self._name:
                self._last_message = time.monotonic()
                if not self._has_said:
                    self._has_said, self._since = True, self._last_message
                self._send()
            case EvaluateReply(name, number) if name == self._name and self._request is not None:
                if number == self._request.number:
                    self._reply, self._failed_starts = message, 0
            case Parameters((buffer,)) if isinstance(buffer, bytes | bytearray | memoryview):
                self._parameters = torch.from_numpy(np.frombuffer(buffer, self._template.dtype).copy())
            case _:
                pass

    def _check_process(self) -> None:
        coordinator = self._coordinator
        if self._is_silent:
            coordinator.step(0.0)  # read its pending messages first
        if self._is_silent and coordinator.process_group.is_watched(self._name):
            coordinator.end(self._name, f"was ended: it had sent nothing for {self._patience:g} s")
        if coordinator.process_group.is_watched(self._name):
            return
        why = coordinator.exit_reason(self._name)
        self._failed_starts += 1
        if self._failed_starts >= _STARTS:
            raise EvaluatorError(
                f"{self._name} {why}: nothing can be evaluated", remedy=f"fix it, and {RESUME}"
            )
        self._start()
