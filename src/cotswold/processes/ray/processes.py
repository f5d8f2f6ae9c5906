"""Processes on the machines of a Ray cluster: an implementation of `host.Processes`.

Knows: Ray's nodes and actors. Does not know: what the processes do, how they reach each other.

An `Agent` on each machine forks processes there. So a process costs no more than on one host, and exits in
the same ways. No token is ever sent, neither the run's nor a standalone cluster's (`processes.credentials`):
each machine was started with it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from cotswold.errors import MachineError, UserError
from cotswold.host import Call, Token, is_readable
from cotswold.host.fork_server import END_SECONDS, START_SECONDS
from cotswold.host.processes import LOST
from cotswold.processes.credentials import token_fingerprints, without_secrets
from cotswold.processes.ray.agent import Agent, StartRefusal
from cotswold.processes.ray.connection import connect_ray, short_message
from cotswold.processes.ray.machines import HEAD_SECONDS, RayMachine, RayMachines
from cotswold.processes.ray.settings import fingerprint, reachable, require_ray

_JOIN_SECONDS = 60.0
_REFRESH_SECONDS = 0.1
"""Seconds that a check of the machines may block the caller; it takes some ms if the head answers."""
_ALL_SECONDS = 20.0
"""Seconds to wait for the other machines after the first is ready, at most; they may join later."""
_RETRY_SECONDS = 10.0
"""Seconds within which a second failure to reach an agent counts as its loss; one failure may be the
network."""


class RayProcesses:
    """Starts processes on the machines of the head at ``address``, one of which is this machine.

    The agents import ``modules`` once. Raises MissingExtraError without Ray. Raises UserError if no process
    answers at the address, if the token differs from the machines' token, or if this program uses Ray at
    another address.
    """

    def __init__(self, address: str, token: Token, modules: Sequence[str] = ("torch",)) -> None:
        require_ray()
        self._token, self._modules = token, list(modules)
        self._machines = RayMachines(address, fingerprint(token), self._make_agent)
        self._started: list[RayProcess] = []
        self._keys = itertools.count()
        self._ray, self._owns_connection = connect_ray(reachable(address), token)
        try:
            self._await_machine(address)
        except BaseException:
            self.close()
            raise

    def machines(self) -> Mapping[str, int]:
        """The usable machines, and the cores that each grants."""
        self._machines.refresh(self._ray, _REFRESH_SECONDS)
        own = self._own_node()
        ready = sorted(
            self._machines.ready(), key=lambda machine: machine is not self._machines.machines.get(own)
        )
        return {machine.name: machine.cores for machine in ready}

    @property
    def own_address(self) -> str:
        """The address of this machine for the other machines, as Ray knows it."""
        return str(self._ray.util.get_node_ip_address())

    def _own_node(self) -> str:
        return str(self._ray.get_runtime_context().get_node_id())

    def refused(self) -> Mapping[str, str]:
        """Machines that cannot be used, and the reasons."""
        return dict(self._machines.rejected)

    def start(self, call: Call, machine: str | None = None) -> RayProcess:
        """Start a process; without ``machine`` on the one with most free cores. Raises as
        `Processes.start`, and UserError if the machine has another cluster token than the call."""
        call.to_json()  # raises for arguments that JSON cannot encode, as elsewhere
        self.machines()
        chosen = self._choose(call, machine)
        key = next(self._keys)
        told = replace(call, environ=without_secrets(call.environ))
        answer = self._call_agent(
            call.name, chosen, chosen.agent.start.remote(key, told, token_fingerprints(call.environ))
        )
        if isinstance(answer, StartRefusal):
            raise (UserError if answer.is_users else MachineError)(answer.why)
        process = RayProcess(call.name, chosen, answer, key)
        self._started = [each for each in self._started if not each.is_released]
        self._started.append(process)
        return process

    def close(self) -> None:
        """End all processes, and disconnect Ray if this object connected it; its machines stay."""
        for process in self._started:
            process.end()
        self._started = []
        # otherwise Ray would wait for the head
        if self._ray is not None and self._machines.wait_reply(HEAD_SECONDS):
            for machine in self._machines.machines.values():
                self._ray.kill(machine.agent)
            if self._owns_connection:
                self._ray.shutdown()
        self._ray = None

    def _choose(self, call: Call, name: str | None) -> RayMachine:
        ready = self._machines.ready()
        if name is not None:
            ready = [machine for machine in ready if machine.name == name]
        if not ready and not self._machines.has_head():
            raise MachineError(
                f"{call.name} cannot be started: Ray's head has exited; start it again, then resume"
            )
        if not ready:
            there = ", ".join(machine.name for machine in self._machines.ready()) or "none"
            raise UserError(f"{call.name} cannot run on {name or 'any machine'}; usable machines: {there}")
        running = [each.machine for each in self._started if each.code() is None]
        return max(ready, key=lambda machine: machine.cores - running.count(machine.name))

    def _call_agent(self, name: str, machine: RayMachine, answer: Any) -> Any:
        try:
            return self._ray.get(answer, timeout=START_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise MachineError(
                f"{name} cannot be started on {machine.name}: {short_message(error)}; "
                "does the machine still run?"
            ) from error

    def _make_agent(self, node: str) -> Any:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._ray.remote(num_cpus=0, scheduling_strategy=strategy)(Agent)
        return actor.remote(self._modules)

    def _await_machine(self, address: str) -> None:
        deadline = time.monotonic() + _JOIN_SECONDS
        all_by = time.monotonic() + _ALL_SECONDS
        while not self.machines() or (self._machines.is_refreshing and time.monotonic() < all_by):
            if self._machines.rejected:
                name, why = next(iter(self._machines.rejected.items()))
                raise UserError(f"the machine {name} at {address} {why}")
            if time.monotonic() > deadline:
                raise MachineError(f"no machine at {address} was ready after {_JOIN_SECONDS:g} s")
            time.sleep(0.05)


class RayProcess:
    """A process on a machine of the Ray cluster: `Process`."""

    def __init__(self, name: str, machine: RayMachine, pid: int, key: int) -> None:
        self.name, self.machine, self.pid = name, machine.name, pid
        self.is_released = False
        self._machine, self._agent, self._key = machine, machine.agent, key
        self._unanswered_at = -_RETRY_SECONDS
        self._end: tuple[int, str] | None = None
        self._exit_reader, self._exit_writer = os.pipe()
        self._wait_exit()

    def fileno(self) -> int:
        """Becomes readable when the process exits."""
        return self._exit_reader

    def code(self) -> int | None:
        """Its exit code, or minus a signal's number; `LOST` if contact with its machine was lost; None
        while it runs."""
        return None if self._end is None else self._end[0]

    def why(self) -> str:
        """Its exit reason, in words."""
        return "is running" if self._end is None else self._end[1]

    def send(self, number: int) -> None:
        """Send a signal, unless the process has exited."""
        if self._end is None:
            self._agent.send.remote(self._key, number)

    def end(self) -> None:
        """Kill the process and its children, and release it."""
        if self.is_released:
            return
        self.is_released = True
        self._agent.end.remote(self._key)
        is_readable(self._exit_reader, END_SECONDS)
        if self._end is None:
            self._end = LOST, f"was sent SIGKILL, and its machine {self.machine} has not reported its end"
        os.close(self._exit_reader)
        self._exit_reader = -1

    def _is_lost(self) -> bool:
        before, self._unanswered_at = self._unanswered_at, time.monotonic()
        return self._unanswered_at - before < _RETRY_SECONDS

    def _wait_exit(self) -> None:
        self._agent.wait_exit.remote(self._key).future().add_done_callback(self._on_exit)

    def _on_exit(self, future: Future[tuple[int, str]]) -> None:
        """Handle the exit, or the loss of the agent; runs in a thread of Ray.

        Ray also reports an unreachable agent as dead. The exit of the process is then unknown.
        """
        try:
            end = future.result()
        except Exception as error:
            if type(error).__name__ == "ActorUnavailableError" and not self._is_lost():
                self._wait_exit()  # the agent may be reachable again
                return
            self._machine.is_lost = True
            end = LOST, f"was lost with its machine {self.machine} ({short_message(error)})"
        self._end = self._end or end
        os.write(self._exit_writer, b"\n")  # never read: it stays readable
        os.close(self._exit_writer)
