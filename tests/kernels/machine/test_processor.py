"""The processor for which kernels are generated, in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys

from cotswold.kernels.machine.processor import this_processor

SCRIPT = """
import hashlib, torch
from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.machine.processor import this_processor
layer = BlockLocal(MapShape(3, 9, 9), Window(5), Window(5), 2, 2, 7)
torch.manual_seed(0)
filters, x = torch.randn(layer.filters_shape), torch.randn(20, 3, 9, 9)
found = ops.local_product(x, filters, layer).numpy().tobytes()
print(this_processor().isa, hashlib.sha256(found).hexdigest())
"""


def test_kernels_without_avx512_can_be_requested_and_give_the_same_bits() -> None:
    found = []
    for value in ("llvm", "avx2"):
        environ = {**os.environ, "COTSWOLD_KERNELS": value}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True
        )
        found.append(done.stdout.split())
    here = this_processor()
    assert here is not None
    assert [isa for isa, _ in found] == [here.isa, "avx2" if here.isa == "avx512" else here.isa]
    assert found[0][1] == found[1][1]
