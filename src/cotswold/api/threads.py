"""Process state that a call changes and restores: threads, the environment, torch's random numbers.

Knows: the sources of the number of threads, their precedence. Does not know: the computation.

``threads=`` (``--threads``) overrides a recipe's ``training.threads``, which overrides the number of granted
cores (`cotswold.host.granted_cores`: container quotas, affinity, OMP_NUM_THREADS). By default, torch would
use all cores of the machine, granted or not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_integer
from cotswold.errors import UserError
from cotswold.host import granted_cores, wait_settings

if TYPE_CHECKING:
    from cotswold.recipe import Recipe

THREADS_MOST = 4096
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@contextmanager
def own_environment() -> Iterator[None]:
    """Restore the environment after the block; inside, waiting threads sleep."""
    before = dict(os.environ)
    os.environ.update(wait_settings(os.environ))
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
    """Restore torch's threads after the block, or set the granted number if torch was not loaded before."""
    torch = sys.modules.get("torch")
    before = granted_cores() if torch is None else torch.get_num_threads()
    try:
        yield
    finally:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(before)


@contextmanager
def preserve_random_states() -> Iterator[None]:
    """Restore torch's random states after the block; training seeds them itself.

    A device used for the first time is seeded with the caller's seed again, as torch would do.
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
def training_modes(device: str = "cpu") -> Iterator[None]:
    """Enable gradients and create tensors on the CPU inside the block, regardless of the caller's modes.

    A default device of the type ``device`` is kept, for the code of a user's module.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # no modes are set
        yield
        return
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        if torch.get_default_device().type not in ("cpu", device.partition(":")[0]):
            modes.enter_context(torch.device("cpu"))
        yield


@contextmanager
def compute_threads(wanted: int | None, recipe: Recipe | None = None, device: str = "cpu") -> Iterator[int]:
    """Use ``wanted`` threads and `training_modes` in a `with` block; restore the environment and torch's
    threads.
    """
    with own_environment(), own_threads(), training_modes(device):
        yield use_threads(wanted, recipe)


def use_threads(wanted: int | None, recipe: Recipe | None = None) -> int:
    """Set the number of threads of this process, if possible before torch is imported; return it.

    Raises UserError for an invalid number.
    """
    own = None if recipe is None else recipe.training.threads
    threads = (own or granted_cores()) if wanted is None else _check_threads(wanted)
    for name in _VARIABLES:  # read by libraries not yet loaded and by child processes
        os.environ[name] = str(threads)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    return threads


def threads_override(wanted: int | None) -> list[str]:
    """Return ``threads`` as an override of a recipe; empty for None."""
    return [] if wanted is None else [f"training.threads={_check_threads(wanted)}"]


def _check_threads(wanted: int) -> int:
    check_integer("threads", wanted)
    if not 1 <= wanted <= THREADS_MOST:
        raise UserError(f"threads={wanted} is not in 1..{THREADS_MOST}")
    return wanted
