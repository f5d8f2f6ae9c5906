"""A caller's random numbers, which training leaves as they were.

Knows: torch's generators, where they are. Does not know: what draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_random() -> Iterator[None]:
    """torch's random states as they were, once the block has ended; what is inside seeds them as it likes.

    A device that nobody has used before is seeded by the caller's seed again, as torch would have done.
    """
    import torch

    before, seed = torch.get_rng_state(), torch.initial_seed()
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if states is None:
            torch.cuda.manual_seed_all(seed)
        else:
            torch.cuda.set_rng_state_all(states)
