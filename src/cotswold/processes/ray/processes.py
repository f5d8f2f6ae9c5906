"""Processes on the machines of a Ray cluster: an implementation of `host.Processes`.

Knows: Ray's nodes and actors. Does not know: what the processes do, how they reach each other.

An `Agent` on each machine forks processes there. So a process costs no more than on one host, and exits in
the same ways. No token is ever sent, neither the run's nor a standalone cluster's (`processes.credentials`):
each machine was started with it.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from cotswold import __version__
from cotswold.errors import MachineError, UserError
from cotswold.host import Call, Token, is_readable, token
from cotswold.host.fork_server import END_SECONDS, START_SECONDS
from cotswold.host.processes import LOST
from cotswold.processes.credentials import tokens_said, without_secrets
from cotswold.processes.ray.agent import Agent, Facts, Refused
from cotswold.processes.ray.settings import fingerprint, ray_environ, reachable, require_ray

_JOIN_SECONDS = 60.0
_HEAD_SECONDS = 2.0
_LOOK_SECONDS = 0.1
"""Seconds that a check of the machines may block the caller; it takes some ms if the head answers."""
_ALL_SECONDS = 20.0
"""Seconds to wait for the other machines after the first is ready, at most; they may join later."""
_WORDS_MOST = 160
_AGAIN_SECONDS = 10.0
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
        self._machines = _Machines(address, fingerprint(token), self._make_agent)
        self._started: list[RayProcess] = []
        self._keys = itertools.count()
        self._ray, self._is_own = _connected(reachable(address), token)
        try:
            self._await_machine(address)
        except BaseException:
            self.close()
            raise

    def machines(self) -> Mapping[str, int]:
        """The usable machines, and the cores that each grants."""
        self._machines.look(self._ray, _LOOK_SECONDS)
        own = self._own_node()
        ready = sorted(
            self._machines.ready(), key=lambda machine: machine is not self._machines.known.get(own)
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
        return dict(self._machines.refused)

    def start(self, call: Call, machine: str | None = None) -> RayProcess:
        """Start a process; without ``machine`` on the one with most free cores. Raises as
        `Processes.start`, and UserError if the machine has another cluster token than the call."""
        call.to_json()  # raises for arguments that JSON cannot encode, as elsewhere
        self.machines()
        chosen = self._choose(call, machine)
        key = next(self._keys)
        told = replace(call, environ=without_secrets(call.environ))
        answer = self._ask(call.name, chosen, chosen.agent.start.remote(key, told, tokens_said(call.environ)))
        if isinstance(answer, Refused):
            raise (UserError if answer.is_users else MachineError)(answer.why)
        process = RayProcess(call.name, chosen, answer, key)
        self._started = [each for each in self._started if not each.is_let_go]
        self._started.append(process)
        return process

    def close(self) -> None:
        """End all processes, and disconnect Ray if this object connected it; its machines stay."""
        for process in self._started:
            process.end()
        self._started = []
        # otherwise Ray would wait for the head
        if self._ray is not None and self._machines.is_heard(_HEAD_SECONDS):
            for machine in self._machines.known.values():
                self._ray.kill(machine.agent)
            if self._is_own:
                self._ray.shutdown()
        self._ray = None

    def _choose(self, call: Call, name: str | None) -> _Machine:
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

    def _ask(self, name: str, machine: _Machine, answer: Any) -> Any:
        try:
            return self._ray.get(answer, timeout=START_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise MachineError(
                f"{name} cannot be started on {machine.name}: {_words(error)}; does the machine still run?"
            ) from error

    def _make_agent(self, node: str) -> Any:
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._ray.remote(num_cpus=0, scheduling_strategy=strategy)(Agent)
        return actor.remote(self._modules)

    def _await_machine(self, address: str) -> None:
        deadline = time.monotonic() + _JOIN_SECONDS
        all_by = time.monotonic() + _ALL_SECONDS
        while not self.machines() or (self._machines.is_asking and time.monotonic() < all_by):
            if self._machines.refused:
                name, why = next(iter(self._machines.refused.items()))
                raise UserError(f"the machine {name} at {address} {why}")
            if time.monotonic() > deadline:
                raise MachineError(f"no machine at {address} was ready after {_JOIN_SECONDS:g} s")
            time.sleep(0.05)


@dataclass
class _Machine:
    """A node of Ray, and its agent."""

    name: str
    agent: Any
    answer: Any
    """Its facts, once they have arrived."""
    cores: int
    is_ready: bool = False
    is_lost: bool = False
    """True if its agent has exited, or cannot be reached."""


class _Machines:
    """All machines seen so far, by Ray's names."""

    def __init__(self, address: str, token: str, make_agent: Callable[[str], Any]) -> None:
        self._address, self._token, self._make_agent = address, token, make_agent
        self.known: dict[str, _Machine] = {}
        self.refused: dict[str, str] = {}
        self._looking: threading.Thread | None = None
        self._failed: BaseException | None = None

    def ready(self) -> list[_Machine]:
        """Machines that can be used now."""
        return [machine for machine in list(self.known.values()) if machine.is_ready and not machine.is_lost]

    @property
    def is_asking(self) -> bool:
        """True if a machine has not sent its facts yet."""
        return any(machine.answer is not None for machine in list(self.known.values()))

    def has_head(self) -> bool:
        """True if Ray's head answers; without it, every request to Ray blocks."""
        try:
            reachable(self._address, _HEAD_SECONDS)
        except UserError:
            return False
        return True

    def is_heard(self, seconds: float) -> bool:
        """True if the head answers, and the last check ends within ``seconds``."""
        if self._looking is not None:
            self._looking.join(seconds)
        return (self._looking is None or not self._looking.is_alive()) and self.has_head()

    def look(self, ray: Any, seconds: float) -> None:
        """Update the list of machines, and collect their facts; block for at most ``seconds``. Later results
        are used by the next call.

        Without a head no machine joins, and the known ones keep running. A head that hangs or is cut off
        blocks a caller for as long. Therefore a separate thread checks, and training never waits for it.
        """
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(
                target=self._look_on, args=(ray,), name="ray-machines", daemon=True
            )
            self._looking.start()
        self._looking.join(seconds)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _look_on(self, ray: Any) -> None:
        try:
            self._look(ray)
        except Exception as error:
            self._failed = error

    def _look(self, ray: Any) -> None:
        if not self.has_head():
            return
        nodes = {each["NodeID"]: each for each in ray.nodes() if each["Alive"]}
        for node, machine in list(self.known.items()):
            if node not in nodes:
                machine.is_lost = True
                self.refused.pop(machine.name, None)
            elif machine.is_lost:  # its agent has exited, and a new one replaces it
                self._ask(node, machine.name, machine.cores)
        for node in nodes.keys() - self.known.keys():
            host = nodes[node]["NodeManagerHostname"]
            taken = any(machine.name == host for machine in self.known.values())
            self._ask(
                node, f"{host}-{node[:6]}" if taken else host, int(nodes[node]["Resources"].get("CPU", 1))
            )
        for machine in list(self.known.values()):
            if machine.answer is not None and ray.wait([machine.answer], timeout=0)[0]:
                self._hear(ray, machine)

    def _ask(self, node: str, name: str, cores: int) -> None:
        agent = self._make_agent(node)
        self.known[node] = _Machine(name, agent, agent.facts.remote(), cores)

    def _hear(self, ray: Any, machine: _Machine) -> None:
        answer, machine.answer = machine.answer, None
        try:
            facts: Facts = ray.get(answer)
        except ray.exceptions.RayError as error:
            self.refused[machine.name] = f"cannot start processes: {_words(error)}"
            machine.is_lost = True
            return
        if facts.version != __version__:
            self.refused[machine.name] = (
                f"has Cotswold {facts.version}, and this one {__version__}; install the same"
            )
        elif facts.token != self._token:
            self.refused[machine.name] = (
                f"{'has another' if facts.token else 'has no'} {token.VARIABLE}; start it with "
                "'cotswold worker', and the same token as here"
            )
        else:
            machine.is_ready = True
            self.refused.pop(machine.name, None)


