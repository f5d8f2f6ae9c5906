"""The processor for which code is generated.

Knows: instruction sets, vector widths, LLVM's names of processors. Does not know: the generated code.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache

from llvmlite import binding as llvm

from cotswold.kernels.available import VARIABLE

WIDTHS = {"avx512": 512, "avx2": 256, "neon": 128}
"""Bits of a vector."""
REGISTERS = {"avx512": 32, "avx2": 16, "neon": 32}
"""Number of vector registers."""


@dataclass(frozen=True)
class Processor:
    """A processor: instruction set, LLVM's names of it and its features, and LLVM's target triple."""

    isa: str
    cpu: str
    features: str
    triple: str

    def lanes(self, dtype: str) -> int:
        """Return the elements of a vector."""
        return WIDTHS[self.isa] // {"float32": 32, "float64": 64}[dtype]

    @property
    def registers(self) -> int:
        """Number of vector registers."""
        return REGISTERS[self.isa]


def prepare() -> None:
    """Initialise LLVM for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@lru_cache(maxsize=1)
def this_processor() -> Processor | None:
    """Return this processor, or None if it has no fused multiply-add on vectors."""
    prepare()
    triple, cpu, features = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    text = features.flatten()
    if platform.machine().lower() in ("x86_64", "amd64"):
        if features.get("avx512f") and features.get("avx512vl") and features.get("avx512dq"):
            if os.environ.get(VARIABLE) == "avx2":
                return Processor("avx2", "x86-64-v3", "+f16c", triple)
            return Processor("avx512", cpu, text, triple)
        if features.get("avx2") and features.get("fma"):
            return Processor("avx2", cpu, text, triple)
        return None
    if platform.machine().lower() in ("aarch64", "arm64"):
        return Processor("neon", cpu, text, triple)
    return None
