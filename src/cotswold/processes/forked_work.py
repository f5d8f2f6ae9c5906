"""Processes that inherit a program's module and data set by fork.

Knows: the limits of torch after a fork. Does not know: what is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import torch

from cotswold.errors import UserError
from cotswold.host import ForkServer


def fork_server_of_work(given: Mapping[str, object]) -> ForkServer:
    """Fork processes that find ``given`` by `host.inherited`, in its present state; each uses one thread.

    torch's threads do not survive a fork: a process that uses several hangs. Raises UserError if CUDA is
    initialised, which no fork survives, and on systems other than Linux.
    """
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch gives it no types
        raise UserError(
            "this program has initialised CUDA, and a fork of it cannot use CUDA; start before anything is "
            "moved to a device, or give a function that creates module and data set, as 'module:function'"
        )
    import_module("torch._dynamo")  # each process needs it at its start: import it once, before the fork
    return ForkServer.of_this_process(given, prepare=_use_one_thread)


def _use_one_thread() -> None:
    torch.set_num_threads(1)
