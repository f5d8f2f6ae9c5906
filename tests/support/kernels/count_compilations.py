"""A process that computes a product and reports its compilations and measurements; a script.

Knows: the counters. Does not know: the contents of the cache.
"""

from __future__ import annotations

import hashlib
import warnings
from unittest.mock import patch

import torch
from tests.support.kernels.operations import operands, run

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.compile import library
from cotswold.kernels.products import autotune

LAYER = BlockLocal(MapShape(16, 12, 12), Window(5), Window(5), rows=1, columns=1, depth=32)


def main() -> None:
    """Print the numbers of compilations and measurements, and a digest of the result."""
    with (
        patch.object(library, "_compile", wraps=library._compile) as compiled,
        patch.object(autotune, "_measure", wraps=autotune._measure) as measured,
        patch.object(autotune, "SECONDS_MOST", 0.1),
    ):
        found = run("adjoint", LAYER, operands("adjoint", LAYER, 64, torch.float32))
    digest = hashlib.sha256(found.contiguous().numpy().tobytes()).hexdigest()
    print(compiled.call_count, measured.call_count, digest)


if __name__ == "__main__":
    warnings.simplefilter("error")
    main()
