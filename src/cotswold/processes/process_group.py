"""The processes of a cluster: started on machines, restarted when they exit.

Knows: processes, machines, places of workers, the backoff of restarts. Does not know: workers' messages,
portions.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from cotswold.errors import CotswoldError, MachineError
from cotswold.host import Call, Process, Processes
from cotswold.host.process_info import is_stopped
from cotswold.host.processes import LOST
from cotswold.transport import Endpoint

_BACKOFF_SECONDS = 0.5
"""Seconds before the second start in a row of a worker that never joined; doubled each time."""
_MAX_FAILED_STARTS = 4
"""Consecutive starts without a worker that joined, after which no more are started."""
_MACHINES_SECONDS = 2.0
"""Seconds between two checks for machines that joined."""


@dataclass(frozen=True)
class ProcessExit:
    """A process exited."""

    name: str
    why: str
    code: int


class ProcessGroup:
    """Workers and servers. ``call_of`` returns the program of the worker of a name, which has ``ranks``
    processes."""

    def __init__(
        self,
        processes: Processes,
        endpoint: Endpoint,
        call_of: Callable[[str], Call],
        *,
        restarts: bool,
        ranks: int = 1,
        kind: str = "worker",
    ) -> None:
        """``kind`` is the prefix of workers' names, before a number."""
        self._processes, self._endpoint, self._call_of = processes, endpoint, call_of
        self._restarts, self._ranks, self._kind = restarts, ranks, kind
        self._started: dict[str, Process] = {}
        self._by_descriptor: dict[int, str] = {}
        self._workers: set[str] = set()
        self._slots: dict[str, int] = {}
        self._machines: dict[str, int] = {}
        self._number = 0
        self._failed_starts = 0
        """Consecutive workers that exited before they joined."""
        self._ready_names: set[str] = set()
        self._due_restarts: list[tuple[float, str | None]] = []
        """Workers to restart: the time, and the machine."""
        self._refreshed_at = 0.0
        self.replaced = 0
        """Number of restarts of workers."""
        self._lost_names: set[str] = set()
        """Processes that may still run, because contact with them was lost."""
        self._killed: dict[str, str] = {}
        """Reasons of killed processes that have not exited yet."""
        self.last_exit_reason = ""
        """Exit reason of the last worker that exited."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Workers whose processes run."""
        return tuple(sorted(self._workers))

    @property
    def cannot_recover(self) -> bool:
        """True if no worker runs, and restarts are exhausted."""
        return not self._workers and not self._due_restarts

    def slot_of(self, name: str) -> int:
        """The place of a worker: the least number, from 0, that was free when it started. Raises KeyError.

        A restarted worker takes a free place under a new name.
        """
        return self._slots[name]

    def machine_of(self, name: str) -> str:
        """The machine on which a process runs; empty if it does not run."""
        return self._started[name].machine if name in self._started else ""

    def pid_of(self, name: str) -> int:
        """The process number of a running process on its machine; raises KeyError."""
        return self._started[name].pid

    def spawn(self, count: int) -> None:
        """Start ``count`` workers, spread over the machines by cores."""
        self._machines = dict(self._processes.machines())
        if not self._machines:
            raise MachineError(
                "the cluster has no machines; start one with: cotswold worker --address ADDRESS"
            )
        load = {machine: self._load(machine) for machine in self._machines}
        for _ in range(count):
            machine = min(load, key=lambda one: ((load[one] + 1) / max(self._machines[one], 1), one))
            load[machine] += 1
            self._start_worker(machine)

    def start(self, call: Call, *, spread: bool = False) -> None:
        """Start a process that is no worker: on the coordinator's machine, or with ``spread`` on any
        machine with free cores."""
        machine = None if spread else next(iter(self._processes.machines()), None)
        self._register(self._processes.start(call, machine))

    def mark_ready(self, name: str) -> None:
        """Note that a worker has joined."""
        self._ready_names.add(name)
        self._failed_starts = 0

    def reap(self, descriptor: int, now: float) -> ProcessExit | None:
        """Release the process of a readable descriptor and return its exit; None if it still runs."""
        name = self._by_descriptor.get(descriptor)
        if name is None or self._started[name].code() is None:
            return None
        return self._release(name, now)

    def tick(self, now: float) -> None:
        """Start workers that are due, and workers on machines that joined."""
        for due in [one for one in self._due_restarts if one[0] <= now]:
            self._due_restarts.remove(due)
            machine = self._choose_machine(due[1])
            if machine is not None or not self._workers:
                self.replaced += self._try_start(machine, now)
        if now - self._refreshed_at >= _MACHINES_SECONDS:
            self._refreshed_at = now
            there = dict(self._processes.machines())
            for machine, cores in there.items():
                if machine not in self._machines:
                    for _ in range(self._room(cores) - self._load(machine)):
                        self._try_start(machine, now)
            self._machines = there

    def kill(self, name: str, why: str) -> None:
        """Kill a process; ``why`` becomes the reason of its exit, in words that follow its name."""
        self._killed.setdefault(name, why)
        self._started[name].send(signal.SIGKILL)

    def end(self, name: str) -> None:
        """Kill a process that is no worker; no effect if it has exited."""
        if name in self._started:
            self._release(name, 0.0)

    def is_stopped(self, name: str) -> bool:
        """True if a signal has stopped a running process on this machine; always False for other machines."""
        return self.machine_of(name) == socket.gethostname() and is_stopped(self.pid_of(name))

    def is_lost(self, name: str) -> bool:
        """True if contact with a process was lost, so that it may still run."""
        return name in self._lost_names

    def is_watched(self, name: str) -> bool:
        """True if a process of this name runs."""
        return name in self._started

    def stop_restarts(self) -> None:
        """Stop restarting workers."""
        self._restarts = False
        self._due_restarts.clear()

    def close(self) -> None:
        """End all processes."""
        self.stop_restarts()
        for name in list(self._started):
            self._release(name, 0.0)

    def _room(self, cores: int) -> int:
        """Number of workers for a machine with this many cores."""
        return max(1, cores // self._ranks)

    def _load(self, machine: str) -> int:
        return sum(self.machine_of(name) == machine for name in self._workers)

    def _choose_machine(self, machine: str | None) -> str | None:
        """Machine on which to restart a worker: its own or, if that is lost, another with free cores.

        None if no machine has free cores: more workers would not make the others faster.
        """
        there = self._processes.machines()
        if machine in there:
            return machine
        return next((one for one, cores in there.items() if self._load(one) < self._room(cores)), None)

    def _start_worker(self, machine: str | None) -> None:
        self._number += 1
        name = f"{self._kind}-{self._number}"
        taken = set(self._slots.values())
        self._slots[name] = min(set(range(len(taken) + 1)) - taken)
        try:
            self._register(self._processes.start(self._call_of(name), machine))
        except CotswoldError:
            del self._slots[name]
            raise
        self._workers.add(name)

    def _try_start(self, machine: str | None, now: float) -> bool:
        """Start a worker; return False if it cannot be started, which counts as an exit."""
        try:
            self._start_worker(machine)
        except CotswoldError as error:
            self.last_exit_reason = str(error)
            self._failed_starts += 1
            self._schedule_restart(machine, now)
            return False
        return True

    def _schedule_restart(self, machine: str | None, now: float) -> None:
        """Schedule a restart of a worker, unless too many starts have failed."""
        if self._restarts and self._failed_starts < _MAX_FAILED_STARTS:
            wait = _BACKOFF_SECONDS * 2 ** (self._failed_starts - 2) if self._failed_starts > 1 else 0.0
            self._due_restarts.append((now + wait, machine))

    def _register(self, process: Process) -> None:
        self._started[process.name] = process
        self._lost_names.discard(process.name)
        self._by_descriptor[process.fileno()] = process.name
        self._endpoint.watch(process.fileno())

    def _release(self, name: str, now: float) -> ProcessExit:
        process = self._started.pop(name)
        descriptor = process.fileno()
        self._endpoint.unwatch(descriptor)
        del self._by_descriptor[descriptor]
        why = self._killed.pop(name, "") or process.why()
        process.end()
        code = process.code() or 0
        if code == LOST:
            self._lost_names.add(name)
        if name in self._workers:
            self._workers.discard(name)
            del self._slots[name]
            self.last_exit_reason = f"{name} {why}"
            self._failed_starts += name not in self._ready_names
            self._ready_names.discard(name)
            if code != 0:
                self._schedule_restart(process.machine, now)
            elif not self._workers:  # the last one was dismissed because its machine shuts down
                self._schedule_restart(None, now)
        return ProcessExit(name, why, code)
