"""Interfaces of processes that are started, watched and ended one by one.

Knows: the methods. Does not know: which machines start processes; what they do.

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
"""Exit code of a process whose end is unknown: contact with its machine was lost, and it may still run."""


@dataclass(frozen=True)
class Call:
    """The task of a process: a call of a function that it can import."""

    name: str
    """Name of the process in messages."""
    function: str
    """``"module:function"``; its result is the exit code, 0 for None."""
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments of the call; values that JSON can represent."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Environment variables in addition to inherited ones."""
    output: Path | None = None
    """File to which the process appends its output (default: the starting process's streams)."""

    def to_json(self) -> str:
        """Serialise the call as JSON; UserError if JSON cannot represent an argument."""
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
                f"cannot send the arguments of {self.name} to it: {error}; use values that JSON can represent"
            ) from error

    def __post_init__(self) -> None:
        module, _, function = self.function.partition(":")
        if not (module and function.isidentifier()):
            raise UserError(f"{self.function!r} names no function; write 'module:function'")


class Process(Protocol):
    """A process that was started. All methods may be called repeatedly, also after its end."""

    @property
    def name(self) -> str:
        """Name in messages."""
        ...

    @property
    def machine(self) -> str:
        """Machine on which it runs, one of `Processes.machines`."""
        ...

    @property
    def pid(self) -> int:
        """Number of the process and of its group on its machine."""
        ...

    def fileno(self) -> int:
        """Descriptor for selectors that becomes readable when the process has ended (do not read it)."""
        ...

    def code(self) -> int | None:
        """Return the exit code, or minus a signal's number; None while the process runs.

        `LOST` if its end is unknown and it may still run.
        """
        ...

    def why(self) -> str:
        """Describe why the process has ended, to follow its name in a sentence.

        The text has an exit code, a signal, the error that it raised, or a lost machine; "is running" while
        it runs.
        """
        ...

    def send(self, number: int) -> None:
        """Send a signal; no effect after its end."""
        ...

    def end(self) -> None:
        """Kill the process and its children, also if it has ended by itself; then release it."""
        ...


class Processes(Protocol):
    """Starts processes on one or several machines; they end with the process that started them."""

    def machines(self) -> Mapping[str, int]:
        """Machines available now, and the number of cores that each grants; machines may join and leave.

        The first is this process's machine, if it is one of them.
        """
        ...

    def start(self, call: Call, machine: str | None = None) -> Process:
        """Start a process on the machine called ``machine``, or on any.

        Raises UserError for an unknown machine, and for an output file that cannot be opened; MachineError if
        the process cannot be started.
        """
        ...

    def close(self) -> None:
        """End all processes."""
        ...


def exit_text(code: int) -> str:
    """Describe how a process ended."""
    if code == LOST:
        return "was lost, and may still run"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def import_function(text: str) -> Callable[..., object]:
    """Import the function that ``"module:function"`` names; UserError if there is none."""
    module, _, name = text.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"a process cannot find {text}: {error}; name a function of a module that can be imported"
        ) from error
    if not callable(found):
        raise UserError(f"{text} must be a function, but is a {type(found).__name__}; name a function")
    return found
