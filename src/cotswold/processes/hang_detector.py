"""Detects a hanging step in this process's computing thread, or in processes that it leads.

Knows: the thread's steps (of a replica, or portions of a worker, or evaluations), how to inspect processes.
Does not know: the criterion (`host.hang_detection`), what a step computes, who restarts processes. A process
that leads others ends with them.

The endpoint's thread checks. It keeps sending heartbeats, independently of the computing thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cotswold.errors import MachineError
from cotswold.host.hang_detection import Hang, HangDetector, ProcessActivity
from cotswold.host.process_info import descendant_activity, process_state, thread_activity
from cotswold.processes.worker_thread import WorkerThread
from cotswold.shards.runtime.work import FedWork, SharedWork


class WorkerHangDetector:
    """Checks the steps of one thread, and of the processes that compute them with it."""

    def __init__(self, name: str, worker_thread: WorkerThread, work: object, silent_seconds: float) -> None:
        """``name`` is this process's name; a step that makes no progress for ``silent_seconds`` hangs."""
        self._name, self._worker_thread = name, worker_thread
        self._led = work if isinstance(work, SharedWork) else None
        self._fed_work = work if isinstance(work, FedWork) else None
        self._detector = HangDetector(silent_seconds)
        self._checked_at = float("-inf")

    def check(self, now: float) -> None:
        """Check for a hang; call a few times a second from the thread that does not compute. If a step
        hangs, raises MachineError, which names the process."""
        if now - self._checked_at < self._detector.pause_seconds:
            return
        self._checked_at = now
        worker_thread = self._worker_thread
        # the process that supplies its data is checked elsewhere
        is_starved = self._fed_work is not None and self._fed_work.is_starved
        still = self._detector.check(
            None if is_starved else worker_thread.step, worker_thread.steps_ended, self._activity, now
        )
        if still is not None:
            raise MachineError(self._text(still))

    def _activity(self) -> Mapping[int, ProcessActivity]:
        """Activity of all computing processes; empty if one of them runs and cannot be inspected."""
        own, others = thread_activity(self._worker_thread.number), descendant_activity()
        led = () if self._led is None else self._led.processes
        if own is None or any(each.pid not in others and process_state(each.pid) for each in led):
            return {}
        return {os.getpid(): own, **others}

    def _text(self, still: Hang) -> str:
        where, end = f"for {still.seconds:.3g} s in the middle of a step", ""
        if self._led is not None:
            end = f", and the processes of {self._name} end together"
        if still.is_stopped:
            return f"{self._stopped(still.processes)} been stopped {where} (SIGSTOP){end}"
        nobody = (
            "it has done nothing" if self._led is None else f"no process of {self._name} has done anything"
        )
        return f"{self._hanging()} hangs: {nobody} {where}{end}"

    def _stopped(self, processes: Sequence[int]) -> str:
        names = {} if self._led is None else {each.pid: each.name for each in self._led.processes}
        who = [self._process_text(each, names.get(each, "a process")) for each in processes]
        return f"{' and '.join(who)} {'has' if len(who) == 1 else 'have'}"

    def _hanging(self) -> str:
        """The processes that may be hanging."""
        led = self._led
        who = [] if led is None else [self._process_text(each.pid, each.name) for each in led.owing]
        if led is None or not who:
            return self._name
        return " or ".join([*who, *([] if led.is_awaiting else [f"{self._name} itself"])])

    def _process_text(self, process: int, name: str) -> str:
        return f"{name} of {self._name} (process {process})"
