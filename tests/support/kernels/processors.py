"""Processors for generated code in tests: this one, one with narrower vectors, and a foreign one.

Knows: LLVM's names. Does not know: any test.
"""

from __future__ import annotations

from cotswold.kernels.machine.processor import Processor, this_processor

ARM = Processor("neon", "neoverse-n1", "+neon", "aarch64-unknown-linux-gnu")
"""An ARM server, whose code can be inspected here, but not run."""


def narrower() -> Processor | None:
    """Return this processor without its 512-bit vectors, to compare bits, or None if it has none."""
    here = this_processor()
    if here is None or here.isa != "avx512":
        return None
    return Processor("avx2", "x86-64-v3", "", here.triple)
