"""The processes of a cluster: started on machines, heard at once when they end, started again.

Knows: processes, machines, the places of workers, how soon one may be started again. Does not know: what
workers say, portions.
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

_PATIENCE_SECONDS = 0.5
"""Before the second start in a row of a worker that never joined; doubled each time."""
_HOPELESS = 4
"""Starts in a row, none of which led to a worker that joined."""
_MACHINES_SECONDS = 2.0
"""How often machines that joined are looked for."""


@dataclass(frozen=True)
class Ended:
    """A process is no more."""

    name: str
    why: str
    code: int


class Staff:
    """Workers and servers. ``call_of`` says what the worker of a name is to do; it is of ``ranks``
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
        """``kind``: what workers are called by, with a number."""
        self._processes, self._endpoint, self._call_of = processes, endpoint, call_of
        self._restarts, self._ranks, self._kind = restarts, ranks, kind
        self._started: dict[str, Process] = {}
        self._watched: dict[int, str] = {}
        self._workers: set[str] = set()
        self._places: dict[str, int] = {}
        self._machines: dict[str, int] = {}
        self._number = 0
        self._in_vain = 0
        """Workers in a row that ended before they joined."""
        self._joined: set[str] = set()
        self._due: list[tuple[float, str | None]] = []
        """Workers to be started again: when, and where."""
        self._looked = 0.0
        self.replaced = 0
        """Starts in the place of workers that ended."""
        self._lost: set[str] = set()
        """Processes whose end nobody saw."""
        self._killed: dict[str, str] = {}
        """Why processes were killed that have not ended yet."""
        self.last_words = ""
        """Why the worker ended that ended last."""

    @property
    def workers(self) -> tuple[str, ...]:
        """Workers whose processes run."""
        return tuple(sorted(self._workers))

    @property
    def is_hopeless(self) -> bool:
        """Whether nothing runs, and starting again would not help."""
        return not self._workers and not self._due

    def place_of(self, name: str) -> int:
        """The least number, from 0, that no worker had who ran when this one was started; raises KeyError.

        Whoever is started for a worker that has ended takes a place that is free, under a new name.
        """
        return self._places[name]

    def machine_of(self, name: str) -> str:
        """The machine on which a process runs; empty for one that does not."""
        return self._started[name].machine if name in self._started else ""

    def pid_of(self, name: str) -> int:
        """The number of a process that runs, on its machine; raises KeyError."""
        return self._started[name].pid

    def hire(self, count: int) -> None:
        """Start so many workers, spread over the machines by their cores."""
        self._machines = dict(self._processes.machines())
        if not self._machines:
            raise MachineError(
                "the cluster has no machine; start one with: cotswold worker --address ADDRESS"
            )
        load = {machine: self._load(machine) for machine in self._machines}
        for _ in range(count):
            machine = min(load, key=lambda one: ((load[one] + 1) / max(self._machines[one], 1), one))
            load[machine] += 1
            self._start_worker(machine)

    def start(self, call: Call, *, spread: bool = False) -> None:
        """Start another process than a worker: on the coordinator's machine, or wherever there is room."""
        machine = None if spread else next(iter(self._processes.machines()), None)
        self._keep(self._processes.start(call, machine))

    def joined(self, name: str) -> None:
        """A worker has come as far as to join."""
        self._joined.add(name)
        self._in_vain = 0

    def ended(self, descriptor: int, now: float) -> Ended | None:
        """The process behind a descriptor that can be read, once it has ended; it is let go."""
        name = self._watched.get(descriptor)
        if name is None or self._started[name].code() is None:
            return None
        return self._let_go(name, now)

    def tick(self, now: float) -> None:
        """Start what is due, and workers on machines that joined."""
        for due in [one for one in self._due if one[0] <= now]:
            self._due.remove(due)
            machine = self._place(due[1])
            if machine is not None or not self._workers:
                self.replaced += self._try_to_start(machine, now)
        if now - self._looked >= _MACHINES_SECONDS:
            self._looked = now
            there = dict(self._processes.machines())
            for machine, cores in there.items():
                if machine not in self._machines:
                    for _ in range(self._room(cores) - self._load(machine)):
                        self._try_to_start(machine, now)
            self._machines = there

    def kill(self, name: str, why: str) -> None:
        """Kill a process, which ends soon, and then for the reason ``why``, in words that follow its name."""
        self._killed.setdefault(name, why)
        self._started[name].send(signal.SIGKILL)

    def end(self, name: str) -> None:
        """Kill a process that is no worker; nothing happens where it has ended."""
        if name in self._started:
            self._let_go(name, 0.0)

    def is_stopped(self, name: str) -> bool:
        """Whether a signal has stopped a process that runs, on this machine; others are not known of."""
        return self.machine_of(name) == socket.gethostname() and is_stopped(self.pid_of(name))

    def is_lost(self, name: str) -> bool:
        """Whether contact with a process was lost, so that it may still run."""
        return name in self._lost

    def is_watched(self, name: str) -> bool:
        """Whether a process of this name runs."""
        return name in self._started

    def start_no_more(self) -> None:
        """Nobody who ends from now on is started again."""
        self._restarts = False
        self._due.clear()

    def close(self) -> None:
        """End all."""
        self.start_no_more()
        for name in list(self._started):
            self._let_go(name, 0.0)

    def _room(self, cores: int) -> int:
        """Workers for a machine with so many cores."""
        return max(1, cores // self._ranks)

    def _load(self, machine: str) -> int:
        return sum(self.machine_of(name) == machine for name in self._workers)

    def _place(self, machine: str | None) -> str | None:
        """Where a worker is started again: on its machine, or, where that is gone, on another that has room.

        None where no machine has: those that are there would not be faster with more.
        """
        there = self._processes.machines()
        if machine in there:
            return machine
        return next((one for one, cores in there.items() if self._load(one) < self._room(cores)), None)

    def _start_worker(self, machine: str | None) -> None:
        self._number += 1
        name = f"{self._kind}-{self._number}"
        taken = set(self._places.values())
        self._places[name] = min(set(range(len(taken) + 1)) - taken)
        try:
            self._keep(self._processes.start(self._call_of(name), machine))
        except CotswoldError:
            del self._places[name]
            raise
        self._workers.add(name)

    def _try_to_start(self, machine: str | None, now: float) -> bool:
        """Start a worker; False for one that cannot be started, which is a worker that ended at once."""
        try:
            self._start_worker(machine)
        except CotswoldError as error:
            self.last_words = str(error)
            self._in_vain += 1
            self._start_again(machine, now)
            return False
        return True

    def _start_again(self, machine: str | None, now: float) -> None:
        """Have a worker started in the place of one that ended, unless that has been in vain too often."""
        if self._restarts and self._in_vain < _HOPELESS:
            wait = _PATIENCE_SECONDS * 2 ** (self._in_vain - 2) if self._in_vain > 1 else 0.0
            self._due.append((now + wait, machine))

    def _keep(self, process: Process) -> None:
        self._started[process.name] = process
        self._lost.discard(process.name)
        self._watched[process.fileno()] = process.name
        self._endpoint.watch(process.fileno())

    def _let_go(self, name: str, now: float) -> Ended:
        process = self._started.pop(name)
        descriptor = process.fileno()
        self._endpoint.unwatch(descriptor)
        del self._watched[descriptor]
        why = self._killed.pop(name, "") or process.why()
        process.end()
        code = process.code() or 0
        if code == LOST:
            self._lost.add(name)
        if name in self._workers:
            self._workers.discard(name)
            del self._places[name]
            self.last_words = f"{name} {why}"
            self._in_vain += name not in self._joined
            self._joined.discard(name)
            if code != 0:
                self._start_again(process.machine, now)
            elif not self._workers:  # the last was dismissed, because its machine goes
                self._start_again(None, now)
        return Ended(name, why, code)