class RayProcess:
    """A process on a machine of the Ray cluster: `Process`."""

    def __init__(self, name: str, machine: _Machine, pid: int, key: int) -> None:
        self.name, self.machine, self.pid = name, machine.name, pid
        self.is_let_go = False
        self._machine, self._agent, self._key = machine, machine.agent, key
        self._missed_at = -_AGAIN_SECONDS
        self._end: tuple[int, str] | None = None
        self._ending, self._told = os.pipe()
        self._watch()

    def fileno(self) -> int:
        """Becomes readable when the process exits."""
        return self._ending

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
        if self.is_let_go:
            return
        self.is_let_go = True
        self._agent.end.remote(self._key)
        is_readable(self._ending, END_SECONDS)
        if self._end is None:
            self._end = LOST, f"was sent SIGKILL, and its machine {self.machine} has not reported its end"
        os.close(self._ending)
        self._ending = -1

    def _is_lost(self) -> bool:
        before, self._missed_at = self._missed_at, time.monotonic()
        return self._missed_at - before < _AGAIN_SECONDS

    def _watch(self) -> None:
        self._agent.ended.remote(self._key).future().add_done_callback(self._hear)

    def _hear(self, future: Future[tuple[int, str]]) -> None:
        """Handle the exit, or the loss of the agent; runs in a thread of Ray.

        Ray also reports an unreachable agent as dead. The exit of the process is then unknown.
        """
        try:
            end = future.result()
        except Exception as error:
            if type(error).__name__ == "ActorUnavailableError" and not self._is_lost():
                self._watch()  # the agent may be reachable again
                return
            self._machine.is_lost = True
            end = LOST, f"was lost with its machine {self.machine} ({_words(error)})"
        self._end = self._end or end
        os.write(self._told, b"\n")  # never read: it stays readable
        os.close(self._told)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this program's signal handlers; Ray installs its own handler of SIGTERM when it connects."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        with suppress(ValueError):  # in other threads Ray leaves them alone, too
            signal.signal(number, handler)


