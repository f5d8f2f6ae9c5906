"""The kernels of this process: written, compiled and kept on first use.

Knows: what makes two kernels the same. Does not know: shapes, choices.
"""

from __future__ import annotations

import hashlib
import threading
from functools import lru_cache
from pathlib import Path

import llvmlite
from llvmlite import binding as llvm

from cotswold.kernels import engine, store
from cotswold.kernels.driver import KINDS, write_kernel
from cotswold.kernels.emit import Lanes
from cotswold.kernels.machine import Machine
from cotswold.kernels.pair_driver import write_pair_kernel
from cotswold.kernels.tile import Tile

_SOURCES = (
    "activation",
    "driver",
    "emit",
    "engine",
    "pair_driver",
    "pair_tile",
    "pairs",
    "tile",
    "transpose",
    "update",
)
_LOCK = threading.Lock()
_ADDRESSES: dict[tuple[str, str, Tile, Machine], int] = {}


@lru_cache(maxsize=1)
def edition() -> str:
    """A digest of the generator and of LLVM's version."""
    here = Path(__file__).parent
    digest = hashlib.sha256(f"{llvmlite.__version__} {llvm.llvm_version_info}".encode())
    for name in _SOURCES:
        digest.update((here / f"{name}.py").read_bytes())
    return digest.hexdigest()


def kernel(kind: str, dtype: str, tile: Tile, processor: Machine) -> int:
    """The address of ``work(job)`` of this kernel; from the cache, or compiled in some tenths of a second."""
    key = kind, dtype, tile, processor
    found = _ADDRESSES.get(key)
    if found is not None:
        return found
    with _LOCK:
        if key not in _ADDRESSES:
            name = f"{kind}-{dtype}-{tile}-{digest(processor)}.o"
            code = store.recall(name)
            if code is None:
                code = _written(kind, dtype, tile, processor)
                store.remember(name, code)
            _ADDRESSES[key] = engine.loaded(code, processor, "work")
        return _ADDRESSES[key]


def _written(kind: str, dtype: str, tile: Tile, processor: Machine) -> bytes:
    if dtype == "bfloat16":
        return engine.compiled(write_pair_kernel(KINDS[kind], tile, processor.triple), processor)
    lanes = Lanes(dtype, processor.lanes(dtype))
    return engine.compiled(write_kernel(KINDS[kind], lanes, tile, processor.triple), processor)


@lru_cache(maxsize=16)
def digest(processor: Machine) -> str:
    """What names in the cache end with: the edition and the processor, in short."""
    told = f"{edition()} {processor.triple} {processor.cpu} {processor.features}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]
