"""Notices that a step stands still: in this process's thread that computes, or in processes that it leads.

Knows: the thread's steps (of a replica, or portions of a worker, or judgements), how to look at processes.
Does not know: when that is the case (`host.hang_detection`), what a step computes, who starts processes
again. A process that leads others ends with them.

The thread that has the endpoint looks: it goes on saying that the process lives, whatever the other one does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cotswold.errors import MachineError
from cotswold.host.hang_detection import Hang, HangDetector, ProcessActivity
from cotswold.host.process_info import descendant_activity, process_state, thread_activity
from cotswold.processes.worker_thread import Working
from cotswold.shards.runtime.work import FedWork, SharedWork


class Watch:
    """Looks at the steps of one thread, and of the processes that compute them with it."""

    def __init__(self, name: str, working: Working, work: object, silent_seconds: float) -> None:
        """``name``: this process's; ``silent_seconds``: for so long a step may stand still."""
        self._name, self._working = name, working
        self._led = work if isinstance(work, SharedWork) else None
        self._fed = work if isinstance(work, FedWork) else None
        self._standstill = HangDetector(silent_seconds)
        self._looked = float("-inf")

    def look(self, now: float) -> None:
        """To be called a few times a second, by the thread that does not compute. Raises MachineError, which
        names the process, where a step stands still."""
        if now - self._looked < self._standstill.pause_seconds:
            return
        self._looked = now
        working = self._working
        is_starved = self._fed is not None and self._fed.is_starved  # whoever feeds it looks after that
        still = self._standstill.check(None if is_starved else working.step, working.ended, self._see, now)
        if still is not None:
            raise MachineError(self._said(still))

    def _see(self) -> Mapping[int, ProcessActivity]:
        """What is seen of all who compute; nothing where one of them runs and is not seen."""
        own, others = thread_activity(self._working.number), descendant_activity()
        led = () if self._led is None else self._led.processes
        if own is None or any(each.pid not in others and process_state(each.pid) for each in led):
            return {}
        return {os.getpid(): own, **others}

    def _said(self, still: Hang) -> str:
        where, end = f"for {still.seconds:.3g} s in the middle of a step", ""
        if self._led is not None:
            end = f", and the processes of {self._name} end together"
        if still.is_stopped:
            return f"{self._stopped(still.processes)} been stopped {where} (SIGSTOP){end}"
        nobody = "nothing of it" if self._led is None else f"no process of {self._name}"
        return f"{self._hanging()} hangs: {nobody} has done anything {where}{end}"

    def _stopped(self, processes: Sequence[int]) -> str:
        names = {} if self._led is None else {each.pid: each.name for each in self._led.processes}
        who = [self._called(each, names.get(each, "a process")) for each in processes]
        return f"{' and '.join(who)} {'has' if len(who) == 1 else 'have'}"

    def _hanging(self) -> str:
        """Who may be the one that hangs."""
        led = self._led
        who = [] if led is None else [self._called(each.pid, each.name) for each in led.owing]
        if led is None or not who:
            return self._name
        return " or ".join([*who, *([] if led.is_awaiting else [f"{self._name} itself"])])

    def _called(self, process: int, name: str) -> str:
        return f"{name} of {self._name} (process {process})"
