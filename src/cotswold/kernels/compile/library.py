"""Kernels of this process: generated, compiled, cached and tested on first use.

Knows: the cache key of a kernel, that each must compute a small operation correctly. Does not know: shapes,
choices, what a kernel computes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import lru_cache, partial

import llvmlite
from llvmlite import binding as llvm
from llvmlite import ir

from cotswold.kernels.available import WrongKernelError
from cotswold.kernels.compile import code_cache, engine
from cotswold.kernels.compile.fingerprint import fingerprint
from cotswold.kernels.machine.processor import Processor

LOCK = threading.Lock()
"""Lock held while code is compiled, loaded or tested, and during a fork."""
engine.lock_during_fork(LOCK)
_ADDRESSES: dict[tuple[tuple[object, ...], Processor], int] = {}

Name = tuple[object, ...]
SelfTest = Callable[[int], bool]
"""Self-test: return True if the kernel at an address computes a small operation correctly."""


def cache_key(write: partial[ir.Module], processor: Processor) -> str:
    """Return the key of a kernel in the cache: a short digest of all that its code depends on.

    That is the loaded code generator, its arguments, the compiler and the processor.
    """
    told = f"{_generator(write.func)} {fingerprint(*write.args, processor)}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _generator(function: Callable[..., ir.Module]) -> str:
    versions = f"{llvmlite.__version__} {llvm.llvm_version_info}"
    return f"{versions} {fingerprint(function, engine.compile_object)}"


def address(name: Name, processor: Processor, write: partial[ir.Module], passes_self_test: SelfTest) -> int:
    """Return the address of ``work(job)`` of a named kernel; ``write`` generates it if it is unknown.

    The kernel comes from this process, from the cache, or from the compiler (some tenths of a second). A
    cached kernel that fails its self-test is compiled again. Raises WrongKernelError if a freshly compiled
    kernel fails.
    """
    found = _ADDRESSES.get((name, processor))
    if found is not None:
        return found
    with LOCK:
        if (name, processor) not in _ADDRESSES:
            _ADDRESSES[name, processor] = _load_or_compile(name, processor, write, passes_self_test)
        return _ADDRESSES[name, processor]


def _load_or_compile(
    name: Name, processor: Processor, write: partial[ir.Module], passes_self_test: SelfTest
) -> int:
    """Load a kernel that passes its self-test."""
    file = f"{'-'.join(map(str, name))}-{cache_key(write, processor)}.o"
    code = code_cache.load(file)
    if code is not None:
        found = engine.load_object(code, processor, "work")
        if passes_self_test(found):
            return found
    code = _compile(name, processor, write)
    found = engine.load_object(code, processor, "work")
    if not passes_self_test(found):
        raise WrongKernelError(
            f"the kernel {' '.join(map(str, name))} computes wrongly on this processor "
            f"({processor.isa}, {processor.cpu})"
        )
    code_cache.save(file, code)
    return found


def _compile(name: Name, processor: Processor, write: partial[ir.Module]) -> bytes:
    return engine.compile_object(write(), processor)
