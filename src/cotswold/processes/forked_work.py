"""Processes that have a program's own module and data set, because they are forked from it.

Knows: what torch stands when a process is forked. Does not know: what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import torch

from cotswold.errors import UserError
from cotswold.host import ForkServer


def live_processes(given: Mapping[str, object]) -> ForkServer:
    """Starts processes that find ``given`` by `host.inherited`, as it is now; each computes with one thread.

    torch's threads do not live on in a fork: a process that asks for more than one waits for ever. Raises
    UserError where CUDA is in use, which no fork survives, and on systems other than Linux.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        raise UserError(
            "this program uses CUDA already, and a fork of it cannot; begin before anything is moved to a "
            "device, or name a function that makes module and data set, 'module:function'"
        )
    import_module("torch._dynamo")  # each process needs it at its start: import it once, before the fork
    return ForkServer.of_this_process(given, prepare=_one_thread)


def _one_thread() -> None:
    torch.set_num_threads(1)
