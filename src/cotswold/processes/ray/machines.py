"""The machines of a Ray cluster, and an agent on each.

Knows: Ray's nodes, the facts that agents report. Does not know: processes, how this program is connected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cotswold import __version__
from cotswold.errors import UserError
from cotswold.host import token
from cotswold.processes.ray.agent import MachineFacts
from cotswold.processes.ray.connection import short_message
from cotswold.processes.ray.settings import reachable

HEAD_SECONDS = 2.0
"""Seconds to wait for an answer of Ray's head."""


@dataclass
class RayMachine:
    """A node of Ray, and its agent."""

    name: str
    agent: Any
    answer: Any
    """Its facts, once they have arrived."""
    cores: int
    is_ready: bool = False
    is_lost: bool = False
    """True if its agent has exited, or cannot be reached."""


class RayMachines:
    """All machines seen so far, by Ray's names."""

    def __init__(self, address: str, token: str, make_agent: Callable[[str], Any]) -> None:
        self._address, self._token, self._make_agent = address, token, make_agent
        self.machines: dict[str, RayMachine] = {}
        self.rejected: dict[str, str] = {}
        self._refresh_thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def ready(self) -> list[RayMachine]:
        """Machines that can be used now."""
        return [
            machine for machine in list(self.machines.values()) if machine.is_ready and not machine.is_lost
        ]

    @property
    def is_refreshing(self) -> bool:
        """True if a machine has not sent its facts yet."""
        return any(machine.answer is not None for machine in list(self.machines.values()))

    def has_head(self) -> bool:
        """True if Ray's head answers; without it, every request to Ray blocks."""
        try:
            reachable(self._address, HEAD_SECONDS)
        except UserError:
            return False
        return True

    def wait_reply(self, seconds: float) -> bool:
        """True if the head answers, and the last check ends within ``seconds``."""
        if self._refresh_thread is not None:
            self._refresh_thread.join(seconds)
        return (self._refresh_thread is None or not self._refresh_thread.is_alive()) and self.has_head()

    def refresh(self, ray: Any, seconds: float) -> None:
        """Update the list of machines, and collect their facts; block for at most ``seconds``. Later results
        are used by the next call.

        Without a head no machine joins, and the known ones keep running. A head that hangs or is cut off
        blocks a caller for as long. Therefore a separate thread checks, and training never waits for it.
        """
        if self._refresh_thread is None or not self._refresh_thread.is_alive():
            self._refresh_thread = threading.Thread(
                target=self._refresh_in_thread, args=(ray,), name="ray-machines", daemon=True
            )
            self._refresh_thread.start()
        self._refresh_thread.join(seconds)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _refresh_in_thread(self, ray: Any) -> None:
        try:
            self._refresh(ray)
        except Exception as error:
            self._failed = error

    def _refresh(self, ray: Any) -> None:
        if not self.has_head():
            return
        nodes = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
        for node, machine in list(self.machines.items()):
            if node not in nodes:
                machine.is_lost = True
                self.rejected.pop(machine.name, None)
            elif machine.is_lost:  # its agent has exited, and a new one replaces it
                self._start_agent(node, machine.name, machine.cores)
        for node in nodes.keys() - self.machines.keys():
            host = nodes[node]["NodeManagerHostname"]
            taken = any(machine.name == host for machine in self.machines.values())
            self._start_agent(
                node, f"{host}-{node[:6]}" if taken else host, int(nodes[node]["Resources"].get("CPU", 1))
            )
        for machine in list(self.machines.values()):
            if machine.answer is not None and ray.wait([machine.answer], timeout=0)[0]:
                self._on_agent(ray, machine)

    def _start_agent(self, node: str, name: str, cores: int) -> None:
        agent = self._make_agent(node)
        self.machines[node] = RayMachine(name, agent, agent.facts.remote(), cores)

    def _on_agent(self, ray: Any, machine: RayMachine) -> None:
        answer, machine.answer = machine.answer, None
        try:
            facts: MachineFacts = ray.get(answer)
        except ray.exceptions.RayError as error:
            self.rejected[machine.name] = f"cannot start processes: {short_message(error)}"
            machine.is_lost = True
            return
        if facts.version != __version__:
            self.rejected[machine.name] = (
                f"has Cotswold {facts.version}, and this one {__version__}; install the same"
            )
        elif facts.token != self._token:
            self.rejected[machine.name] = (
                f"{'has another' if facts.token else 'has no'} {token.VARIABLE}; start it with "
                "'cotswold worker', and the same token as here"
            )
        else:
            machine.is_ready = True
            self.rejected.pop(machine.name, None)
