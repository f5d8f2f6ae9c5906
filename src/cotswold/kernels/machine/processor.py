"""The processor for which code is generated.

Knows: instruction sets, vector widths, LLVM's names of processors. Does not know: the generated code.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
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

    def has(self, *features: str) -> bool:
        """True if the processor has all these features, by LLVM's names."""
        return {f"+{one}" for one in features} <= set(self.features.split(","))

    @property
    def has_amx(self) -> bool:
        """True if this process may multiply bfloat16 by AMX."""
        return self.isa == "avx512" and self.has("amx-bf16", "amx-tile", "avx512bf16", "avx512bw", "avx512vl")

    @property
    def registers(self) -> int:
        """Number of vector registers."""
        return REGISTERS[self.isa]


_ARCH_PRCTL, _ARCH_REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18
"""Linux's call on x86-64 by which a process asks for the tile registers of AMX."""


def prepare() -> None:
    """Initialise LLVM for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@lru_cache(maxsize=1)
def this_processor() -> Processor | None:
    """Return this processor, or None if it has no fused multiply-add on vectors."""
    prepare()
    triple, cpu, features = llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    if features.get("amx-tile") and not _may_use_amx():
        features["amx-tile"] = False
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


def _may_use_amx() -> bool:
    """True if the operating system lets this process use tile registers; it and its forks may from now on.

    Linux refuses if a thread has a signal stack that is too small for these registers, and refuses such
    stacks from now on. Torch's products ask for the same.
    """
    if not sys.platform.startswith("linux"):
        return False
    refused: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQUEST_STATE, _TILE_DATA)
    return refused == 0
