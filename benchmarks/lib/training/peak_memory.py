"""The peak memory of a step of every stack of a recipe, each in a separate process.

Knows: recipes, processes. Does not know: how memory is counted.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from cotswold.bench.kernels.peak import peak_of
from cotswold.bench.measure import Document
from cotswold.recipe import Recipe


def peaks(recipe: Recipe) -> list[Document]:
    """Return a row per stack: the peak, and filters + momentum + activations + one block row's gradient."""
    spawn = multiprocessing.get_context("spawn")
    rows = []
    for number, geometry in enumerate(recipe.stack_geometries(), 1):
        with ProcessPoolExecutor(1, spawn) as process:
            rows.append(
                {"stack": number, **process.submit(peak_of, geometry, recipe.training.batch_size).result()}
            )
    return rows
