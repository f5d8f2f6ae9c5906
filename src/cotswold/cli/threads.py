"""Threads of the commands that look at a run.

Knows: what says how many there are. Does not know: what they compute.
"""

from __future__ import annotations

from cotswold.errors import UserError
from cotswold.recipe import Recipe


def use_threads(wanted: int | None, recipe: Recipe) -> None:
    """Compute on as many threads as ``--threads`` says, or the recipe, or else as torch would take."""
    if wanted is not None and wanted < 1:
        raise UserError(f"--threads {wanted} computes nothing; give 1 or more")
    count = wanted or recipe.training.threads
    if count is not None:
        import torch

        torch.set_num_threads(count)
