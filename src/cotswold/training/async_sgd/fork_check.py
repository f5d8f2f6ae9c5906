"""The fork check: a user's module and loss run on the first samples in a fork of the program.

Knows: how a fork is started, how its exception is returned. Does not know: strategies.

The fork does what replicas do. A loss may compute derivatives itself; on a machine with CUDA devices this
starts autograd threads, and autograd then no longer works in forks. So the program leaves the first run to a
fork.
"""

from __future__ import annotations

import pickle
import selectors
import tempfile
import traceback
from contextlib import closing
from typing import IO, cast

from torch import nn

from cotswold.errors import CotswoldError, MachineError, UserError, describe_exception
from cotswold.host import Call, Process, inherited
from cotswold.processes.forked_work import fork_server_of_work
from cotswold.training.async_sgd.replica_task import FIRST
from cotswold.training.data.indexed import IndexedSamples
from cotswold.training.losses import IS_SUM, Loss, is_sum
from cotswold.training.strategies.module_buffers import Buffers, refusal
from cotswold.training.strategies.module_modes import Modes
from cotswold.training.strategies.supervised import explain_dtype_errors, require_targets

_TRIAL = "trial"
"""The name of the fork's inputs: module, loss, samples, and the file for its exception."""


def try_in_fork(module: nn.Module, loss: Loss, samples: IndexedSamples) -> None:
    """Raise the exceptions of module, loss and data set on the first samples, without changing this process.

    An exception keeps its class; one from outside Cotswold has the fork's traceback as a note. An exception
    that cannot be pickled becomes a RuntimeError with the same text. Raises MachineError for a killed fork.
    """
    with (
        tempfile.TemporaryFile() as raised,
        closing(fork_server_of_work({_TRIAL: (module, loss, samples, raised)})) as forks,
    ):
        process = forks.start(Call("the fork check of the module", f"{__name__}:inherited_trial"))
        _await(process)
        if process.code() != 0:
            raise MachineError(
                f"module and loss were tested on the first samples, and the process {process.why()}; check "
                "its output and the memory of this machine"
            )
        raised.seek(0)  # the fork shares the file position
        said = raised.read()
    if said:
        raise cast(Exception, pickle.loads(said))  # this program's fork wrote it


def inherited_trial() -> None:
    """Run the check in the fork."""
    module, loss, samples, raised = cast(
        tuple[nn.Module, Loss, IndexedSamples, IO[bytes]], inherited(_TRIAL)
    )  # the parent gave these types
    try:
        batch = samples.batch(range(min(FIRST, len(samples))))
        Modes(module).learn()
        buffers = Buffers(module)
        with explain_dtype_errors(module, batch):
            loss(module(batch.inputs), require_targets(batch.targets))
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
    """Return the pickled exception, or a RuntimeError with its text if it cannot be pickled."""
    words = describe_exception(error)
    if not isinstance(error, CotswoldError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        said = pickle.dumps(error)
        pickle.loads(said)  # its class may not accept its pickled arguments
    except Exception:
        return pickle.dumps(RuntimeError(words))
    return said
