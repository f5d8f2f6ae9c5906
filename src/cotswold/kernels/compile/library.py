"""The kernels of this process: written, compiled, kept and tried on first use.

Knows: what makes two kernels the same, that each must get a small operation right. Does not know: shapes,
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
"""Held while code is made, loaded or tried; and by whoever forks."""
engine.hold_in_fork(LOCK)
_ADDRESSES: dict[tuple[tuple[object, ...], Processor], int] = {}

Name = tuple[object, ...]
Trial = Callable[[int], bool]
"""Whether the kernel at an address computes a small operation as it should."""


def cache_key(write: partial[ir.Module], processor: Processor) -> str:
    """What names in the cache end with: a digest of all that the code of a kernel depends on, in short.

    That is the generator as it is loaded, its arguments, the compiler, and the processor.
    """
    told = f"{_generator(write.func)} {fingerprint(*write.args, processor)}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _generator(function: Callable[..., ir.Module]) -> str:
    versions = f"{llvmlite.__version__} {llvm.llvm_version_info}"
    return f"{versions} {fingerprint(function, engine.compiled)}"


def address(name: Name, processor: Processor, write: partial[ir.Module], is_right: Trial) -> int:
    """The address of ``work(job)`` of the kernel of this name; ``write`` writes it where it is not known.

    It comes from this process, or from the cache, or is compiled in some tenths of a second. One from the
    cache that fails its trial is compiled anew. Raises WrongKernelError if what was compiled here fails.
    """
    found = _ADDRESSES.get((name, processor))
    if found is not None:
        return found
    with LOCK:
        if (name, processor) not in _ADDRESSES:
            _ADDRESSES[name, processor] = _ready(name, processor, write, is_right)
        return _ADDRESSES[name, processor]


def _ready(name: Name, processor: Processor, write: partial[ir.Module], is_right: Trial) -> int:
    """Load a kernel that is right."""
    file = f"{'-'.join(map(str, name))}-{cache_key(write, processor)}.o"
    code = code_cache.load(file)
    if code is not None:
        found = engine.loaded(code, processor, "work")
        if is_right(found):
            return found
    code = _compiled(name, processor, write)
    found = engine.loaded(code, processor, "work")
    if not is_right(found):
        raise WrongKernelError(
            f"the kernel {' '.join(map(str, name))} computes wrongly on this processor "
            f"({processor.isa}, {processor.cpu})"
        )
    code_cache.save(file, code)
    return found


def _compiled(name: Name, processor: Processor, write: partial[ir.Module]) -> bytes:
    return engine.compiled(write(), processor)
