"""From LLVM code to machine code in this process, and back from the user's cache.

Knows: LLVM's compiler, object files, where they are kept. Does not know: what the code does.
"""

from __future__ import annotations

import ctypes
import os
import threading

from llvmlite import binding as llvm
from llvmlite import ir

from cotswold.kernels.machine.processor import Processor

LOCK = threading.Lock()
"""Held while code is made or loaded; and by whoever forks."""
_LOADED: list[llvm.ExecutionEngine] = []


def hold_in_fork(lock: threading.Lock | threading.RLock) -> None:
    """Have whoever forks hold a lock: a child never inherits one from a thread that it does not have.

    Locks are taken in the reverse order of these calls, so a module calls this for its own lock after it has
    imported those whose locks it takes while it holds its own.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


hold_in_fork(LOCK)


def target_machine(machine: Processor) -> llvm.TargetMachine:
    """LLVM's compiler for a processor."""
    return llvm.Target.from_triple(machine.triple).create_target_machine(
        cpu=machine.cpu, features=machine.features, opt=3, reloc="pic", codemodel="small"
    )


def compiled(module: ir.Module, machine: Processor) -> bytes:
    """An object file."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    found: bytes = target_machine(machine).emit_object(parsed)
    return found


def assembly(module: ir.Module, machine: Processor) -> str:
    """The same as text, to look at."""
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    found: str = target_machine(machine).emit_assembly(parsed)
    return found


def loaded(code: bytes, machine: Processor, name: str) -> int:
    """The address of a function of an object file, which stays loaded as long as the process."""
    with LOCK:
        empty = llvm.parse_assembly(f'target triple = "{machine.triple}"')
        # code reaches its constants and tables by 32-bit distances: one block of memory for all of an object,
        # which LLVM's own memory manager does not promise
        engine = llvm.create_mcjit_compiler(empty, target_machine(machine), use_lmm=True)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _LOADED.append(engine)
        address: int = engine.get_function_address(name)
        return address


def call_for_integer(address: int) -> int:
    """Call a function without arguments that gives an integer."""
    found: int = ctypes.CFUNCTYPE(ctypes.c_int64)(address)()
    return found
