"""A module of a program and its loss, tried on the first samples by a fork of the program.

Knows: how a fork is asked, how what it raises comes back. Does not know: strategies.

The fork does what replicas do: a loss may ask for derivatives itself, and on a machine with CUDA devices
autograd has threads from then on, without which it does not work in forks. So the program leaves that to a
fork, too.
"""

from __future__ import annotations

import pickle
import selectors
import tempfile
import traceback
from contextlib import closing
from typing import IO, cast

from torch import nn

from cotswold.errors import CotswoldError, MachineError, UserError, told
from cotswold.host import Call, Process, inherited
from cotswold.processes.forked_work import live_processes
from cotswold.training.async_sgd.replica_task import FIRST
from cotswold.training.data.indexed import Patterns
from cotswold.training.losses import IS_SUM, Loss, is_sum
from cotswold.training.strategies.module_buffers import Buffers, refusal
from cotswold.training.strategies.module_modes import Modes
from cotswold.training.strategies.supervised import needed, one_type

_TRIAL = "trial"
"""The name under which the fork finds what it tries, and the file for what that raises."""


def try_in_fork(module: nn.Module, loss: Loss, samples: Patterns) -> None:
    """Raise what module, loss and data set raise on the first samples; nothing of this process is changed.

    An exception is of the class that it has in the fork, with the fork's traceback as a note where it is not
    ours; of class RuntimeError, in the same words, where it cannot be pickled. Raises MachineError for a
    fork that is killed, and as `live_processes`.
    """
    with (
        tempfile.TemporaryFile() as raised,
        closing(live_processes({_TRIAL: (module, loss, samples, raised)})) as forks,
    ):
        process = forks.start(Call("the trial of the module", f"{__name__}:inherited_trial"))
        _await(process)
        if process.code() != 0:
            raise MachineError(
                f"module and loss were tried on the first samples, and the process {process.why()}; look at "
                "what it printed, and at the memory of this machine"
            )
        raised.seek(0)  # the fork has written at the same place
        said = raised.read()
    if said:
        raise cast(Exception, pickle.loads(said))  # it is this program's own


def inherited_trial() -> None:
    """What the fork does."""
    module, loss, samples, raised = cast(
        tuple[nn.Module, Loss, Patterns, IO[bytes]], inherited(_TRIAL)
    )  # given so
    try:
        batch = samples.batch(range(min(FIRST, len(samples))))
        Modes(module).learn()
        buffers = Buffers(module)
        with one_type(module, batch):
            loss(module(batch.inputs), needed(batch.targets))
        if changed := buffers.changed():
            raise UserError(refusal(module, changed, "downpour"))
        if is_sum(loss):
            raise UserError(IS_SUM)
    except Exception as error:
        raised.write(_pickled(error))
        raised.flush()


def _await(process: Process) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(process.fileno(), selectors.EVENT_READ)
        while process.code() is None:
            selector.select()


def _pickled(error: Exception) -> bytes:
    """It, if another process can have it, or its words."""
    words = told(error)
    if not isinstance(error, CotswoldError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        said = pickle.dumps(error)
        pickle.loads(said)  # its class may not take what it kept
    except Exception:
        return pickle.dumps(RuntimeError(words))
    return said
