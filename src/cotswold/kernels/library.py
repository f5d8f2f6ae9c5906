"""The kernels of this process: written, compiled and kept on first use.

Knows: what makes two kernels the same. Does not know: shapes, choices.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import llvmlite
from llvmlite import binding as llvm
from llvmlite import ir

from cotswold.kernels import engine, store
from cotswold.kernels.driver import KINDS, write_kernel
from cotswold.kernels.emit import Lanes
from cotswold.kernels.machine import Machine
from cotswold.kernels.pair_driver import write_pair_kernel
from cotswold.kernels.tile import Tile

LOCK = threading.Lock()
"""Held while code is made or loaded; and by whoever forks, see `choice`."""
_ADDRESSES: dict[tuple[tuple[object, ...], Machine], int] = {}


@lru_cache(maxsize=1)
def edition() -> str:
    """A digest of the generators and of LLVM's version."""
    digest = hashlib.sha256(f"{llvmlite.__version__} {llvm.llvm_version_info}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def address(name: tuple[object, ...], processor: Machine, write: Callable[[], ir.Module]) -> int:
    """The address of ``work(job)`` of the kernel of this name; ``write`` writes it where it is not known.

    It comes from this process, or from the cache, or is compiled in some tenths of a second.
    """
    found = _ADDRESSES.get((name, processor))
    if found is not None:
        return found
    with LOCK:
        if (name, processor) not in _ADDRESSES:
            file = f"{'-'.join(map(str, name))}-{digest(processor)}.o"
            code = store.recall(file)
            if code is None:
                code = _compiled(name, processor, write)
                store.remember(file, code)
            _ADDRESSES[name, processor] = engine.loaded(code, processor, "work")
        return _ADDRESSES[name, processor]


def _compiled(name: tuple[object, ...], processor: Machine, write: Callable[[], ir.Module]) -> bytes:
    return engine.compiled(write(), processor)


def kernel(kind: str, dtype: str, tile: Tile, processor: Machine) -> int:
    """The address of a kernel of products."""

    def write() -> ir.Module:
        if dtype == "bfloat16":
            return write_pair_kernel(KINDS[kind], tile, processor.triple)
        return write_kernel(KINDS[kind], Lanes(dtype, processor.lanes(dtype)), tile, processor.triple)

    return address((kind, dtype, tile), processor, write)


@lru_cache(maxsize=16)
def digest(processor: Machine) -> str:
    """What names in the cache end with: the edition and the processor, in short."""
    told = f"{edition()} {processor.triple} {processor.cpu} {processor.features}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]
