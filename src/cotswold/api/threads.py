"""What a call changes of its process and gives back: threads, the environment, torch's random numbers.

Knows: who may say how many threads there are, and who wins. Does not know: what is computed.

``threads=`` (``--threads``) stands before a recipe's ``training.threads``, and that before what this process
is granted (`cotswold.host.granted_cores`: quotas of containers, affinity, OMP_NUM_THREADS). torch alone would
take every core of the machine, granted or not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_whole
from cotswold.errors import UserError
from cotswold.host import granted_cores, waiting_settings

if TYPE_CHECKING:
    from cotswold.recipe import Recipe

THREADS_MOST = 4096
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def own_environment() -> Iterator[None]:
    """The environment as it was, once the block has ended; inside, threads that wait go to sleep."""
    before = dict(os.environ)
    os.environ.update(waiting_settings(os.environ))
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


@contextmanager
def own_threads() -> Iterator[None]:
    """torch's threads as they were, once the block has ended; those that are granted if it was not loaded."""
    torch = sys.modules.get("torch")
    before = granted_cores() if torch is None else torch.get_num_threads()
    try:
        yield
    finally:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(before)


@contextmanager
def own_random() -> Iterator[None]:
    """torch's random states as they were, once the block has ended: training seeds them for itself.

    A device that nobody has used before is seeded by the caller's seed again, as torch would have done.
    """
    import torch

    before, seed = torch.get_rng_state(), torch.initial_seed()
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    states = torch.cuda.get_rng_state_all() if used else None
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if states is None:
            torch.cuda.manual_seed_all(seed)
        else:
            torch.cuda.set_rng_state_all(states)


@contextmanager
def own_modes(device: str = "cpu") -> Iterator[None]:
    """torch computes with gradients and makes tensors on the CPU inside the block, whatever the caller chose.

    A default device of the type ``device`` stays, for the code of a module that is there.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # nobody has chosen anything
        yield
        return
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        if torch.get_default_device().type not in ("cpu", torch.device(device).type):
            modes.enter_context(torch.device("cpu"))
        yield


@contextmanager
def computing(wanted: int | None, recipe: Recipe | None = None, device: str = "cpu") -> Iterator[int]:
    """So many threads inside a `with` block, and `own_modes`; the environment and torch's threads are as
    before after it."""
    with own_environment(), own_threads(), own_modes(device):
        yield use_threads(wanted, recipe)


def use_threads(wanted: int | None, recipe: Recipe | None = None) -> int:
    """Compute on so many threads from now on; to be called before torch is imported, if possible.

    Raises UserError for a number that is none of threads.
    """
    own = None if recipe is None else recipe.training.threads
    threads = (own or granted_cores()) if wanted is None else _checked(wanted)
    for name in _VARIABLES:  # what is not loaded yet, and processes that are started, read these
        os.environ[name] = str(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    return threads


def threads_override(wanted: int | None) -> list[str]:
    """``threads`` as an override of a recipe that is to be trained; none where nothing is said."""
    return [] if wanted is None else [f"training.threads={_checked(wanted)}"]


def _checked(wanted: int) -> int:
    check_whole("threads", wanted)
    if not 1 <= wanted <= THREADS_MOST:
        raise UserError(f"threads cannot be {wanted}; give 1 to {THREADS_MOST}")
    return wanted
