"""Processes that live and die alone: what is started, how it is watched, how it is ended, why it ended.

Knows: the verbs. Does not know: who starts processes, where; what they do.

`ForkServer` starts them on this host; a cluster may start them on others. `cotswold.testing` has the tests
that every implementation passes.
"""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cotswold.errors import UserError

LOST = -(1 << 16)
"""The code of a process whose end nobody saw: contact with its machine was lost, and it may still run."""


@dataclass(frozen=True)
class Call:
    """What a process is to do: call a function that it can import."""

    name: str
    """What messages call the process."""
    function: str
    """``"module:function"``; its exit code is what the function returns, 0 for None."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Keywords of the call: whatever JSON can say."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that it gets besides those it inherits."""
    output: Path | None = None
    """A file to which it appends what it prints; without one it prints where the process prints that started
    it."""

    def words(self) -> str:
        """What the process must know, as JSON; raises UserError where JSON cannot say it."""
        try:
            return json.dumps(
                {
                    "function": self.function,
                    "arguments": dict(self.arguments),
                    "environ": dict(self.environ),
                }
            )
        except (TypeError, ValueError) as error:
            raise UserError(
                f"the arguments of {self.name} cannot be sent to it: {error}; give what JSON can say"
            ) from error

    def __post_init__(self) -> None:
        module, _, function = self.function.partition(":")
        if not (module and function.isidentifier()):
            raise UserError(f"{self.function!r} names no function; write 'module:function'")


class Process(Protocol):
    """A process that was started. All verbs may be used again and again, also when it has ended."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def machine(self) -> str:
        """The machine that it runs on, one of `Processes.machines`."""
        ...

    @property
    def pid(self) -> int:
        """Its number on its machine, which is its group's as well."""
        ...

    def fileno(self) -> int:
        """A descriptor for selectors, readable once the process has ended (it is not to be read)."""
        ...

    def code(self) -> int | None:
        """How it has ended: its exit code, or minus a signal's number; `LOST` where nobody saw its end, and
        it may still run; None while it runs."""
        ...

    def why(self) -> str:
        """Why it has ended, in words that follow its name: an exit code or a signal, the error that it
        raised, a machine that was lost; "is running" while it runs.
        """
        ...

    def send(self, number: int) -> None:
        """Give it a signal; nothing happens where it has ended."""
        ...

    def end(self) -> None:
        """Kill it and what it has started, also where it has ended by itself; then let it go."""
        ...


class Processes(Protocol):
    """Starts processes on one or several machines. They do not outlive whoever started them."""

    def machines(self) -> Mapping[str, int]:
        """The machines that are there now, and the cores that each grants: some may join, some may go.

        The first is this process's own, where it is one of them.
        """
        ...

    def start(self, call: Call, machine: str | None = None) -> Process:
        """Start a process, on the ``machine`` of this name or on any.

        Raises UserError for a machine that is not there, and for an output file that cannot be opened,
        MachineError where a process cannot be started.
        """
        ...

    def close(self) -> None:
        """End all processes."""
        ...


def how(code: int) -> str:
    """What became of a process, in words."""
    if code == LOST:
        return "was lost, and may still run"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def function_of(text: str) -> Callable[..., object]:
    """The function that ``"module:function"`` names; raises UserError where there is none."""
    module, _, name = text.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"a process cannot find {text}: {error}; name a function of a module that can be imported"
        ) from error
    if not callable(found):
        raise UserError(f"{text} is no function, but a {type(found).__name__}; name a function")
    return found