_found: dict[str, str] = {}
"""Ray's variables in the environment when it was imported here; they may have been removed since."""


def _connected(address: str, given: Token) -> tuple[Any, bool]:
    """Return the module `ray`, connected, and True if this call connected it."""
    settings = ray_environ(given)
    found = _found or os.environ
    if "ray" in sys.modules and any(found.get(name) != text for name, text in settings.items()):
        raise UserError(
            "this program has imported ray before its token was set; import it later, or leave --address out"
        )
    os.environ.update(settings)
    _found.update(settings)
    import ray
    import ray.util.scheduling_strategies

    if ray.is_initialized():
        if not _is_same(address, ray.get_runtime_context().gcs_address):
            raise UserError(
                f"this program uses Ray at another address than {address}; call ray.shutdown() first"
            )
        return ray, False
    said: list[str] = []
    try:
        with _own_signals(), _unheard(said):
            ray.init(address=address, namespace="cotswold", log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ray.exceptions.RayError, RuntimeError, ValueError) as error:
        if any(_WRONG_TOKEN in each for each in (*said, str(error))):
            raise UserError(
                f"the machines at {address} have another token than this program; set {token.VARIABLE} to "
                "the contents of the token file of 'cotswold worker' there (sha256sum shows whether two "
                "files are the same)"
            ) from error
        raise UserError(
            f"this machine has not joined those at {address}: {_words(error)}; run "
            f"'cotswold worker --address {address}' here, with the same token"
        ) from error
    _listen_no_more(ray)
    return ray, True


def _listen_no_more(ray: Any) -> None:
    """Stop Ray's thread for error messages at the next message, or when the head exits. Otherwise it polls
    a lost head without a pause (`ray._private.worker.listen_error_messages`), which uses a whole core."""
    with suppress(AttributeError):  # other releases of Ray may lack this
        ray._private.worker.global_worker.threads_stopped.set()


_WRONG_TOKEN = "InvalidAuthToken"
"""Ray's name of the error, which appears only in its log."""
_RAY_LINE = re.compile(r"\[\d{4}-\d\d-\d\d [^]]*\] ?\S+\.cc:\d+: ")
"""A line of Ray's log, which its C++ writes to standard error."""


@contextmanager
def _unheard(said: list[str]) -> Iterator[None]:
    """Keep the lines of Ray's log from the terminal, and append them to ``said``."""
    with tempfile.TemporaryFile() as caught:
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)
            caught.seek(0)
            for line in caught.read().decode(errors="replace").splitlines(keepends=True):
                if _RAY_LINE.match(line):
                    said.append(line)
                else:  # not from Ray
                    os.write(2, line.encode())


def _is_same(address: str, other: str) -> bool:
    """True if two addresses are the same; the second has a numeric host."""
    (host, _, port), (other_host, _, other_port) = address.rpartition(":"), other.rpartition(":")
    found = socket.gethostbyname(host)
    return port == other_port and (found == other_host or found.startswith("127."))


def _words(error: BaseException) -> str:
    """The first line of Ray's message, shortened."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return textwrap.shorten(line, _WORDS_MOST)
